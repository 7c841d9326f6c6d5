"""The answer of a search as tables for a terminal, of 80 columns or fewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from triosim.configuration_search.answer.report import (
    SHOWN,
    Neighbour,
    certificate,
    command_of,
    held_back_by,
    likelihood_of_first,
    neighbours_of_best,
    reason_of,
)
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.objectives import Objective, Objectives
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.space import Space
from triosim.reports.terminal.console import new_console
from triosim.reports.terminal.tables import facts_table, note_lines, percent, plain_text, spaced, table
from triosim.results.values import StepPart, step_parts
from triosim.units import format_rate, format_time


def render(found: Searched, commands: bool = False) -> RenderableType:
    """Return the answer as something that rich can show; with ``commands`` those of all points that are shown."""
    title = Text(f"Search of {found.space.subject.name}: {found.validity.points:,} points", style="bold")
    parts: list[RenderableType] = [facts_table(_facts(found))]
    if found.ranked:
        parts += [_best_table(found), *_neighbour_table(found)]
    notes = note_lines(list(_notes(found)))
    shown = [
        # In one line, which can be copied.
        Text(f"{number}. {command_of(found, outcome)}", style="dim", no_wrap=True, overflow="ignore")
        for number, outcome in enumerate(found.ranked[: SHOWN if commands else 1], 1)
    ]
    return Group(title, *spaced(parts), Text(), *shown, *notes)


def _facts(found: Searched) -> Iterator[tuple[str, str]]:
    broken = ", ".join(f"{name} {count:,}" for name, count in found.validity.invalid.items())
    yield "invalid", f"{sum(found.validity.invalid.values()):,}" + (f" (by rule: {broken})" if broken else "")
    yield "out of memory", f"{found.count('out_of_memory'):,}"
    if found.count("refused"):
        yield "refused", f"{found.count('refused'):,}"
    yield "excluded by bound", f"{found.excluded_by_bound:,}"
    if found.left:
        yield "left", f"{found.left:,}"
    yield "simulated", f"{found.count('simulated'):,}, in {format_time(found.seconds)}"
    if found.gap is not None:
        yield "gap", percent(found.gap)
    yield "certificate", certificate(found)
    if (likelihood := likelihood_of_first(found)) is not None:
        yield "likelihood", str(likelihood)


def _best_table(found: Searched) -> RenderableType:
    """Return the best points: a line of figures, and below it the point's settings and what holds it back."""
    has_tokens = all(one.figures is None or one.figures.tokens_per_s for one in found.ranked)
    others = [one.name for one in _unshown(found)]
    parts = _lost_parts(found)
    rate = "tokens/s" if has_tokens else "samples/s"
    columns = ("", "step", rate, "MFU", "GiB", "bubble", *(part.short for part in parts), *others)
    rows = [_row(found, number, one) for number, one in enumerate(found.ranked[:SHOWN], 1)]
    made = table("The best", *columns, rows=rows, main=("step", *others))
    title, header, *lines = plain_text(made, width=min(80, new_console().width)).splitlines()
    shown: list[RenderableType] = [Text(title, style="bold"), Text(header, style="dim")]
    for line, outcome in zip(lines, found.ranked, strict=False):
        assert outcome.figures is not None
        held_back = held_back_by(outcome.figures)
        settings = found.space.summary(Point.read(outcome.key))
        shown += [Text(line), Padding(Text(f"{settings}; held back by {held_back}", style="dim"), (0, 0, 0, 5))]
    meant = ", ".join(f"{part.short}: {part.name}" for part in parts if part.short != part.name)
    legend = f"GiB: tensors of the fullest GPU; {meant}, mean over the GPUs"
    shown += [Text(line, style="dim") for line in (legend, *lines[len(rows) :])]
    return Group(Text(), *shown)


def _lost_parts(found: Searched) -> list[StepPart]:
    """Return the parts of the best points' steps that have columns: those in which GPUs neither compute nor idle."""
    ranks = [one.figures.as_rank() for one in found.ranked[:SHOWN] if one.figures is not None]
    return [part for part in step_parts(ranks) if part.name not in ("compute", "idle")]


def _unshown(found: Searched) -> list[Objective]:
    """Return the objectives that have no column of their own."""
    return [one for one in found.objectives.all if one.name not in ("step-time", "tokens-per-second")]


