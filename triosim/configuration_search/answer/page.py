"""A page of a search's answer, for ``triosim search --report``."""

from __future__ import annotations

from typing import Any

from triosim.configuration_search.answer.picture import COLOURS, timed_points
from triosim.configuration_search.answer.report import (
    SHOWN,
    Neighbour,
    certificate,
    command_of,
    held_back_by,
    likelihood_of_first,
    neighbours_of_best,
)
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.output_files import PathLike
from triosim.reports.page.document import Document, Section, chart, listed, step_bars, table, text
from triosim.results.memory_rows import GIB
from triosim.units import format_time


def write_search_page(found: Searched, path: PathLike) -> None:
    """Write the best points, their steps, all points by time and memory, what a change costs, and what is proved."""
    best = found.ranked[:SHOWN]
    drawn = chart("points", "Step time and memory of all points that fit")
    sections = [
        Section("best", "The best points", _best(found, best)),
        Section("steps", "Where their time goes", chart("step-bars", "The parts of the best points' steps")),
        Section("every", "All points that fit", drawn if _points(found)["groups"] else ""),
        Section("changes", "What a change of the best one costs", _changes(found)),
        Section("proof", "What is proved", listed(_proved(found))),
    ]
    sections = [one for one in sections if one.body and (best or one.anchor != "steps")]
    values = {"bars": [_steps(found, best)] if best else [], "points": _points(found)}
    Document(f"Search of {found.space.subject.name}", _sentence(found), sections, values).write(path)


def _summary(found: Searched, outcome: Outcome) -> str:
    return found.space.summary(Point.read(outcome.key))


def _sentence(found: Searched) -> str:
    valid, too_large = len(found.validity.valid), found.count("out_of_memory")
    left = f", {found.left:,} are left" if found.left else ""
    counts = (
        f"Of {found.validity.points:,} points, {valid:,} are valid, {too_large:,} need too much memory, "
        f"{found.excluded_by_bound:,} cannot be better, and {found.count('simulated'):,} were simulated{left}"
    )
    if found.sampled:
        counts = f"A sampler drew the points: there may be better ones. {counts}"
    if found.interrupted:
        counts = f"The search was interrupted: there may be better points. {counts}"
    if found.interrupted and found.best is None:
        return f"{counts}."
    if found.best is None or found.best.figures is None:
        return f"{counts}; none could run."
    return f"{counts}. The best is {_summary(found, found.best)}: {format_time(found.best.figures.step_time_s)} a step."


def _best(found: Searched, best: list[Outcome]) -> str:
    rows = []
    for place, one in enumerate(best, 1):
        assert one.figures is not None
        mfu = "" if one.figures.mfu is None else f"{one.figures.mfu:.1%}"
        figures = format_time(one.figures.step_time_s), mfu, _gib(one), held_back_by(one.figures)
        rows.append([f"{place}. {_summary(found, one)}", *figures])
    command = f"<pre>{text(command_of(found, best[0]))}</pre>" if best else ""
    return table(["point", "step", "MFU", "GiB", "held back by"], rows) + command


def _gib(outcome: Outcome) -> str:
    return "" if outcome.memory is None else f"{outcome.memory.peak_bytes / GIB:.3g}"


def _steps(found: Searched, best: list[Outcome]) -> dict[str, Any]:
    means = {_summary(found, one): one.figures.as_rank() for one in best if one.figures is not None}
    return step_bars("step-bars", means)


def _points(found: Searched) -> dict[str, Any]:
    """Return memory, step time and settings of every point that fits, by what became of it."""
    groups = []
    for name, pairs in timed_points(found).items():
        points = [
            [one.memory.peak_bytes / GIB, figures.step_time_s, _summary(found, one)]
            for one, figures in pairs
            if one.memory is not None
        ]
        if points:
            groups.append({"name": name, "colour": COLOURS[name], "points": points})
    return {"groups": groups}


def _changes(found: Searched) -> str:
    return table(["change", "step"], [[f"{one.axis}={one.value}", _cost(one)] for one in neighbours_of_best(found)])


def _cost(one: Neighbour) -> str:
    if one.change is None:
        return one.reason
    return f"{'at least ' * one.at_least}{one.change:+.1%}"


def _proved(found: Searched) -> list[str]:
    likelihood = likelihood_of_first(found)
    likely = [] if likelihood is None else [f"The likelihood {likelihood}."]
    invalid = [f"{count:,} points are invalid by the rule '{rule}'." for rule, count in found.validity.invalid.items()]
    return [f"Certificate: {certificate(found)}.", *likely, *invalid]
