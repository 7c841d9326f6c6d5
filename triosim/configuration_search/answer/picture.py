"""A picture of a search: the parts of the best points' steps, and the memory and step time of every point that fits.

A point that was not simulated is drawn at its lower bound. Of several objectives, the points that none dominates are ringed.
"""

from __future__ import annotations

from typing import Any

from triosim.configuration_search.exact import Searched
from triosim.configuration_search.outcome import Figures, Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.space import Space
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import bare, draw_step_parts, legend, new_figure, save_figure, unit_of
from triosim.results.values import step_of

#: How many of the best points are drawn as bars.
_BEST = 10

COLOURS = {"simulated": "#4477AA", "not simulated, at its bound": "#CCCCCC", "none better in all objectives": "#EE6677"}


def write_picture(found: Searched, path: PathLike) -> None:
    """Draw a search as a picture (png, svg, pdf); one that simulated nothing has no bars. Raises ``OutputError``."""
    best = found.ranked[:_BEST]
    figure = new_figure(path, height=2.2 + 0.42 * max(4, len(best)))
    bars, points = figure.subplots(1, 2, width_ratios=[1.3, 1])
    if best:
        _bars(bars, found.space, best)
    _points(points, found)
    figure.suptitle(
        f"{found.space.subject.name}: {found.count('simulated'):,} of {len(found.outcomes):,} points simulated"
    )
    save_figure(figure, path)


def _bars(axes: Any, space: Space, best: list[Outcome]) -> None:
    every = [(Point.read(one.key), one.figures) for one in best if one.figures is not None]
    ranks = [figures.as_rank(row) for row, (_, figures) in enumerate(every)]
    draw_step_parts(axes, ranks)
    unit, scale = unit_of(max(map(step_of, ranks)))
    for row, (_, figures) in enumerate(every):
        axes.text(step_of(ranks[row]) * scale, row, f" {figures.step_time_s * scale:.4g}", va="center", fontsize=8)
    axes.set_yticks(range(len(every)), [_wrapped(space.summary(point)) for point, _ in every], fontsize=7)
    axes.set_ylim(len(every) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xlabel(f"step time, mean over the GPUs ({unit})")


def _wrapped(text: str, width: int = 44) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def timed_points(found: Searched) -> dict[str, list[tuple[Outcome, Figures]]]:
    """Return the points that fit with their figures, or with their bounds, by what became of them."""
    fitting = [(one, one.figures or one.at_bound) for one in found.outcomes.values() if one.memory is not None]
    timed = [(one, figures) for one, figures in fitting if figures is not None]
    front = {one.key for one in found.objectives.front(found.ranked)} if len(found.objectives.all) > 1 else set()
    return {
        "not simulated, at its bound": [pair for pair in timed if pair[0].figures is None],
        "simulated": [pair for pair in timed if pair[0].figures is not None],
        "none better in all objectives": [pair for pair in timed if pair[0].key in front],
    }


def _points(axes: Any, found: Searched) -> None:
    """Draw step time and memory of every point that fits."""
    groups = timed_points(found)
    every = [figures.step_time_s for pairs in groups.values() for _, figures in pairs]
    unit, scale = unit_of(max(every, default=1.0))
    for kind, pairs in groups.items():
        times = [figures.step_time_s * scale for _, figures in pairs]
        memory = [one.memory.peak_bytes / 2**30 for one, _ in pairs if one.memory is not None]
        axes.scatter(times, memory, s=14, color=COLOURS[kind], linewidth=0, zorder=3)
    axes.set_xlabel(f"step time ({unit})")
    axes.set_ylabel("memory of the fullest GPU (GiB)")
    bare(axes)
    legend(axes, {kind: COLOURS[kind] for kind, pairs in groups.items() if pairs}, columns=2)
