"""The result of a search in Python: the best points as values and pandas tables, and the files that are written of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from triosim.configuration_search.answer.picture import write_picture
from triosim.configuration_search.answer.report import as_dict, as_json, neighbours_of_best, row
from triosim.configuration_search.answer.terminal import render
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.output_files import PathLike, writing_text
from triosim.reports.terminal.tables import plain_text
from triosim.results.result import load_pandas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search found: values and pandas tables as attributes, files and a picture by methods. It prints as its tables."""

    searched: Searched

    @property
    def best(self) -> dict[str, Any] | None:
        """The best point: its settings, figures, memory and command, as in the JSON; None where there is none."""
        return None if self.searched.best is None else row(self.searched, self.searched.best)

    @property
    def points(self) -> pd.DataFrame:
        """A row for each valid point: its settings, state, memory, bound and step time; the fastest first."""
        rows = [_point(one) for one in self.searched.outcomes.values()]
        frame: pd.DataFrame = _frame(rows).sort_values(["step_time_s", "bound_s"], ignore_index=True)
        return frame

    @property
    def top(self) -> pd.DataFrame:
        """A row for each simulated point with its figures and command, the best first."""
        rows = [row(self.searched, one) for one in self.searched.ranked]
        return _frame([{**one.pop("settings"), **one} for one in rows])

    @property
    def neighbours(self) -> pd.DataFrame:
        """A row for each option of the best point that is changed by one step, and by which share its step takes longer."""
        return _frame([asdict(one) for one in neighbours_of_best(self.searched)])

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as ``search.json`` holds it."""
        return as_dict(self.searched)

    def save(self, path: PathLike) -> None:
        """Write ``search.json``."""
        with writing_text(path) as file:
            file.write(as_json(self.searched))

    def plot(self, path: PathLike) -> None:
        """Draw the parts of the best points' steps, and time and memory of every point that fits (png, svg, pdf)."""
        write_picture(self.searched, path)

    def __str__(self) -> str:
        return plain_text(render(self.searched), width=80)

    __repr__ = __str__


def _point(one: Outcome) -> dict[str, Any]:
    return {
        **dict(Point.read(one.key).settings),
        "state": one.state,
        "peak_memory_bytes": one.memory and one.memory.peak_bytes,
        "bound_s": one.at_bound and one.at_bound.step_time_s,
        "step_time_s": one.figures and one.figures.step_time_s,
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame: pd.DataFrame = load_pandas().DataFrame(rows)
    return frame
