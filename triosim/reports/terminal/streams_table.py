"""Captured task streams as tables: the captured ranks, the groups, and the communication of each captured rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triosim.reports.terminal.result_tables import facts_table, shorten, spaced, table
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams
from triosim.units import format_bytes, format_ranks, format_time

MAX_ROWS = 15

Row = TypeVar("Row")


def render(streams: TaskStreams) -> RenderableType:
    """Return task streams as something that rich can show."""
    parts = [_facts(streams), _ranks(streams)]
    if streams.groups:
        parts.append(_groups(streams))
    communications = _communications(streams)
    if communications.row_count:
        parts.append(communications)
    return Group(*spaced(parts))


def _facts(streams: TaskStreams) -> RenderableType:
    trace = streams.traces[streams.like[0]]
    batch = streams.global_batch_size
    facts = {
        "model": trace.model,
        "GPU": f"{trace.gpu}, times {trace.times}",
        "ranks": f"{streams.world:,}, of which {len(streams.traces):,} captured",
        "global batch": "not known" if batch is None else f"{batch:,}",
    }
    if trace.software:
        facts["software"] = ", ".join(f"{name} {version}" for name, version in trace.software.items())
    grid = facts_table(facts.items())
    title = Text(streams.source or "task streams", overflow="ellipsis")
    return Panel(grid, title=title, title_align="left", expand=False)


def _ranks(streams: TaskStreams) -> Table:
    made = table("Captured ranks", "rank", "stands for", "batch", "operators", "sum of times", "communications")
    for rank, trace in _first(streams.traces.items(), made):
        ranks = format_ranks(other for other, model in enumerate(streams.like) if model == rank)
        made.add_row(
            str(rank),
            shorten(ranks, 24),
            f"{trace.batch_size:,}",
            f"{len(trace.operators):,}",
            format_time(trace.seconds),
            f"{sum(operator.communication is not None for operator in trace.operators):,}",
        )
    return made


def _groups(streams: TaskStreams) -> Table:
    made = table("Groups", "name", "groups", "ranks in each", "the first")
    for name, groups in _first(streams.groups.items(), made):
        sizes = sorted({len(group) for group in groups})
        first = format_ranks(groups[0]) if groups else ""
        made.add_row(Text(shorten(name, 24)), str(len(groups)), ", ".join(map(str, sizes)), shorten(first, 24))
    return made


def _communications(streams: TaskStreams) -> Table:
    """Return the communication of each captured rank, summed by kind and group."""
    made = table("Communications of a captured rank", "rank", "kind", "group", "count", "bytes")
    rows = [
        (str(rank), kind, Text(shorten(group, 24)), f"{count:,}", format_bytes(nbytes))
        for rank, trace in streams.traces.items()
        for kind, group, count, nbytes in _sums(trace)
    ]
    for row in _first(rows, made):
        made.add_row(*row)
    return made


def _first(rows: Iterable[Row], made: Table) -> Iterator[Row]:
    """Yield as many rows as a person reads; the table's caption says how many more there are."""
    everything = list(rows)
    if len(everything) > MAX_ROWS:
        made.caption = f"{len(everything) - MAX_ROWS} more"
    yield from everything[:MAX_ROWS]


def _sums(trace: Trace) -> Iterator[tuple[str, str, int, float]]:
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[tuple[str, str], float] = {}
    for operator in trace.operators:
        asked = operator.communication
        if asked is not None:
            key = (asked.kind, asked.group)
            counts[key] += 1
            sizes[key] = sizes.get(key, 0.0) + asked.nbytes
    for (kind, group), count in counts.items():
        yield kind, group, count, sizes[kind, group]
