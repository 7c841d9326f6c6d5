"""The work of ``triosim calibrate network`` and ``calibrate evaluate --topology``: reads, fits, writes and judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from triosim import output_files as output
from triosim.errors import TriosimError
from triosim.networks.calibration import stored
from triosim.networks.calibration.fit import fitting, judging, measured
from triosim.networks.calibration.fit.fitting import MeasuredCollective
from triosim.networks.calibration.lookup import calibration_of
from triosim.networks.calibration.model import Calibration
from triosim.networks.topology import Topology
from triosim.networks.topology import file as topology_file

Progress = Callable[[str], None]
ONLINE_RATE = 0.1


def rows_of(
    paths: Sequence[str], topology: str, collective: str | None = None, gpu: str | None = None
) -> list[MeasuredCollective]:
    """Return the rows of files; of a table about several GPUs, those of ``gpu`` or of the topology's."""
    found: list[MeasuredCollective] = []
    for path in paths:
        found.extend(measured.read(path, collective=collective, gpu=gpu, system=topology))
    if not found:
        raise TriosimError("holds no rows", where=", ".join(paths))
    return found


def on_nodes(rows: Sequence[MeasuredCollective], per_node: int) -> list[MeasuredCollective]:
    """Return rows over at least as many nodes as their GPUs need."""
    return [replace(row, nodes=max(row.nodes, -(-row.gpus // per_node))) for row in rows]


def calibrate(
    paths: Sequence[str],
    topology: str,
    destination: str,
    *,
    collective: str | None = None,
    gpu: str | None = None,
    online: bool = False,
    progress: Progress = lambda text: None,
) -> Calibration:
    """Fit the collectives of a topology to measured ones, and write a topology file with both.

    With ``online``, the calibration that the topology has is adjusted to the rows, one after the other, and not replaced.
    """
    system = Topology.load(topology)
    output.check_outputs(destination, reading=[*paths, topology])
    per_node = judging.gpus_per_node(system)
    rows = on_nodes(rows_of(paths, f"{topology} {system.name}", collective, gpu), per_node)
    _grown(topology, system, rows)
    source = f"{len(rows)} rows of {', '.join(Path(path).name for path in paths)}"
    if online:
        found = _moved(system, rows, f"adjusted to {source}")
    else:
        found = fitting.fit(rows, per_node, f"fitted to {source}", calibration_of(system))
        _say_errors(rows, progress)
    beside = _slowdowns(rows)
    for name, factors in beside.items():
        progress(f"{name.replace('_', ' ')}: {', '.join(f'{kind} {factor:g}' for kind, factor in factors.items())}")
    mapping = {**topology_file.as_mapping(topology), **beside, "calibration": stored.to_mapping(found)}
    with output.writing_text(destination) as file:
        yaml.safe_dump(mapping, file, sort_keys=False, width=120)
    return found


def _moved(system: Topology, rows: Sequence[MeasuredCollective], note: str) -> Calibration:
    found = calibration_of(system)
    if found is None or not found.kinds:
        fix = "name one that is, such as dgx-h100 or a file of an earlier run"
        raise TriosimError("is not calibrated, so that there is nothing to adjust", where=system.name, fix=fix)
    for row in rows:
        if row.kind not in found.kinds or row.nodes > 1:
            fix = "leave out --online, to fit it"
            raise TriosimError(f"has no {row.kind} of {row.gpus} GPUs to adjust", where=system.name, fix=fix)
        found = found.observed(row.kind, row.gpus, row.nbytes, row.seconds, ONLINE_RATE)
    return replace(found, note=f"{found.note}; {note}")


def _slowdowns(rows: Sequence[MeasuredCollective]) -> dict[str, dict[str, float]]:
    """Return a topology file's slow-downs beside computation: medians over the sizes, by collective, where any was measured."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name in measured.SLOWDOWNS:
            if (factor := getattr(row, name)) is not None:
                found.setdefault(name, {}).setdefault(row.kind, []).append(factor)
    return {name: {kind: round(median(factors), 3) for kind, factors in kinds.items()} for name, kinds in found.items()}


def _say_errors(rows: Sequence[MeasuredCollective], progress: Progress) -> None:
    """Say how far predictions are off sizes that were held out."""
    left, said = judging.held_out(rows)
    if not left:
        progress("too few sizes to hold some of them out of the fit")
        return
    for kind, one in judging.by_collective(left, said).items():
        large = "" if one.large is None else f", {one.large.mape_percent:.1f} % from 1 MiB"
        small = "" if one.small is None else f", {one.small.mape_percent:.1f} % below"
        mean = f"{one.total.mape_percent:.1f} %"
        progress(f"{kind}: mean error of {mean} on {one.total.rows} rows of held-out sizes{large}{small}")


def evaluate(
    path: str, topology: str, collective: str | None = None, gpu: str | None = None
) -> tuple[str, judging.ErrorSummary, dict[str, judging.ErrorSummary]]:
    """Return the name of a topology, and how far it is off the collectives of a table: all, and each kind."""
    system = Topology.load(topology)
    rows = rows_of([path], f"{topology} {system.name}", collective, gpu)
    wide = on_nodes(rows, judging.gpus_per_node(system))
    system = _grown(topology, system, wide)
    said = judging.predict(system, wide)
    return system.name, judging.judged(wide, said), judging.by_collective(wide, said)


def _grown(topology: str, system: Topology, rows: Sequence[MeasuredCollective]) -> Topology:
    """Return a system that is large enough for rows. Raises ``TriosimError`` where it cannot be, or a row fits none."""
    needed = max(row.nodes for row in rows) * judging.gpus_per_node(system)
    if needed > len(system.gpus):
        system = Topology.load(topology, gpus=needed)
    for row in rows:
        judging.group_of(system, row)
    return system


def as_json(name: str, total: judging.ErrorSummary, kinds: dict[str, judging.ErrorSummary]) -> dict[str, Any]:
    """Return what was found as plain values."""
    each = {kind: one.as_dict() for kind, one in kinds.items()}
    return {**total.as_dict(), "topology": name, "collectives": each}
