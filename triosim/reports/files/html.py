"""The report ``html``: a result as HTML tables, which is also how a notebook shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from triosim.output_files import PathLike, writing_text
from triosim.reports.terminal.result_tables import rank_columns, spread
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import NO_LAYER, CollectiveTimes, ResultData
from triosim.units import format_bytes, format_rate, format_time

_ROWS = 10


class HtmlReport(Report):
    """A page without scripts or external references."""

    def text(self, subject: Any) -> str:
        """Return the page's body."""
        raise NotImplementedError

    def write(self, subject: Any, path: PathLike) -> None:
        """Write the page."""
        with writing_text(path) as file:
            title = f"<title>{escape(subject.title)}</title>"
            file.write(f'<!doctype html><meta charset="utf-8">{title}{self.text(subject)}\n')


class Html(HtmlReport):
    """A result as tables."""

    def text(self, result: Result) -> str:
        """Return the page's body."""
        data = result.data
        columns = rank_columns(data.ranks)
        parts = [
            f"<h4>{escape(result.title)}</h4>",
            f"<p><b>{format_time(data.step_time_s)}</b> a step{_interval(data)}, "
            f"{format_rate(data.throughput_samples_per_s)} samples/s{_mfu(data)}</p>",
            *([] if data.draws is None else [f"<p>{len(data.draws.step_times_s)} draws: {spread(data.draws)}</p>"]),
            html_table(
                ["rank", *columns],
                [[str(rank.rank), *(format_time(figure(rank)) for figure in columns.values())] for rank in data.ranks],
                _ROWS,
            ),
            html_table(
                ["slowest layers", "forward", "backward", "optimizer", "total"],
                [
                    [
                        row.layer or NO_LAYER,
                        *map(format_time, (row.forward_s, row.backward_s, row.optimizer_s, row.total_s)),
                    ]
                    for row in sorted(data.layers, key=lambda row: -row.total_s)
                ],
                _ROWS,
            ),
            html_table(
                ["transfer", "ranks", "count", "bytes", "time"],
                [
                    [f"{row.kind} {row.axis}", f"{row.group_size}", f"{row.count:g}", *_bytes_and_time(row)]
                    for row in data.collectives
                ],
                _ROWS,
            ),
            *(f"<p>note: {escape(note)}</p>" for note in data.notes),
        ]
        return "".join(parts)


def _bytes_and_time(row: CollectiveTimes) -> tuple[str, str]:
    return format_bytes(row.bytes), format_time(row.total_s)


def _mfu(data: ResultData) -> str:
    return "" if data.metrics is None or data.metrics.mfu is None else f", MFU {data.metrics.mfu:.1%}"


def _interval(data: ResultData) -> str:
    if data.step_time_interval_s is None:
        return ""
    low, high = data.step_time_interval_s
    models = ", ".join(row.model for row in data.predictions)
    by = f"; predicted by {escape(models)}" if models else ""
    return f" ({format_time(low)} to {format_time(high)} is a 90% interval{by})"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int | None = None) -> str:
    """Return an HTML table of at most so many rows, the last line saying how many more there are; "" without rows."""
    if not rows:
        return ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[:most])
    more = 0 if most is None else len(rows) - most
    rest = f'<tr><td colspan="{len(head)}">… {more} more</td></tr>' if more > 0 else ""
    return "<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + f"</tr>{body}{rest}</table>"
