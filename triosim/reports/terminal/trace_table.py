"""A trace as tables: operators by kind, time by phase and layer, bytes by category."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from triosim.reports.terminal.tables import facts_panel, percent, shorten, spaced, table
from triosim.results.values import NO_LAYER
from triosim.trace import PHASES, Trace
from triosim.trace import summary as summary
from triosim.trace.step_facts import DOUBTS
from triosim.units import format_bytes, format_time

MAX_ROWS = 15


def render(trace: Trace) -> RenderableType:
    """Return a trace as something that rich can show."""
    sizes = summary.bytes_by_category(trace).items()
    parts: list[RenderableType] = [
        _facts(trace),
        _groups(trace, "Time by phase", "phase", [*summary.by_phase(trace).values()]),
        _groups(trace, "Operators by kind", "operator", summary.by_name(trace)),
        _layers(trace),
        table(
            "Bytes by category",
            *("category", "bytes"),
            rows=[(category.replace("_", " "), format_bytes(nbytes)) for category, nbytes in sizes if nbytes],
        ),
    ]
    return Group(*spaced(parts))


def _facts(trace: Trace) -> Panel:
    busy = summary.busy_seconds(trace)
    facts = {
        "model": trace.model,
        "GPU": f"{trace.gpu}, times {trace.times}",
        "batch size": f"{trace.batch_size:,}",
        "operators": f"{len(trace.operators):,}",
        "parameters": f"{summary.parameter_elements(trace):,} elements",
        "sum of operators": format_time(trace.seconds)
        + (f", of it busy {format_time(busy)}" if busy is not None else ""),
    }
    if trace.step_seconds is not None:
        facts["measured step"] = format_time(trace.step_seconds)
    if trace.software:
        facts["software"] = ", ".join(f"{name} {version}" for name, version in trace.software.items() if name != DOUBTS)
    return facts_panel(trace.source or "trace", facts.items())


def _groups(trace: Trace, title: str, what: str, groups: list[summary.OperatorGroup]) -> Table:
    rows = [
        (shorten(one.name, 44), f"{one.count:,}", format_time(one.seconds), percent(one.seconds, trace.seconds))
        for one in groups
    ]
    columns = what, "operators" if what == "phase" else "count", "time", "of all"
    return table(title, *columns, rows=rows, most=MAX_ROWS)


def _layers(trace: Trace) -> Table:
    """Return the layers that take the most time, in the order of the model."""
    groups = summary.by_layer(trace)
    slowest = {group.name for group in sorted(groups, key=lambda group: -group.seconds)[:MAX_ROWS]}
    times: dict[tuple[str, str], float] = {}
    for operator in trace.operators:
        key = (operator.layer, operator.phase)
        times[key] = times.get(key, 0.0) + operator.seconds
    rows = []
    for group in sorted(groups, key=lambda group: group.name not in slowest):
        phases = (format_time(times.get((group.name, phase), 0.0)) for phase in PHASES)
        total, share = format_time(group.seconds), percent(group.seconds, trace.seconds)
        rows.append((shorten(group.name or NO_LAYER, 28), *phases, total, share))
    return table("Time by layer", "layer", *PHASES, "total", "of all", rows=rows, most=MAX_ROWS, main=("total",))
