"""The command ``triosim calibrate evaluate``: shows the errors of fitted models on measurements."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from triosim.cli import options as o
from triosim.cli.calibrate.options import CACHE, COLLECTIVE, OPERATOR
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.errors import printable
from triosim.reports.terminal.progress import Progress
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.compute.fit.evaluation import Evaluation, Group, Statistics
    from triosim.networks.calibration.fit.judging import ErrorSummary
    from triosim.networks.calibration.fit.system_evaluation import GroupErrors, SystemEvaluation

evaluation = LaterModule("compute.fit.evaluation")
measured_files = LaterModule("compute.fit.measured_files")
model_files = LaterModule("compute.learned.model_files")
collectives = LaterModule("networks.calibration.fit.run")
system_evaluation = LaterModule("networks.calibration.fit.system_evaluation")
system_table = LaterModule("networks.calibration.fit.system_table")
tables = LaterModule("reports.terminal.tables")

# fmt: off
OPTIONS = (
    Option("gpu", metavar="NAME", panel=GENERAL, help=
        "The GPU that was measured, if neither DATA nor its name says; of several, the one to judge."),
    Option("dtype", metavar="NAME", panel=GENERAL, help=
        "The number format of a table that does not say it: bfloat16, fp8, fp8_block, nvfp4 ..."),
    Option("models", metavar="FILE", panel=GENERAL, help=
        "A file or folder of fitted models to use before the shipped ones."),
    OPERATOR,
    CACHE,
    Option("topology", metavar="NAME", short="-t", panel=GENERAL, help=
        "The topology of measured collectives. By default each row names its own system."),
    COLLECTIVE,
    o.FORMAT,
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    table: Annotated[str, o.argument("DATA", "A table of measured operators or collectives, or a trace.")], **given: Any
) -> None:
    """Show the errors of predictions on measured operators or collectives.

    Collectives are predicted on the system that their row names, or all of them on --topology.

    [bold]Examples[/]

    [cyan]triosim calibrate evaluate gemm_fp8_h100.csv.gz[/]
    [cyan]triosim calibrate evaluate products.csv --gpu H100 --dtype fp8_block[/]
    [cyan]triosim calibrate evaluate run/ --models h100.npz[/]
    [cyan]triosim calibrate evaluate bmm_fp32_multi_gpu.csv.gz --gpu 'Tesla T4' --format json[/]
    [cyan]triosim calibrate evaluate clusters.csv[/]
    [cyan]triosim calibrate evaluate all_reduce.txt --topology dgx-h100[/]
    """
    gpu, models, format = given["gpu"], given["models"], given["format"]
    if given["topology"] is not None:
        _evaluate_collectives(table, given["topology"], given["collective"], gpu, format)
        return
    if system_table.is_collectives(table):
        with _judging():
            systems = system_evaluation.evaluate(table, given["collective"], gpu)
        _show_systems(systems, format)
        return
    if models is not None:
        model_files.check(models)
    with _judging(), model_files.using(models):
        measured = measured_files.read([table], gpu, given["operator"], given["cache"], given["dtype"], unknown=True)
        for line in (*measured_files.unknown_names(measured.by_gpu()), *evaluation.already_fitted(measured)):
            print(printable(f"triosim: {line}"), file=sys.stderr)
        judged = evaluation.evaluate(measured)
    _show(judged, format, [one.reason for one in measured.refused])


def _judging() -> Progress:
    found = Progress()
    found.said("judging")
    return found


def _evaluate_collectives(table: str, topology: str, collective: str | None, gpu: str | None, format: str) -> None:
    with _judging():
        name, total, kinds = collectives.evaluate(table, topology, collective, gpu)
    if format == "json":
        _print_json(collectives.as_json(name, total, kinds))
        return
    _print_table(f"collectives on {name}", _by_size(total, kinds))


def _show_systems(judged: SystemEvaluation, format: str) -> None:
    if format == "json":
        _print_json(judged.as_dict())
        return
    _print_table(f"collectives of {judged.name}, each on its own system", _by_size(judged.total, judged.kinds))
    made = tables.table(
        "MAPE by system", "measured on", "collective", "rows", "from 1 MiB", "below", "refused", main=("from 1 MiB",)
    )
    for group in judged.groups:
        made.add_row(_measured_on(group), group.group.collective, *_figures(group))
    print()
    show_on_terminal(made)
    for reason, rows in judged.refused.items():
        _print_refused(f"{rows} {'row' if rows == 1 else 'rows'} refused, off by 100% each: {reason}")


def _measured_on(group: GroupErrors) -> str:
    """Return a group's system, nodes and network cards as one text, and what is said of its health."""
    of = group.group
    nodes = "" if of.nodes == 1 else f"{of.nodes} nodes"
    health = "" if of.healthy in (None, "", "yes") else f"healthy: {of.healthy}"
    return ", ".join(part for part in (of.name, nodes, of.nic, health) if part)


