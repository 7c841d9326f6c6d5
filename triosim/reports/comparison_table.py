"""How a comparison of strategies looks in a terminal."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.text import Text

from triosim.comparison import Comparison
from triosim.reports.plot import mean
from triosim.reports.terminal import percent, table
from triosim.units import format_time


def render(comparison: Comparison) -> RenderableType:
    """Return a comparison as something that rich can show."""
    made = table(
        comparison.title, "strategy", "batch", "step", "compute", "exposed", "idle", "samples/s", "speed-up", "eff."
    )
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
            f"{data.throughput_samples_per_s:,.0f}",
            "" if run.speed_up is None else f"{run.speed_up:.2f}x",
            "" if run.efficiency is None else percent(run.efficiency, 1.0),
        )
        notes.update(dict.fromkeys(data.notes))
    parts: list[RenderableType] = [made]
    for run in comparison.runs:
        if run.result is None:
            parts.append(Text(f"{run.label} cannot run: {run.reason}", style="dim"))
    parts.append(Text("compute, exposed communication, idle: of the step, mean over the GPUs", style="dim"))
    parts.extend(Text(f"note: {note}", style="yellow") for note in notes)
    return Group(*parts)


def as_text(comparison: Comparison, width: int = 100) -> str:
    """Return a comparison as plain text."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(render(comparison))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
