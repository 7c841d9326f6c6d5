"""The report ``page``: a result for people who were not at the terminal."""

from __future__ import annotations

from typing import Any

from triosim.output_files import PathLike
from triosim.reports.page.document import Document, bars, check_page, step_bars
from triosim.reports.page.memory_curve import MOST_RANKS
from triosim.reports.page.recorded import recorded
from triosim.reports.page.sections import sections, sentence
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import NO_LAYER, STEP_PARTS, RankTimes
from triosim.units import format_ranks

#: What a result that recorded nothing has of ``recorded``.
_NOTHING = {"timeline": None, "link_loads": None, "memory_curve": None}
MOST_LAYERS = 25
MOST_PARTS = 40


class Page(Report):
    """A page of a result, with a timeline, links and memory where they were recorded."""

    records = ("timeline", "links")

    @classmethod
    def check(cls, path: PathLike) -> None:
        """Raise ``OutputError`` for a name that no browser opens as a page."""
        check_page(path)

    def write(self, result: Result, path: PathLike) -> None:
        """Write the page."""
        data = result.data
        values = {
            "step_time_s": data.step_time_s,
            "bars": [one for one in (_parts(result), _layers(result), _what_if(result)) if one["rows"]],
            **_NOTHING,
            **(data.recorded or recorded(result)),
        }
        Document(result.title, sentence(data), list(sections(result, values)), values).write(path)


def _parts(result: Result) -> dict[str, Any]:
    """Return the parts of the step of each GPU; equal ones are one row."""
    same: dict[tuple[float, ...], list[RankTimes]] = {}
    for rank in result.data.ranks:
        same.setdefault(tuple(part.seconds(rank) for part in STEP_PARTS), []).append(rank)
    shown = list(same.values())[:MOST_PARTS]
    labels = (f"GPU {format_ranks((rank.rank for rank in ranks), MOST_RANKS)}" for ranks in shown)
    return step_bars("parts", {label: ranks[0] for label, ranks in zip(labels, shown, strict=True)})


def _layers(result: Result) -> dict[str, Any]:
    slowest = sorted(result.data.layers, key=lambda row: -row.total_s)[:MOST_LAYERS]
    rows = {row.layer or NO_LAYER: (row.forward_s, row.backward_s, row.optimizer_s) for row in slowest}
    return bars("layer-bars", ["forward", "backward", "optimizer"], rows)


def _what_if(result: Result) -> dict[str, Any]:
    data = result.data
    rows = {f"{row.what}, {row.factor:g} times as fast": [row.step_time_s] for row in data.what_if}
    return bars("what-if-bars", ["step time"], {"as it is": [data.step_time_s], **rows} if rows else {})
