"""The report ``html``: a result as HTML tables, which is also how a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from triosim.output_files import PathLike, writing_text
from triosim.reports.terminal.result_tables import spread
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import ResultData
from triosim.units import format_bytes, format_rate, format_time

_ROWS = 10
_OF_RANK = ("compute", "communication", "exposed_communication", "waiting", "idle")


class Html(Report):
    """A page without scripts or outside references."""

    def write(self, result: Result, path: PathLike) -> None:
        """Write the page."""
        with writing_text(path) as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><title>{escape(result.title)}</title>{self.text(result)}\n'
            )

    def text(self, result: Result) -> str:
        """Return the page's body."""
        data = result.data
        parts = [
            f"<h4>{escape(result.title)}</h4>",
            f"<p><b>{format_time(data.step_time_s)}</b> a step{_interval(data)}, "
            f"{format_rate(data.throughput_samples_per_s)} samples/s{_mfu(data)}</p>",
            *([] if data.draws is None else [f"<p>{len(data.draws.step_times_s)} draws: {spread(data.draws)}</p>"]),
            html_table(
                ["rank", "compute", "communication", "exposed", "waiting", "idle"],
                (
                    [str(rank.rank), *(format_time(getattr(rank, f"{name}_s")) for name in _OF_RANK)]
                    for rank in data.ranks[:_ROWS]
                ),
                len(data.ranks) - _ROWS,
            ),
            html_table(
                ["slowest layers", "forward", "backward", "optimizer", "total"],
                (
                    [
                        layer.layer,
                        *map(format_time, (layer.forward_s, layer.backward_s, layer.optimizer_s, layer.total_s)),
                    ]
                    for layer in sorted(data.layers, key=lambda layer: -layer.total_s)[:_ROWS]
                ),
                len(data.layers) - _ROWS,
            ),
            html_table(
                ["transfer", "ranks", "count", "bytes", "time"],
                (
                    [
                        f"{row.kind} {row.axis}",
                        str(row.group_size),
                        f"{row.count:g}",
                        format_bytes(row.bytes),
                        format_time(row.total_s),
                    ]
                    for row in data.collectives[:_ROWS]
                ),
                len(data.collectives) - _ROWS,
            ),
            *(f"<p>note: {escape(note)}</p>" for note in data.notes),
        ]
        return "".join(parts)


def _mfu(data: ResultData) -> str:
    return "" if data.metrics is None or data.metrics.mfu is None else f", MFU {data.metrics.mfu:.1%}"


def _interval(data: ResultData) -> str:
    if data.step_time_interval_s is None:
        return ""
    low, high = data.step_time_interval_s
    models = ", ".join(row.model for row in data.predictions)
    return f" ({format_time(low)} to {format_time(high)} is a 90% interval; predicted by {escape(models)})"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], more: int) -> str:
    """Return an HTML table, whose last row says how many ``more`` rows there are; an empty text for a table without rows."""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return ""
    rest = f'<tr><td colspan="{len(head)}">… {more} more</td></tr>' if more > 0 else ""
    return "<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + f"</tr>{body}{rest}</table>"
