"""A search by a sampler: points are drawn, tried and told, until a budget is spent or no new point is left.

It needs no list of all points, and proves nothing. A point that breaks a rule or does not fit is told to be worse than any that
runs, the worse the more memory it lacks, so that a sampler keeps away; one whose bound is worse than what was found is not
simulated, and the bound is told. A point that is drawn again is told again, and counts once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from triosim.configuration_search.exact import Searched, Tell
from triosim.configuration_search.objectives import Objectives, Scores
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.sampling.attempt import Attempt
from triosim.configuration_search.sampling.budget import Budget
from triosim.configuration_search.sampling.sampler import Sampler
from triosim.configuration_search.spaces.rules import Validity, broken_rule, rules_without
from triosim.configuration_search.spaces.space import Space
from triosim.errors import OptionError

#: Tries points, and yields them with their outcomes in any order; points are drawn when they are needed.
TryAll = Callable[[Iterable[Attempt]], Iterator[tuple[Attempt, Outcome]]]

#: What is told of a point that does not fit, times its memory over the GPU's, and of one that cannot run.
_TOO_LARGE, _CANNOT_RUN = 1e15, 1e30
#: After how many points in a row that are known or break a rule one is drawn at random, and how many of those are drawn.
_PATIENCE, _MOST_AT_RANDOM = 20, 5_000


@dataclass
class SampledSearch:
    """A search under way. ``run`` may be ended by Ctrl-C: what was found until then is its answer.

    ``known`` says what was found of a point before, by its key.
    """

    space: Space
    objectives: Objectives
    sampler: Sampler
    budget: Budget
    try_all: TryAll
    known: Callable[[str], Outcome | None] = lambda _: None
    top: int = 1
    tell: Tell = lambda *_: None
    _began: float = 0.0
    _tried: list[Point] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _told: dict[str, Scores] = field(default_factory=dict)
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _invalid: Counter[str] = field(default_factory=Counter)
    _front: list[Outcome] = field(default_factory=list)

    def run(self) -> Searched:
        """Draw and try points until the budget is spent. Raises ``OptionError`` where no valid point is found."""
        self._began, interrupted = time.monotonic(), False
        try:
            for attempt, outcome in self.try_all(self._drawn()):
                self._keep(attempt, outcome)
        except KeyboardInterrupt:
            interrupted = True
        if not self._tried and not interrupted:
            raise self._none_valid()
        points = len(self._tried) + self._invalid.total()
        validity = Validity(points, tuple(self._tried), dict(self._invalid.most_common()))
        seconds = time.monotonic() - self._began
        return Searched(
            *(self.space, validity, self.objectives, self._outcomes, seconds), interrupted=interrupted, sampled=True
        )

    def _drawn(self) -> Iterator[Attempt]:
        """Yield new points that keep the rules, until the budget is spent or none is found any more."""
        while not self.budget.is_spent(len(self._tried), time.monotonic() - self._began):
            point = self._new_point()
            if point is None:
                return
            self._tried.append(point)
            attempt, known = Attempt(point, self._to_reach()), self.known(point.key)
            if known is not None and (known.state != "excluded" or attempt.is_excluded(known, self.objectives)):
                self._keep(attempt, known)
            else:
                yield attempt

    def _new_point(self) -> Point | None:
        """Return a point to try: the sampler's, or where it draws known ones alone, one at random; None where none is left."""
        for _ in range(_PATIENCE):
            number, point = self.sampler.draw()
            if point.key in self._numbers and point.key not in self._told:  # it is being tried
                self.sampler.forget(number)
            elif self._is_new(point):
                self._numbers[point.key] = number
                return point
            else:
                self.sampler.tell(number, self._told[point.key])
        for _ in range(_MOST_AT_RANDOM):
            parameters, point = self.sampler.at_random()
            if point.key not in self._numbers and self._is_new(point):
                self._numbers[point.key] = self.sampler.adopt(parameters)
                return point
        return None

    def _is_new(self, point: Point) -> bool:
        """Whether a point keeps the rules and nothing is told of it; one that breaks a rule is counted."""
        if point.key in self._told:
            return False
        rule = broken_rule(self.space, point, rules_without(self.space.without_rules))
        if rule is None:
            return True
        self._invalid[rule.name] += 1
        self._told[point.key] = self._scores(_CANNOT_RUN)
        return False

    def _keep(self, attempt: Attempt, outcome: Outcome) -> None:
        self._outcomes[attempt.key] = outcome
        scores = self._told[attempt.key] = self._scores_of(outcome)
        self.sampler.tell(self._numbers[attempt.key], scores)
        self._front = self.objectives.front([*self._front, outcome])
        total = max(self.budget.points or 0, len(self._outcomes))
        self.tell("points", len(self._outcomes), total, self._front)

    def _scores_of(self, outcome: Outcome) -> Scores:
        """Return what is told of a point."""
        if outcome.state == "simulated":
            return tuple(min(score, _CANNOT_RUN) for score in self.objectives.scores(outcome))
        if outcome.state == "excluded":
            return self.objectives.bounds(outcome)
        if outcome.state == "out_of_memory" and outcome.memory is not None:
            return self._scores(_TOO_LARGE * outcome.memory.peak_bytes / outcome.memory.capacity_bytes)
        return self._scores(_CANNOT_RUN)

    def _scores(self, score: float) -> Scores:
        return (score,) * len(self.objectives.all)

    def _to_reach(self) -> tuple[Scores, ...]:
        """Return the scores of which one must be reached by a point for it to be among the best."""
        if len(self.objectives.all) > 1:
            return tuple(map(self.objectives.scores, self.objectives.front(self._outcomes.values())))
        ranked = self.objectives.ranked(self._outcomes.values())
        return (self.objectives.scores(ranked[self.top - 1]),) if len(ranked) >= self.top else ()

    def _none_valid(self) -> OptionError:
        broken = "; ".join(f"{count} break the rule '{name}'" for name, count in self._invalid.most_common())
        fix = "vary over other values, or give --without-rule"
        return OptionError(f"no point that was drawn is valid: {broken}", where="search", fix=fix)
