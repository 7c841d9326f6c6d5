"""The error of a prediction, and summaries of tables and of their groups: mean absolute error (MAPE), median, worst, bias."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median

from triosim.errors import TriosimError
from validation.steps.command import OutOfScope
from validation.steps.formats import named
from validation.steps.rows import Row


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row and what the simulator said, by the format's name and the table's; ``low`` and ``high`` are its interval.

    ``doubts`` are what that comes from, and ``launches`` how long a host launches, as parts of the value; ``fits`` is whether
    the step is said to fit in memory.
    """

    kind: str
    table: str
    row: Row
    value: float
    low: float | None = None
    high: float | None = None
    doubts: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    launches: float = 0.0

    @property
    def source(self) -> str:
        """The table, or the part of it that is judged by itself."""
        return source_of(self.table, self.row.part)

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return self.value / self.row.measured - 1

    @property
    def group(self) -> str:
        """The table, and the row's GPU and framework."""
        return group_of(self.table, self.row)

    @property
    def half_width(self) -> float | None:
        """Half the interval's width, as a share of what is predicted; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.value

    @property
    def covered(self) -> bool | None:
        """Whether the measured value lies in the interval; None without one."""
        return None if self.low is None or self.high is None else self.low <= self.row.measured <= self.high

    def of_row(self, table: str, row: Row) -> Predicted:
        """Return the same prediction for another row of its command."""
        return replace(self, table=table, row=row)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not predicted, and why; ``group`` and ``part`` are its own where that could be read."""

    table: str
    error: TriosimError
    line: int = 0
    group: str = ""
    part: str = ""

    @property
    def source(self) -> str:
        """The table, or the part of it that is judged by itself."""
        return source_of(self.table, self.part)

    @property
    def out_of_scope(self) -> bool:
        """Whether it is of a kind that triosim does not describe, and does not count as an error."""
        return isinstance(self.error, OutOfScope)

    def of_row(self, table: str, row: Row) -> Refused:
        """Return the same refusal of another row of its command."""
        error = type(self.error)(self.error.what, where=f"{table}, {row.label}", fix=self.error.fix)
        return Refused(table, error, row.line, group_of(table, row), row.part)

    def plain(self) -> dict[str, object]:
        """As JSON holds it."""
        found = {"table": self.table, "line": self.line, "reason": str(self.error), "out_of_scope": self.out_of_scope}
        return found | {"group": self.group or self.table}


@dataclass(frozen=True, slots=True)
class Summary:
    """The errors of a table's rows of one quantity, or of those of a part of it, as fractions.

    ``covered`` is the share of rows in whose interval the measured value lies, and ``half_width`` is the median one, as a share
    of what is predicted; None without intervals.
    """

    table: str
    quantity: str
    rows: int
    mean: float
    median: float
    worst: float
    bias: float
    covered: float | None
    half_width: float | None
    asked: float
    published: str

    def plain(self) -> dict[str, object]:
        """As JSON holds it."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}


def summaries(found: Sequence[Predicted]) -> list[Summary]:
    """Return the figures of each table or part of one and quantity, in the order in which they come."""
    groups: dict[tuple[str, str, str], list[Predicted]] = {}
    for one in found:
        groups.setdefault((one.kind, one.source, one.row.quantity), []).append(one)
    made = []
    for (kind, source, quantity), rows in groups.items():
        errors = [one.error for one in rows]
        off = [abs(error) for error in errors]
        held = [one.covered for one in rows if one.covered is not None]
        widths = [one.half_width for one in rows if one.half_width is not None]
        figures = fmean(off), median(off), max(errors, key=abs), fmean(errors)
        intervals = (fmean(held), median(widths)) if held else (None, None)
        known, part = named(kind), rows[0].row.part
        asked, published = known.asked.get(part or quantity, float("inf")), known.published.get(quantity, "")
        made.append(Summary(source, quantity, len(off), *figures, *intervals, asked, published))
    return made


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The errors of a group's rows of one quantity, as fractions: ``mean`` counts each refused row as 1.

    ``covered`` is the share of predicted rows in whose interval the measured value lies, None without intervals.
    """

    group: str
    quantity: str
    rows: int
    refused: int
    mean: float
    bias: float
    covered: float | None


def groups(found: Sequence[Predicted], refused: Sequence[Refused]) -> list[GroupSummary]:
    """Return the figures of each group and quantity; what is out of scope is left out."""
    members: dict[tuple[str, str], list[Predicted]] = {}
    for one in found:
        members.setdefault((one.group, one.row.quantity), []).append(one)
    lost = Counter(one.group or one.table for one in refused if not one.out_of_scope)
    made = []
    for (group, quantity), rows in members.items():
        off, missing = [one.error for one in rows], lost.pop(group, 0)
        held = [one.covered for one in rows if one.covered is not None]
        mean = (sum(map(abs, off)) + missing) / (len(off) + missing)
        made.append(GroupSummary(group, quantity, len(rows), missing, mean, fmean(off), fmean(held) if held else None))
    return made + [GroupSummary(group, "step time", 0, missing, 1.0, -1.0, None) for group, missing in lost.items()]


def source_of(table: str, part: str) -> str:
    """Return the name of a table, or of a part of it."""
    return f"{table}, {part}" if part else table


def group_of(table: str, row: Row) -> str:
    """Return the group of a table's row."""
    return ", ".join(filter(None, (table, row.gpu, row.framework)))
