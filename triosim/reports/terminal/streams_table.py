"""Captured task streams as tables: the captured ranks, the groups, and the communication of each captured rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from triosim.reports.terminal.tables import facts_panel, shorten, spaced, table
from triosim.trace.step_facts import DOUBTS
from triosim.trace.task_streams import TaskStreams
from triosim.units import format_bytes, format_ranks, format_time

MAX_ROWS = 15


def render(streams: TaskStreams) -> RenderableType:
    """Return task streams as something that rich can show."""
    parts: list[RenderableType] = [_facts(streams), _ranks(streams)]
    if streams.groups:
        parts.append(_groups(streams))
    rows = list(_communications(streams))
    if rows:
        parts.append(_table("Communications of a captured rank", ("rank", "kind", "group", "count", "bytes"), rows))
    return Group(*spaced(parts))


def _facts(streams: TaskStreams) -> Panel:
    trace = streams.traces[streams.like[0]]
    batch = streams.global_batch_size
    facts = {
        "model": trace.model,
        "GPU": f"{trace.gpu}, times {trace.times}",
        "ranks": f"{streams.world:,}, of which {len(streams.traces):,} captured",
        "global batch": "not known" if batch is None else f"{batch:,}",
    }
    if trace.software:
        facts["software"] = ", ".join(f"{name} {version}" for name, version in trace.software.items() if name != DOUBTS)
    return facts_panel(streams.source or "task streams", facts.items())


def _ranks(streams: TaskStreams) -> Table:
    rows = []
    for rank, trace in streams.traces.items():
        ranks = format_ranks(other for other, model in enumerate(streams.like) if model == rank)
        communications = sum(operator.communication is not None for operator in trace.operators)
        counts = f"{trace.batch_size:,}", f"{len(trace.operators):,}", format_time(trace.seconds), f"{communications:,}"
        rows.append((str(rank), shorten(ranks, 24), *counts))
    return _table(
        "Captured ranks", ("rank", "represents", "batch", "operators", "sum of times", "communications"), rows
    )


def _groups(streams: TaskStreams) -> Table:
    rows = []
    for name, groups in streams.groups.items():
        sizes = ", ".join(map(str, sorted({len(group) for group in groups})))
        first = shorten(format_ranks(groups[0]), 24) if groups else ""
        rows.append((shorten(name, 24), str(len(groups)), sizes, first))
    return _table("Groups", ("name", "groups", "ranks per group", "first group"), rows)


def _communications(streams: TaskStreams) -> Iterator[tuple[str, ...]]:
    """Yield the communication of each captured rank, summed by kind and group."""
    for rank, trace in streams.traces.items():
        sizes: dict[tuple[str, str], list[float]] = {}
        for operator in trace.operators:
            asked = operator.communication
            if asked is not None:
                sizes.setdefault((asked.kind, asked.group), []).append(asked.nbytes)
        for (kind, group), found in sizes.items():
            yield str(rank), kind, shorten(group, 24), f"{len(found):,}", format_bytes(sum(found))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return table(title, *columns, rows=rows, most=MAX_ROWS)
