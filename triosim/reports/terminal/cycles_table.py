"""A run by ASTRA-sim's rules as tables: when each rank ends and what it did until then, and the bytes of each dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from triosim.reports.terminal.tables import note_lines, percent, spaced, table
from triosim.units import format_bytes, format_ranks

MAX_ROWS = 20
_COLUMNS = ("cycles", "computing", "communicating", "exposed_communication", "memory", "cpu")


def render(data: Mapping[str, Any]) -> RenderableType:
    """Return the values of a run as something that rich can show; ranks with equal figures are one row."""
    equal: dict[tuple[int, ...], list[int]] = {}
    for rank in data["ranks"]:
        equal.setdefault(tuple(rank[name] for name in _COLUMNS), []).append(rank["rank"])
    rows = [(format_ranks(ranks), *(f"{value:,}" for value in figures)) for figures, ranks in equal.items()]
    title = f"By ASTRA-sim's rules, {data['backend']}: {data['cycles']:,} ns"
    headings = ("ranks", "end (ns)", "computing", "transfers", "exposed", "memory", "CPU")
    ranks = table(title, *headings, rows=rows, most=MAX_ROWS)
    crossed = [
        (f"{one['block']}({one['npus']})", format_bytes(one["bytes"]), percent(one["use"]), f"{one['queueing']:,}")
        for one in data["dimensions"]
    ]
    dimensions = table("Dimensions of the network", "dimension", "bytes", "use", "queueing (ns)", rows=crossed)
    return Group(*spaced([ranks, dimensions]), *note_lines(data["notes"]))
