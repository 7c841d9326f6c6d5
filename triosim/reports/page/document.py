"""A page: its sections in HTML, and the values that its script draws charts from.

Charts are drawn by Apache ECharts 6.1.0 (``assets/echarts.min.js``, under its own license), which is inside of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from triosim.errors import OutputError, printable
from triosim.output_files import STANDARD_OUTPUT, PathLike, writing_text
from triosim.reports.colours import ACTIVITY_COLOURS, CATEGORY_COLOURS
from triosim.reports.files.html import html_table
from triosim.results.values import RankTimes, step_parts

MOST_ROWS = 30  # of a table
_FIGURE = re.compile(r"^([-+]?[0-9][0-9.,]*) (\S+)$")
#: By the names that pages give activities, parts of a step and categories of memory.
_COLOURS = {**ACTIVITY_COLOURS, **{name.replace("_", " "): colour for name, colour in CATEGORY_COLOURS.items()}}


class Section(NamedTuple):
    """A section of a page: its anchor, its heading and what stands below it."""

    anchor: str
    heading: str
    body: str


@dataclass(frozen=True, slots=True)
class Document:
    """A page. ``values`` are what its charts are drawn from: "bars" (``bars``), "timeline", "memory_curve", "link_loads"."""

    title: str
    sentence: str
    sections: Sequence[Section]
    values: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: PathLike) -> None:
        """Write the page as one HTML file."""
        values = {"colours": _COLOURS, **self.values}
        page = Template(_asset("page.html")).substitute(
            title=text(self.title),
            sentence=text(self.sentence),
            contents="".join(f'<a href="#{one.anchor}">{one.heading}</a>' for one in self.sections),
            sections="\n".join(
                f'<section id="{one.anchor}"><h2>{one.heading}</h2>{one.body}</section>' for one in self.sections
            ),
            data=json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
            style=_asset("page.css"),
            library=_asset("echarts.min.js"),
            script=_asset("page.js"),
        )
        with writing_text(path) as file:
            file.write(page)


def check_page(path: PathLike) -> None:
    """Raise ``OutputError`` for a name that no browser opens as a page."""
    if Path(path).suffix not in (".html", ".htm") and str(path) != STANDARD_OUTPUT:
        raise OutputError(f"'{Path(path).suffix}' is no page", where=str(path), fix="end the name in .html")


def bars(anchor: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]], unit: str = "s") -> dict[str, Any]:
    """Return stacked bars for the chart of this anchor: a row each, with a value for each column. ``unit`` is "s" or ""."""
    shown = [{"label": label, "values": list(values)} for label, values in rows.items()]
    return {"anchor": anchor, "columns": list(columns), "rows": shown, "unit": unit}


def step_bars(anchor: str, ranks: Mapping[str, RankTimes]) -> dict[str, Any]:
    """Return the parts of the steps of ranks, by their labels, as bars."""
    parts = step_parts(ranks.values())
    rows = {label: [part.seconds(rank) for part in parts] for label, rank in ranks.items()}
    return bars(anchor, [part.name for part in parts], rows)


def text(value: object) -> str:
    """Return a value as HTML text."""
    return escape(printable(str(value)))


def chart(anchor: str, label: str) -> str:
    """Return the place of a chart; ``label`` says to those who do not see it what it shows."""
    return f'<div class="chart" id="{anchor}" role="img" aria-label="{escape(label)}"></div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> str:
    """Return a table of at most so many rows; figures keep their units on their line."""
    shown = [[_kept_together(printable(cell)) for cell in row] for row in rows]
    return f'<div class="scroll">{html_table(head, shown, most)}</div>'


def _kept_together(cell: str) -> str:
    return _FIGURE.sub("\\1\N{NO-BREAK SPACE}\\2", cell)


def details(summary: str, body: str) -> str:
    """Return what is shown when one asks for it."""
    return f"<details><summary>{summary}</summary>{body}</details>"


def listed(lines: Sequence[str]) -> str:
    """Return sentences as a list."""
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _asset(name: str) -> str:
    return files("triosim.reports.page").joinpath("assets").joinpath(name).read_text(encoding="utf-8")