class FrontTable(NamedTuple):
    """The points of a search that none is better than in all objectives, as a table: the best by the first objective first."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def front_table(space: Space, objectives: Objectives, front: Sequence[Outcome]) -> FrontTable:
    """Return the ``front`` of a space as a table."""
    others = [one for one in objectives.all if one.name != "step-time"]
    return FrontTable(
        ("point", "step", *(one.title for one in others)),
        [
            [space.summary(Point.read(one.key)), format_time(one.figures.step_time_s), *_values(others, one)]
            for one in front
            if one.figures is not None
        ],
    )


def _values(objectives: Sequence[Objective], outcome: Outcome) -> list[str]:
    assert outcome.figures is not None
    values = [one.value(outcome.figures, outcome.memory) for one in objectives]
    return ["" if value is None else f"{value:.4g}" for value in values]


def _named(found: Searched) -> list[str]:
    """Return the name of the first objective, if it has no column of its own."""
    return [one.name for one in _unshown(found) if one is found.objectives.all[0]]


def _row(found: Searched, number: int, outcome: Outcome) -> list[str]:
    figures, memory = outcome.figures, outcome.memory
    assert figures is not None
    extra = _values(_unshown(found), outcome)
    rate = figures.tokens_per_s
    return [
        f"{number}.",
        format_time(figures.step_time_s),
        format_rate(figures.samples_per_s if rate is None else rate),
        "" if figures.mfu is None else percent(figures.mfu),
        "" if memory is None else f"{memory.peak_bytes / 2**30:.3g}",
        "" if figures.bubble_fraction is None else percent(figures.bubble_fraction),
        *(percent(part.seconds(figures.as_rank()), figures.step_time_s) for part in _lost_parts(found)),
        *extra,
    ]


def _neighbour_table(found: Searched) -> Iterator[RenderableType]:
    """Yield what it costs to change an option of the best, without what a rule forbids; notes say why one is refused."""
    named, most = _named(found), found.objectives.all[0].is_larger_better
    rows = [
        (f"{one.axis}={one.value}", _change(one), *(_more(one, most=most) for _ in named))
        for one in neighbours_of_best(found)
        if not one.rule
    ]
    header = "changed", "step time", *named
    if rows:
        yield Group(Text(), Text("One step from the best", style="bold"), table("", *header, rows=rows))


def _more(one: Neighbour, *, most: bool) -> str:
    if one.objective is None:
        return ""
    bound = "at most" if most else "at least"
    return f"{bound} {one.objective:+.1%}" if one.at_least else f"{one.objective:+.1%}"


def _change(one: Neighbour) -> str:
    if one.change is None:
        return "refused" if one.refused else one.reason
    return f"at least {one.change:+.1%}" if one.at_least else f"{one.change:+.1%}"


def _least_memory(found: Searched) -> str | None:
    """Return what the point needs that needs least memory; None where all are refused."""
    weighed = [(one.memory.peak_bytes, one) for one in found.outcomes.values() if one.memory is not None]
    if not weighed:
        return None
    _, least = min(weighed, key=lambda pair: (pair[0], pair[1].key))
    return f"{found.space.summary(Point.read(least.key))} {reason_of(least, found.space.memory_margin)}"


def _at_least(found: Searched, outcome: Outcome) -> str:
    """Return a point that was weighed, and what its step takes at least."""
    summary, bound = found.space.summary(Point.read(outcome.key)), outcome.at_bound
    return summary if bound is None else f"{summary}: its step takes {format_time(bound.step_time_s)} or more"


def _notes(found: Searched) -> Iterator[str]:
    if found.interrupted:
        yield "the search was interrupted: there may be better points"
        if found.best is None and (first := found.next) is not None:
            yield f"all points are weighed before the first is simulated, which would be {_at_least(found, first)}"
    elif found.sampled and found.best is not None:
        yield "a sampler drew the points: there may be better ones"
    elif found.screened:
        yield "the points that were simulated are the best on another network: there may be better ones"
    elif found.best is None and found.count("simulated"):
        yield "no point reaches what the objective asks for"
    elif found.best is None and (least := _least_memory(found)) is not None:
        yield f"no point fits: {least}"
    reasons = dict.fromkeys(one.reason for one in found.outcomes.values() if one.state == "refused")
    yield from (f"refused: {reason}" for reason in list(reasons)[:3])
