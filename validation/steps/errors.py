"""The error of a prediction, and summaries of a table: the mean absolute error (MAPE), median, worst, bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TypeVar

from triosim.errors import TriosimError
from validation.steps.formats import named
from validation.steps.rows import Row

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row and what the simulator said, by the format's name and the table's."""

    kind: str
    table: str
    row: Row
    value: float

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.value / self.row.measured - 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not predicted, and why."""

    table: str
    error: TriosimError


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of a table's rows of one quantity, as fractions."""

    table: str
    quantity: str
    rows: int
    mean: float
    median: float
    worst: float
    bias: float
    asked: float
    published: str

    def plain(self) -> dict[str, object]:
        """As JSON holds it."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}


def summaries(found: Sequence[Predicted]) -> list[Summary]:
    """Return the figures of each table and quantity, in the order in which they come."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for one in found:
        groups.setdefault((one.kind, one.table, one.row.quantity), []).append(one.error)
    made = []
    for (kind, table, quantity), errors in groups.items():
        off = [abs(error) for error in errors]
        figures = fmean(off), median(off), max(errors, key=abs), fmean(errors)
        asked, published = (named(kind).asked.get(quantity, float("inf")), named(kind).published.get(quantity, ""))
        made.append(Summary(table, quantity, len(off), *figures, asked, published))
    return made


def spaced(found: Sequence[One], count: int | None) -> list[One]:
    """Return so many of them, evenly spaced; all without a count."""
    if count is None or count >= len(found):
        return list(found)
    return [found[place * len(found) // count] for place in range(count)]
