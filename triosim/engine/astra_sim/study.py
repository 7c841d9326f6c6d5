"""A study as it is given to ASTRA-sim: the files, read; and its result as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from triosim.chakra.graph import RankGraph
from triosim.chakra.inputs.groups import read_groups
from triosim.chakra.inputs.network_file import read_network
from triosim.chakra.inputs.remote_memory_file import RemoteMemoryFile, read_remote_memory
from triosim.chakra.inputs.system_file import SIMULATED, read_system
from triosim.chakra.workload import read_workload
from triosim.engine.astra_sim.run import Inputs, Outcome, Settings, run
from triosim.errors import SimulationError
from triosim.units import format_ranks


@dataclass(frozen=True, slots=True)
class StudyFiles:
    """The files of a study: the prefix of the graphs, and those that ASTRA-sim's command line names.

    Paths in ``system`` are relative to ``folder``, by default its own. ``notes`` say how the files were found.
    """

    graphs: Path
    network: Path
    system: Path
    memory: Path | None = None
    groups: Path | None = None
    folder: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Study:
    """What was read, with notes on what ASTRA-sim would not read, or takes although it is wrong."""

    graphs: Sequence[RankGraph]
    inputs: Inputs
    found: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the inputs."""
        return (*self.found, *self.inputs.system.notes, *(note for graph in self.graphs for note in graph.notes))


def read_study(files: StudyFiles) -> Study:
    """Return the study that files describe. Raises ``TriosimError`` for what ASTRA-sim does not take either."""
    network = read_network(files.network)
    ranks = prod(dimension.npus for dimension in network.dimensions)
    inputs = Inputs(
        network,
        read_system(files.system, files.folder),
        RemoteMemoryFile() if files.memory is None else read_remote_memory(files.memory),
        {} if files.groups is None else read_groups(files.groups, ranks),
    )
    graphs = read_workload(files.graphs, ranks, lenient=True)
    return Study(graphs, inputs, (*files.notes, *_short_lists(graphs, inputs, files.system)))


def _short_lists(graphs: Sequence[RankGraph], inputs: Inputs, where: Path) -> Iterator[str]:
    """Yield a note for each list of implementations that leaves dimensions out, of collectives that graphs have."""
    dimensions = len(inputs.network.dimensions)
    short = {kind: found for kind, found in inputs.system.algorithms.items() if 0 < len(found) < dimensions}
    if not short:
        return
    asked = {node.attributes.get("comm_type") for graph in graphs for node in graph.nodes.values()}
    for kind, found in short.items():
        if kind in asked and not any(one.spans_all for one in found):
            left = "dimension" if len(found) == 1 else f"{len(found)} dimensions"
            yield f"{where}: {SIMULATED[kind]}-implementation is for the first {left} of {dimensions}: the others take no part"


def simulate_study(study: Study, settings: Settings, *, fold: bool | None = None) -> Outcome:
    """Return when each rank is finished; see ``run`` for ``fold``. Raises ``SimulationError`` where one never is."""
    outcome = run(study.graphs, study.inputs, settings, fold=fold)
    if outcome.unfinished:
        rank, why = next(iter(outcome.unfinished.items()))
        others = f"; ranks {format_ranks(outcome.unfinished)} do not" if len(outcome.unfinished) > 1 else ""
        raise SimulationError(
            f"rank {rank} does not end by ASTRA-sim's rules: {why}{others}",
            where=str(study.graphs[rank].path),
            fix="mend it, or leave out --rules",
        )
    return outcome


def plain(study: Study, outcome: Outcome, settings: Settings) -> dict[str, Any]:
    """Return an outcome as a JSON object, in ns; the use of a dimension is of one link of each rank, in one direction."""
    cycles = max(rank.cycles for rank in outcome.ranks.values())
    figures = zip(study.inputs.network.dimensions, outcome.dimension_bytes, outcome.queueing, strict=True)
    return {
        "rules": "astra-sim",
        "backend": settings.backend,
        "cycles": cycles,
        "ranks": [
            {"rank": number, "cycles": rank.cycles, "exposed_communication": rank.exposed, **rank.busy}
            for number, rank in sorted(outcome.ranks.items())
        ],
        "dimensions": [
            {
                "block": dimension.block,
                "npus": dimension.npus,
                "bytes": crossed,
                "use": crossed / len(study.graphs) / dimension.bytes_per_ns / cycles if cycles else 0.0,
                "queueing": waited,
            }
            for dimension, crossed, waited in figures
        ],
        "notes": list(study.notes),
    }
