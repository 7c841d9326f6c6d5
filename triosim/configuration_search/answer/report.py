"""The answer of a search, and its JSON: what was excluded and why, the certificate, the best points and their neighbours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from triosim.configuration_search.answer.likelihood import chance_of_being_better
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.objectives import Objective
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
        if outcome is None and found.sampled:
            continue
        if outcome is None:
            rule = broken_rule(found.space, point, rules)
            reason, name = ("not found out", "") if rule is None else (f"against the rule that {rule.text}", rule.name)
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
    """Return by which share a point with these figures has more of the first objective than the best.

    None where that is not known, or the point does not reach what is asked for.
    """
    objective, best = found.objectives.all[0], found.best
    assert best is not None
    assert best.figures is not None
    value, of_best = objective.value(figures, outcome.memory), objective.value(best.figures, best.memory)
    return value / of_best - 1.0 if value is not None and math.isfinite(value) and of_best else None


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
    known = figures.compute_s + figures.exposed_communication_s + figures.host_s + figures.launch_wait_s
    waiting = max(step - known, 0.0)
    losses = {
        "communication": figures.exposed_communication_s,
        "the host's computation": figures.host_s,
        "bubble" if figures.bubble_fraction is not None else "waiting": waiting,
        "launches": figures.launch_wait_s,
    }
    large = sorted(
        ((seconds / step, name) for name, seconds in losses.items() if seconds > _SMALL * step), reverse=True
    )
    return ", ".join(name for _, name in large) or "computing"


def certificate(found: Searched) -> str:
    """Return what is proved; "none" where the search was interrupted, screened by another network, or sampled."""
    if found.interrupted or found.screened or found.sampled or found.best is None:
        return "none"
    within, margin = found.objectives.within, found.space.memory_margin
    said = "none of the points that the memory rule admits is better"
    if within:
        said += f", and all within {within:.1%} of the best are simulated"
    return f"{said} (by the simulator, with a memory margin of {margin:.1%})"


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely the first point is ``better`` (faster, cheaper) than the second."""

    chance: float
    better: str

    def __str__(self) -> str:
        return f"that the first is {self.better} than the second: {self.chance:.0%}"


def likelihood_of_first(found: Searched) -> Likelihood | None:
    """Return how likely the first point is better than the second by the first objective, given the doubts about both.

    None without a second, or where that does not follow from the steps' times.
    """
    objective = found.objectives.all[0]
    return None if objective.better is None else _likelihood(found, objective)


def _likelihood(found: Searched, objective: Objective) -> Likelihood | None:
    if len(found.ranked) < 2:
        return None
    if objective.name == "p90-step-time":  # which holds the doubts already
        objective = Objective("step-time")
    (first, own), (second, other) = ((one.figures, one.memory) for one in found.ranked[:2])
    assert first is not None
    assert second is not None
    ratio = objective.score(second, other) / objective.score(first, own)
    return Likelihood(chance_of_being_better(first, second, ratio), objective.better or "")


def as_dict(found: Searched) -> dict[str, Any]:
    """Return the answer as JSON holds it."""
    faster, better = _likelihood(found, Objective("step-time")), likelihood_of_first(found)
    return {
        "schema": SCHEMA,
        "subject": found.space.subject.name,
        "objectives": [one.name for one in found.objectives.all],
        "within": found.objectives.within,
        "memory_margin": found.space.memory_margin,
        "axes": dict(axis.plain() for axis in found.space.axes),
        "sampled": found.sampled,
        "points": found.validity.points,
        "invalid": dict(found.validity.invalid),
        "out_of_memory": found.count("out_of_memory"),
        "refused": found.count("refused"),
        "excluded_by_bound": found.excluded_by_bound,
        "left": found.left,
        "simulated": found.count("simulated"),
        "gap": found.gap,
        "certificate": certificate(found),
        "chance_first_is_faster": None if faster is None else faster.chance,
        "chance_first_is_better": None if better is None else better.chance,
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
