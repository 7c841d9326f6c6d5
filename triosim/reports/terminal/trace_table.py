"""A trace as tables: operators by kind, time by phase and layer, bytes by category."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triosim.reports.terminal.result_tables import facts_table, percent, shorten, spaced, table
from triosim.trace import PHASES, Trace
from triosim.trace import summary as summary
from triosim.units import format_bytes, format_time

MAX_ROWS = 15


def render(trace: Trace) -> RenderableType:
    """Return a trace as something that rich can show."""
    return Group(*spaced([_facts(trace), _phases(trace), _operators(trace), _layers(trace), _bytes(trace)]))


def _facts(trace: Trace) -> RenderableType:
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
        facts["software"] = ", ".join(f"{name} {version}" for name, version in trace.software.items())
    grid = facts_table(facts.items())
    return Panel(grid, title=Text(trace.source or "trace", overflow="ellipsis"), title_align="left", expand=False)


def _phases(trace: Trace) -> RenderableType:
    made = table("Time by phase", "phase", "operators", "time", "of all")
    for phase, group in summary.by_phase(trace).items():
        made.add_row(phase, f"{group.count:,}", format_time(group.seconds), percent(group.seconds, trace.seconds))
    return made


def _operators(trace: Trace) -> RenderableType:
    groups = summary.by_name(trace)
    made = table("Operators by kind", "operator", "count", "time", "of all")
    for group in groups[:MAX_ROWS]:
        share = percent(group.seconds, trace.seconds)
        made.add_row(Text(shorten(group.name, 44)), f"{group.count:,}", format_time(group.seconds), share)
    _more(made, len(groups))
    return made


def _layers(trace: Trace) -> RenderableType:
    """Return the layers that take the most time, in the order of the model."""
    groups = summary.by_layer(trace)
    slowest = {group.name for group in sorted(groups, key=lambda group: -group.seconds)[:MAX_ROWS]}
    times: dict[tuple[str, str], float] = {}
    for operator in trace.operators:
        key = (operator.layer, operator.phase)
        times[key] = times.get(key, 0.0) + operator.seconds
    made = table("Time by layer", "layer", *PHASES, "total", "of all")
    for group in groups:
        if group.name in slowest:
            phases = (format_time(times.get((group.name, phase), 0.0)) for phase in PHASES)
            total, share = format_time(group.seconds), percent(group.seconds, trace.seconds)
            made.add_row(Text(shorten(group.name or "(no layer)", 28)), *phases, total, share)
    _more(made, len(groups))
    return made


def _bytes(trace: Trace) -> RenderableType:
    made = table("Bytes by category", "category", "bytes")
    for category, nbytes in summary.bytes_by_category(trace).items():
        if nbytes:
            made.add_row(category.replace("_", " "), format_bytes(nbytes))
    return made


def _more(made: Table, rows: int) -> None:
    if rows > MAX_ROWS:
        made.add_row(f"… {rows - MAX_ROWS} more", style="dim")
