"""The table of sources: how far the default command is off on the steps that each published, and how often its interval holds.

A source is a published table of one quantity, or a part of it of which something else is asked. Its mean error counts each
refused row of the table as 100%, but for those that are out of scope.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from validation.steps.errors import Predicted, Refused, Summary, summaries

#: The least share of rows whose interval is to hold, and how wide it may be to either side.
COVERED, HALF_WIDTH = 0.85, 0.20
_HEADINGS = ("source", "rows", "refused", "mean error", "asked", "bias", "in their interval", "half-width")


@dataclass(frozen=True, slots=True)
class Source:
    """The errors of a source: of ``rows`` of the ``readable`` ones that it has beside ``refused`` ones."""

    summary: Summary
    readable: int
    refused: int

    @property
    def error(self) -> float:
        """The mean error, with refused rows."""
        return (self.summary.mean * self.readable + self.refused) / (self.readable + self.refused)

    @property
    def holds(self) -> bool:
        """Whether its error is no more than is asked."""
        return self.error <= self.summary.asked

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line in the table."""
        one = self.summary
        name = one.table if one.quantity == "step time" else f"{one.table}, {one.quantity}"
        rows = str(one.rows) if one.rows == self.readable else f"{one.rows} of {self.readable}"
        asked = f"{one.asked:.0%}" if one.asked < float("inf") else ""
        held, width = ("" if value is None else f"{value:.0%}" for value in (one.covered, one.half_width))
        return name, rows, str(self.refused or ""), f"{self.error:.1%}", asked, f"{one.bias:+.1%}", held, width


def sources(found: Sequence[Predicted], readable: Counter[str], refused: Sequence[Refused]) -> list[Source]:
    """Return the sources of some rows, each of which has so many ``readable`` ones."""
    lost = Counter(one.source for one in refused if not one.out_of_scope)
    return [Source(one, readable[one.table], lost[one.table]) for one in summaries(found)]


def worst(found: Sequence[Predicted], count: int) -> list[Predicted]:
    """Return the rows that are farthest off, the farthest first."""
    return sorted(found, key=lambda one: -abs(one.error))[:count]


def print_sources(found: Sequence[Source], rows: Sequence[Predicted], *, markdown: bool) -> None:
    """Print the table, and the rows that are farthest off."""
    if markdown:
        lines = [_HEADINGS, ("---", *["--:"] * (len(_HEADINGS) - 1)), *(one.cells for one in found)]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        print("\n".join(f"- {_said(one)}" for one in rows))
        return
    table = Table(title="published steps against the default command")
    for place, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if place else "left")
    for one in found:
        table.add_row(*one.cells, style=None if one.holds else "red")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    console.print("Farthest off:", *map(_said, rows), sep="\n  ", markup=False, soft_wrap=True)


def _said(one: Predicted) -> str:
    return f"{one.error:+.0%} {one.table}:{one.row.line}: {one.row.label}"
