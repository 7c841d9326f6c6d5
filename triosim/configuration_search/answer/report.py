"""The answer of a search, and its JSON: what was excluded and why, the certificate, the best points and their neighbours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from triosim.configuration_search.answer.likelihood import chance_of_being_faster
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.outcome import Figures, Outcome
from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.rules import broken_rule, rules_without

SCHEMA = "triosim-search/1"

#: How many points are shown, the best first.
SHOWN = 10

#: Losses below this share of a step do not hold it back.
_SMALL = 0.03


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A point one step from the best along an ``axis``: by which share its step is longer, and its objective more.

    With ``at_least`` it was not simulated, and its bound says so much. ``reason`` says why it cannot be run; there is no
    ``change`` then, and where a ``rule`` forbids it, that is its name; what no rule knows is ``refused``.
    """

    axis: str
    value: Value
    change: float | None
    at_least: bool = False
    reason: str = ""
    rule: str = ""
    refused: bool = False
    objective: float | None = None


def neighbours_of_best(found: Searched) -> Iterator[Neighbour]:
    """Yield what it costs to change each option of the best point by one step."""
    if found.best is None or found.best.figures is None:
        return
    best, seconds = Point.read(found.best.key), found.best.figures.step_time_s
    rules = rules_without(found.space.without_rules)
    for axis, point in found.space.neighbours(best):
        value = point.get(axis)
        assert value is not None
        outcome = found.outcomes.get(point.key)
        if outcome is None:
            rule = broken_rule(found.space, point, rules)
            reason, name = ("not found out", "") if rule is None else (f"not so: {rule.text}", rule.name)
            yield Neighbour(axis, value, None, reason=reason, rule=name)
        elif outcome.figures is not None:
            change = outcome.figures.step_time_s / seconds - 1.0
            yield Neighbour(axis, value, change, objective=_more(found, outcome.figures, outcome))
        elif outcome.state == "excluded" and outcome.at_bound is not None:
            change = outcome.at_bound.step_time_s / seconds - 1.0
            yield Neighbour(axis, value, change, at_least=True, objective=_more(found, outcome.at_bound, outcome))
        else:
            reason = reason_of(outcome, found.space.memory_margin)
            yield Neighbour(axis, value, None, reason=reason, refused=outcome.state == "refused")


def _more(found: Searched, figures: Figures, outcome: Outcome) -> float | None:
    """Return by which share a point with these figures has more of the first objective than the best; None if not known."""
    objective, best = found.objectives.all[0], found.best
    assert best is not None
    assert best.figures is not None
    value, of_best = objective.value(figures, outcome.memory), objective.value(best.figures, best.memory)
    return value / of_best - 1.0 if value is not None and of_best else None


def reason_of(outcome: Outcome, margin: float) -> str:
    """Return why a point cannot be run."""
    if outcome.state != "out_of_memory" or outcome.memory is None:
        return outcome.reason
    needed, capacity = outcome.memory.peak_bytes / 2**30, outcome.memory.capacity_bytes / 2**30
    more = f" with {margin:.1%} more" if outcome.memory.fits() else ""
    return f"needs {needed:.1f}{more} of {capacity:.1f} GiB"


def held_back_by(figures: Figures) -> str:
    """Return why a step is not faster: the parts in which GPUs do not compute, the largest first, or that they compute."""
    step = figures.step_time_s
    waiting = max(step - figures.compute_s - figures.exposed_communication_s - figures.launch_wait_s, 0.0)
    losses = {
        "communication": figures.exposed_communication_s,
        "bubble" if figures.bubble_fraction is not None else "waiting": waiting,
        "launches": figures.launch_wait_s,
    }
    large = sorted(
        ((seconds / step, name) for name, seconds in losses.items() if seconds > _SMALL * step), reverse=True
    )
    return ", ".join(name for _, name in large) or "computing"


def certificate(found: Searched) -> str:
    """Return what is proved; "none" where the search was interrupted, or screened by another network."""
    if found.interrupted or found.screened or found.best is None:
        return "none"
    within, margin = found.objectives.within, found.space.memory_margin
    said = "none of the points that the memory rule admits is better"
    if within:
        said += f", and all within {within:.1%} of the best are simulated"
    return f"{said} (by the simulator, with a memory margin of {margin:.1%})"


def chance_of_first(found: Searched) -> float | None:
    """Return how likely the first point is faster than the second, by the doubts about both; None without a second."""
    if len(found.ranked) < 2:
        return None
    first, second = found.ranked[0].figures, found.ranked[1].figures
    assert first is not None
    assert second is not None
    return chance_of_being_faster(first, second)


def as_dict(found: Searched) -> dict[str, Any]:
    """Return the answer as JSON holds it."""
    return {
        "schema": SCHEMA,
        "subject": found.space.subject.name,
        "objectives": [one.name for one in found.objectives.all],
        "within": found.objectives.within,
        "memory_margin": found.space.memory_margin,
        "axes": {axis.name: list(axis.values) for axis in found.space.axes},
        "points": found.validity.points,
        "invalid": dict(found.validity.invalid),
        "out_of_memory": found.count("out_of_memory"),
        "refused": found.count("refused"),
        "excluded_by_bound": found.excluded_by_bound,
        "left": found.left,
        "simulated": found.count("simulated"),
        "gap": found.gap,
        "certificate": certificate(found),
        "chance_first_is_faster": chance_of_first(found),
        "best": None if found.best is None else row(found, found.best),
        "top": [row(found, outcome) for outcome in found.ranked[:SHOWN]],
        "neighbours": [asdict(one) for one in neighbours_of_best(found)],
        "seconds": found.seconds,
    }


def as_json(found: Searched) -> str:
    """Return the answer as JSON text."""
    return json.dumps(as_dict(found), indent=2, allow_nan=False) + "\n"


def row(found: Searched, outcome: Outcome) -> dict[str, Any]:
    """Return a simulated point with its figures and the command that makes it."""
    assert outcome.figures is not None
    memory = outcome.memory
    figures = asdict(outcome.figures)
    del figures["doubts"]
    return {
        "settings": dict(Point.read(outcome.key).settings),
        **figures,
        "peak_memory_bytes": None if memory is None else memory.peak_bytes,
        "capacity_bytes": None if memory is None or math.isinf(memory.capacity_bytes) else memory.capacity_bytes,
        "held_back_by": held_back_by(outcome.figures),
        "command": command_of(found, outcome),
    }


def command_of(found: Searched, outcome: Outcome) -> str:
    """Return the command that simulates a point."""
    return found.space.command(Point.read(outcome.key))
