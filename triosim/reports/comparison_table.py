"""How a comparison of strategies looks in a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.text import Text

from triosim.comparison import Comparison
from triosim.reports.plot import mean
from triosim.reports.ranges import format_rate
from triosim.reports.terminal import percent, table
from triosim.units import format_time

_NUMBER = re.compile(r"(\d+)")


def render(comparison: Comparison) -> RenderableType:
    """Return a comparison as something that rich can show."""
    made = table(
        comparison.title, "strategy", "batch", "step", "compute", "exposed", "idle", "samples/s", "speed-up", "eff."
    )
    made.columns[0].no_wrap = True
    notes: dict[str, None] = {}
    for run in comparison.runs:
        if run.result is None:
            continue
        data = run.result.data
        average = mean(data.ranks, 0)
        made.add_row(
            run.label,
            f"{data.global_batch_size:,}",
            format_time(data.step_time_s),
            percent(average.compute_s, data.step_time_s),
            percent(average.exposed_communication_s, data.step_time_s),
            percent(average.idle_s, data.step_time_s),
            format_rate(data.throughput_samples_per_s),
            "" if run.speed_up is None else f"{run.speed_up:.2f}x",
            "" if run.efficiency is None else percent(run.efficiency, 1.0),
        )
        notes.update(dict.fromkeys(data.notes))
    parts: list[RenderableType] = [made]
    for run in comparison.runs:
        if run.result is None:
            parts.append(Text(f"{run.label} cannot run: {run.reason}", style="dim"))
    legend = "compute, exposed communication, idle: of the step, mean over the GPUs"
    if any("M=" in run.label for run in comparison.runs):
        legend += "; M: micro-batches"
    parts.append(Text(legend, style="dim"))
    parts.extend(Text(f"note: {note}", style="yellow") for note in merged(notes))
    return Group(*parts)


def merged(notes: Iterable[str]) -> list[str]:
    """Return the notes with those in one that differ in a single number: "predicted for 4, 16 or 64"."""
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for note in notes:
        pieces = _NUMBER.split(note)  # words at even places, numbers at odd ones
        groups.setdefault(tuple(pieces[::2]), []).append(pieces)
    found: list[str] = []
    for members in groups.values():
        columns = [list(dict.fromkeys(column)) for column in zip(*members, strict=True)]
        if sum(len(column) > 1 for column in columns) > 1:
            found.extend("".join(pieces) for pieces in members)
        else:
            found.append("".join(_any_of(column) for column in columns))
    return found


def _any_of(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    *most, last = sorted(numbers, key=int)
    return f"{', '.join(most)} or {last}"


def as_text(comparison: Comparison, width: int = 100) -> str:
    """Return a comparison as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(render(comparison))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
