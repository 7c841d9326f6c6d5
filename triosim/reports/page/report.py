"""The report ``page``: a result for people who were not at the terminal."""

from __future__ import annotations

from typing import Any

from triosim.output_files import PathLike
from triosim.reports.page.document import Document, bars, check_page
from triosim.reports.page.recorded import recorded
from triosim.reports.page.sections import sections, sentence
from triosim.results.exposure import causes
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.units import format_ranks

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
            **(data.recorded or recorded(result)),
        }
        Document(result.title, sentence(data), list(sections(result, values)), values).write(path)


def _parts(result: Result) -> dict[str, Any]:
    """Return the parts of the step of each GPU; equal ones are one row."""
    waiting = _exposed_waiting(result)
    both = "exposed communication or waiting"
    columns = ["compute", *(["exposed communication", "waiting for a partner"] if waiting else [both]), "idle"]
    same: dict[tuple[float, ...], list[int]] = {}
    for rank in result.data.ranks:
        exposed = rank.exposed_communication_s
        apart = (exposed - waiting[rank.rank], waiting[rank.rank]) if waiting else (exposed,)
        same.setdefault((rank.compute_s, *apart, rank.idle_s), []).append(rank.rank)
    shown = list(same.items())[:MOST_PARTS]
    return bars("parts", columns, {f"GPU {format_ranks(ranks)}": parts for parts, ranks in shown})


def _exposed_waiting(result: Result) -> dict[int, float]:
    """Return the seconds of a step in which each rank computes nothing and all its transfers wait; none in a file's result."""
    if result.recording is None:
        return {}
    steps = max(1, len(result.data.iterations))
    return {
        record.rank: sum(waiting for _, waiting in causes(record).values()) / steps for record in result.recording.ranks
    }


def _layers(result: Result) -> dict[str, Any]:
    slowest = sorted(result.data.layers, key=lambda row: -row.total_s)[:MOST_LAYERS]
    rows = {row.layer: (row.forward_s, row.backward_s, row.optimizer_s) for row in slowest}
    return bars("layer-bars", ["forward", "backward", "optimizer"], rows)


def _what_if(result: Result) -> dict[str, Any]:
    data = result.data
    rows = {f"{row.what}, {row.factor:g} times as fast": [row.step_time_s] for row in data.what_if}
    return bars("what-if-bars", ["step time"], {"as it is": [data.step_time_s], **rows} if rows else {})