def _figures(group: GroupErrors) -> tuple[str, ...]:
    large, small = group.errors.large, group.errors.small
    means = ["" if one is None else f"{one.mape_percent:.1f} %" for one in (large, small)]
    return str(group.errors.total.rows), *means, str(sum(group.refused.values()) or "")


def _by_size(total: ErrorSummary, kinds: Mapping[str, ErrorSummary]) -> dict[str, Statistics]:
    """Return the figures of all rows and of each kind of collective, from 1 MiB and below, by what a table calls them."""
    rows = {"all": total.total}
    rows |= {word: one for word, one in (("1 MiB and more", total.large), ("below", total.small)) if one is not None}
    for kind, judged in kinds.items():
        both = (("from 1 MiB", judged.large), ("below", judged.small))
        rows |= {f"{kind} {word}": one for word, one in both if one is not None}
    return rows


def _show(judged: Evaluation, format: str, refused: Sequence[str]) -> None:
    gpus = ", ".join(dict.fromkeys(group.gpu for group in judged.groups))
    if format == "json":
        known = {"gpu": gpus, "operator": judged.only("operator") or "all", "dtype": judged.only("dtype")}
        kinds = {name: {**one.as_dict(), "model": judged.models[name]} for name, one in judged.kinds.items()}
        sums = {"measured_seconds": judged.measured_seconds, "predicted_seconds": judged.predicted_seconds}
        classes = {"classes": _as_dicts(judged.classes), "kinds": kinds}
        groups = [asdict(group) for group in judged.groups]
        _print_json({**judged.total.as_dict(), **known, "model": judged.model, **sums, **classes, "groups": groups})
        return
    rows = {"all": judged.total, **judged.classes}
    rows |= {f"{name} ({judged.models[name]})": one for name, one in judged.kinds.items()}
    together = f"{format_time(judged.measured_seconds)} measured, {format_time(judged.predicted_seconds)} predicted"
    _print_table(f"auto on {gpus}: all operators together {together}", rows)
    if len(judged.groups) > 1:
        print()
        _print_groups(judged.groups)
    for reason in dict.fromkeys(refused):
        _print_refused(f"refused, off by 100% each: {reason}")


def _print_refused(text: str) -> None:
    print(printable(textwrap.fill(text, 80)))


def _print_groups(groups: Sequence[Group]) -> None:
    made = tables.table("MAPE by GPU", "GPU", "operator", "dtype", "rows", "MAPE", "refused", main=("MAPE",))
    for group in groups:
        figures = str(group.rows), f"{group.mape_percent:.2f} %", str(group.refused or "")
        made.add_row(group.gpu, group.operator, group.dtype, *figures)
    show_on_terminal(made)


def _as_dicts(several: dict[str, Statistics]) -> dict[str, dict[str, float]]:
    return {name: one.as_dict() for name, one in several.items()}


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))


def _print_table(title: str, rows: dict[str, Statistics]) -> None:
    made = tables.table(title, "rows", "number", "MAPE", "median", "95th percentile", "within 10%")
    for name, one in rows.items():
        figures = (one.mape_percent, one.median_percent, one.p95_percent, one.within_10_percent)
        made.add_row(name, str(one.rows), *(f"{figure:.2f} %" for figure in figures))
    show_on_terminal(made)
