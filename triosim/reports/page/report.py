"""The report ``page``: one HTML file for people who were not at the terminal, which opens without a network.

Its charts are drawn by Apache ECharts 6.1.0 (``assets/echarts.min.js``, under its own license), which is inside of the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from triosim.errors import OutputError
from triosim.output_files import PathLike, writing_text
from triosim.reports.page.recorded import recorded
from triosim.reports.page.sections import sections, sentence, text
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
        if Path(path).suffix not in (".html", ".htm"):
            raise OutputError(f"'{Path(path).suffix}' is no page", where=str(path), fix="end the name in .html")

    def write(self, result: Result, path: PathLike) -> None:
        """Write the page."""
        page = {**_figures(result), **(result.data.recorded or recorded(result))}
        with writing_text(path) as file:
            file.write(_html(result, page))


def _html(result: Result, page: Mapping[str, Any]) -> str:
    found = list(sections(result, page))
    return Template(_asset("page.html")).substitute(
        title=text(result.title),
        sentence=text(sentence(result.data)),
        contents="".join(f'<a href="#{one.anchor}">{one.heading}</a>' for one in found),
        sections="\n".join(f'<section id="{one.anchor}"><h2>{one.heading}</h2>{one.body}</section>' for one in found),
        data=json.dumps(page, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        style=_asset("page.css"),
        library=_asset("echarts.min.js"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return files("triosim.reports.page").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _figures(result: Result) -> dict[str, Any]:
    """Return what is drawn of every result."""
    data = result.data
    layers = sorted(data.layers, key=lambda row: -row.total_s)[:MOST_LAYERS]
    return {
        "step_time_s": data.step_time_s,
        "parts": _parts(result),
        "layers": [{"label": row.layer, "values": [row.forward_s, row.backward_s, row.optimizer_s]} for row in layers],
        "what_if": [
            {"label": "as it is", "values": [data.step_time_s]},
            *({"label": f"{row.what} x {row.factor:g}", "values": [row.step_time_s]} for row in data.what_if),
        ]
        if data.what_if
        else [],
    }


def _parts(result: Result) -> list[dict[str, Any]]:
    """Return the parts of the step of each GPU by name; equal ones are one row."""
    waiting = _exposed_waiting(result)
    same: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for rank in result.data.ranks:
        if waiting:
            moving = rank.exposed_communication_s - waiting[rank.rank]
            exposed = {"exposed communication": moving, "waiting for a partner": waiting[rank.rank]}
        else:
            exposed = {"exposed communication or waiting": rank.exposed_communication_s}
        parts = {"compute": rank.compute_s, **exposed, "idle": rank.idle_s}
        same.setdefault(tuple(parts.items()), []).append(rank.rank)
    rows = [{"label": f"GPU {format_ranks(ranks)}", "parts": dict(parts)} for parts, ranks in same.items()]
    return rows[:MOST_PARTS]


def _exposed_waiting(result: Result) -> dict[int, float]:
    """Return the seconds of a step in which each rank computes nothing and all its transfers wait; none in a file's result."""
    if result.recording is None:
        return {}
    steps = max(1, len(result.data.iterations))
    return {
        record.rank: sum(waiting for _, waiting in causes(record).values()) / steps for record in result.recording.ranks
    }
