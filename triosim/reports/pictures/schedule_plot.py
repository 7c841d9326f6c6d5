"""A picture of a pipeline schedule: a row for each rank, a box with the micro-batch's number for each action.

Colours are Paul Tol's "bright" scheme. A rank's stages after its first are lighter, and what runs side by side is drawn half as
high.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from triosim.comparison.schedule_alone import ScheduleRun, TimedAction
from triosim.extrapolators.core.schedule_table import ActionPhase
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import bare, legend, new_figure, save_figure

COLOURS: dict[ActionPhase, str] = {"forward": "#4477AA", "backward": "#66CCEE", "input": "#CCBB44", "weight": "#228833"}
LABELS: dict[ActionPhase, str] = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward, for the input",
    "weight": "backward, for the weights",
}

_HEIGHT = 0.8
#: Numbers in boxes that are narrower than this part of the picture cannot be read: where one is, no box has its number.
_NARROWEST = 1 / 90


def write_schedule_plot(run: ScheduleRun, path: PathLike) -> None:
    """Draw a schedule that ran."""
    ranks = len(run.schedule.rows)
    figure = new_figure(path, height=1.3 + 0.42 * max(ranks, 2))
    axes = figure.subplots()
    slots = [list(slot) for _, slot in groupby(run.ran, key=lambda one: (one.rank, one.slot))]
    numbered = all(_end(slot) - min(one.start for one in slot) >= _NARROWEST * run.seconds for slot in slots)
    for slot in slots:
        _slot(axes, run, slot, numbered)
    axes.set_xlim(0, run.seconds)
    axes.set_ylim(ranks - 0.4, -0.6)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xlabel("time (s)")
    bare(axes)
    phases = {one.action.phase for one in run.ran}
    legend(axes, {LABELS[phase]: colour for phase, colour in COLOURS.items() if phase in phases})
    idle = sum(run.bubble(rank) for rank in range(ranks)) / ranks
    figure.suptitle(
        f"{run.name}: {ranks} ranks, {run.schedule.micro_batches} micro-batches, bubble {idle / run.seconds:.1%} of the step",
        fontsize=11,
    )
    save_figure(figure, path)


def _end(slot: list[TimedAction]) -> float:
    return max(one.end for one in slot)


def _slot(axes: Any, run: ScheduleRun, slot: list[TimedAction], numbered: bool) -> None:
    """Draw the actions of one slot, which run at the same time."""
    start, end = min(one.start for one in slot), _end(slot)
    height = _HEIGHT / len(slot)
    for lane, one in enumerate(slot):
        top = one.rank - _HEIGHT / 2 + lane * height
        shade = run.schedule.stages_of(one.rank).index(one.action.stage)
        colour = _lighter(COLOURS[one.action.phase], shade)
        axes.broken_barh([(start, end - start)], (top, height), facecolor=colour, edgecolor="white", linewidth=0.6)
        if numbered:
            axes.text(
                (start + end) / 2,
                top + height / 2,
                str(one.action.micro_batch),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if one.action.phase in ("forward", "weight") and not shade else "black",
            )


def _lighter(colour: str, steps: int) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    kept = 0.6**steps
    return tuple(1 - kept * (1 - part) for part in to_rgb(colour))
