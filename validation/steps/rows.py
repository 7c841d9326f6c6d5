"""A measured row, the format of a table of them, and the records of a file, whose errors name the file and the line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from triosim.errors import TraceError
from triosim.results.result import Result

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    ``label`` is the row's columns in short; ``model`` says which rows are of one size;
    ``measured`` is in ``unit``.
    ``case`` is what the format's ``predicted`` needs; ``published`` is what another simulator said, in the same unit.
    ``also`` are other quantities of the same line of a table. ``gpu`` and ``framework`` say in
    which group of its table it is judged, ``part`` of which part of the table something else is asked, and ``line`` is its
    line there.
    """

    label: str
    model: str
    measured: float
    unit: str
    case: Any
    quantity: str = "step time"
    published: float | None = None
    also: tuple[Row, ...] = ()
    gpu: str = ""
    framework: str = ""
    part: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of a row's quantity, in its unit, and the ends of the 90% interval where it has one.

    ``doubts`` are the expected errors that the interval comes from, by source, and ``launches`` how long the busiest host
    launches, as parts of the value; ``fits`` is whether it says that the step fits in memory.
    """

    value: float
    low: float | None = None
    high: float | None = None
    doubts: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    launches: float = 0.0

    @classmethod
    def of_step(cls, result: Result, unit: str) -> Prediction:
        """Return the step time of a result, in seconds or ms."""
        step, scale = result.step_time_s, 1e3 if unit == "ms" else 1.0
        doubts = {one.source: one.error_s / step for one in result.data.doubts}
        ends = (scale * end for end in result.step_time_interval_s or ())
        fits = all(row.fits is not False for row in result.data.memory)
        return cls(scale * step, *ends, doubts=doubts, fits=fits, launches=result.data.launches_s / step)


def spaced(found: Sequence[One], count: int | None) -> list[One]:
    """Return so many of them, evenly spaced; all without a count."""
    if count is None or count >= len(found):
        return list(found)
    return [found[place * len(found) // count] for place in range(count)]


class Format(ABC):
    """One format of table.

    ``columns`` identify its files (a file may have more); ``tables`` are the names of measured data that have it, under
    ``TRIOSIM_DATA``. ``asked`` is the mean absolute error that is asked for, by quantity, or by the part of a table;
    ``published`` says what the best published one is, by quantity. ``sample`` is of how many rows of a table, or of each part
    of it, ``python -m validation`` makes do.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    tables: ClassVar[tuple[str, ...]] = ()
    sample: ClassVar[int] = 12
    asked: ClassVar[Mapping[str, float]] = {}
    published: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def read(self, record: Record) -> Row:
        """Return the row of one line of a table. Raises ``TriosimError`` for what is wrong in it."""

    @abstractmethod
    def predicted(self, row: Row) -> Prediction:
        """Return what the simulator says of the row's quantity. Raises ``TriosimError`` for what cannot be simulated."""

    def command(self, row: Row) -> object:
        """Return the command line that predicts the row; None where it takes more than one."""
        return None

    def is_quick(self, row: Row) -> bool:
        """Whether a prediction needs nothing that has to be made first."""
        return True

    def sampled(self, found: Sequence[Row]) -> list[Row]:
        """Return ``sample`` of the quick rows of a table, or of each part of it, evenly spaced."""
        parts: dict[str, list[Row]] = {}
        for row in found:
            if self.is_quick(row):
                parts.setdefault(row.part, []).append(row)
        return [row for rows in parts.values() for row in spaced(rows, self.sample)]

    def built_in(self) -> list[Row]:
        """Rows that are published in a text and stand in the module itself, where there is no file of them."""
        return []


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a table: text by column; ``where`` is the file and the line, and ``line`` its number."""

    values: Mapping[str, str]
    where: str
    line: int = 0

    def has(self, column: str) -> bool:
        """Whether the column says anything."""
        return (self.values.get(column) or "").strip() not in ("", "-")

    def text(self, column: str) -> str:
        """Return what the column has."""
        found = (self.values.get(column) or "").strip()
        if not found:
            raise TraceError(f"no '{column}'", where=self.where, fix="give every column of the header")
        return found

    def number(self, column: str) -> float:
        """Return a positive number."""
        text = self.text(column)
        try:
            found = float(text)
        except ValueError:
            found = 0.0
        if not 0 < found < float("inf"):
            raise TraceError(f"'{column}' is '{text}'", where=self.where, fix="give a number above 0")
        return found

    def whole(self, column: str) -> int:
        """Return a positive whole number."""
        found = self.number(column)
        if found != int(found):
            raise TraceError(
                f"'{column}' is '{self.text(column)}'", where=self.where, fix="give a whole number above 0"
            )
        return int(found)

    def one_of(self, column: str, known: Sequence[str]) -> str:
        """Return one of some words."""
        found = self.text(column)
        if found not in known:
            raise TraceError(f"'{column}' is '{found}'", where=self.where, fix=f"known: {', '.join(known)}")
        return found

    def check(self, holds: bool, what: str, fix: str) -> None:
        """Refuse a row that contradicts itself."""
        if not holds:
            raise TraceError(what, where=self.where, fix=fix)
