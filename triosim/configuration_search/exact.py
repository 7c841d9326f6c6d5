"""Exact search: finds the best points of a space, and proves that no other is better under the simulator.

Every valid point is weighed: one that does not fit is never timed. The others are simulated in the order of their lower bounds,
until the next bound is worse than the last of the ``top`` best points, and than the best by more than the objectives' share
``within``: then no point that is left can be among them. Of several objectives, a point is left out if a simulated one is as
good as its bounds in all, and better in one. What an objective knows no bound of leaves out nothing.

A search may be *screened* by another network: then it is done on that one, and the best points that it finds are all that is
simulated. This proves nothing, but the bounds still say how much better a point that is left may be.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from triosim.configuration_search.memory_order import implied, weighing_order
from triosim.configuration_search.objectives import Objectives, Scores
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.rules import Validity, validity_of
from triosim.configuration_search.spaces.space import Space
from triosim.errors import OptionError

#: Finds out something of points, and yields them with their outcomes in any order; points are drawn when they are needed.
Evaluate = Callable[[Iterable[Point]], Iterator[tuple[Point, Outcome]]]

#: The phase of a search in which points are simulated.
SIMULATIONS = "simulations"

#: Called with the phase of a search, how many of how many points are done at most, and the best points so far: those that none
#: is better than in all objectives, the best by the first objective first.
Tell = Callable[[str, int, int, Sequence[Outcome]], None]


@dataclass(frozen=True)
class Searched:
    """The outcome of a search: of every valid point what was found, by its key.

    ``interrupted`` says that not all points were weighed or not all bounds were met, ``screened`` that another network chose
    the points that were simulated, ``sampled`` that a sampler drew those that count as points at all; of none of these anything
    is proved.
    """

    space: Space
    validity: Validity
    objectives: Objectives
    outcomes: Mapping[str, Outcome]
    seconds: float
    interrupted: bool = False
    screened: bool = False
    sampled: bool = False

    def count(self, state: str) -> int:
        """Return how many valid points are in a state."""
        return self._counts[state]

    @cached_property
    def ranked(self) -> list[Outcome]:
        """The simulated points, the best first; of several objectives, those that no other dominates before the others."""
        return self.objectives.ranked(self.outcomes.values())

    @property
    def best(self) -> Outcome | None:
        """The best point; None where none was simulated, or none reaches what is asked for."""
        return self.ranked[0] if self.ranked else None

    @property
    def next(self) -> Outcome | None:
        """The point that would be simulated next: of those that were weighed, the one with the lowest bounds."""
        waiting = [one for one in self.outcomes.values() if one.state == "excluded"]
        return min(waiting, key=lambda one: (self.objectives.bounds(one), one.key), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether every point was weighed, and every one that may be among the best was simulated."""
        return not self.left

    @property
    def left(self) -> int:
        """How many valid points were not weighed, or may be better than the best and were not simulated."""
        return len(self.validity.valid) - len(self.outcomes) + self.count("excluded") - self.excluded_by_bound

    @cached_property
    def excluded_by_bound(self) -> int:
        """How many points are worse than the best by their bounds."""
        bounds = [self.objectives.bounds(one) for one in self.outcomes.values() if one.state == "excluded"]
        front = [self.objectives.scores(one) for one in self.objectives.front(self.outcomes.values())]
        return sum(any(self.objectives.excludes(scores, bound) for scores in front) for bound in bounds)

    @property
    def gap(self) -> float | None:
        """By which share of the best score one that was not simulated may be better, by its bound.

        None without a best, or where not all points are known.
        """
        if self.best is None or self.sampled:
            return None
        best, *_ = self.objectives.scores(self.best)
        left = (self.objectives.bounds(one)[0] for one in self.outcomes.values() if one.state == "excluded")
        least = min(left, default=best)
        return max(best - least, 0.0) / best if best else 0.0

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(one.state for one in self.outcomes.values())


def searched_by_study(space: Space, objectives: Objectives, outcomes: Mapping[str, Outcome]) -> Searched:
    """Return the search that has found these outcomes so far, those that follow from others included."""
    if not space.is_finite:
        points = tuple(map(Point.read, outcomes))
        return Searched(space, Validity(len(points), points, {}), objectives, outcomes, 0.0, sampled=True)
    validity, known = validity_of(space), dict(outcomes)
    for point in weighing_order(space, validity.valid):
        if point.key not in known and (outcome := implied(space, point, known)) is not None:
            known[point.key] = outcome
    found = Searched(space, validity, objectives, known, 0.0)
    return replace(found, interrupted=not found.is_complete)


@dataclass
class Search:
    """A search under way. ``run`` may be ended by Ctrl-C: what was found until then is its answer.

    ``screen`` simulates points on another network.
    """

    space: Space
    validity: Validity
    objectives: Objectives
    weigh: Evaluate
    simulate: Evaluate
    top: int = 1
    tell: Tell = lambda *_: None
    screen: Evaluate | None = None
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    #: Of one objective the best scores, of several those that none dominates.
    _scores: list[Scores] = field(default_factory=list)
    _front: list[Outcome] = field(default_factory=list)

    def run(self) -> Searched:
        """Weigh every valid point, and simulate those that may be the best."""
        began, interrupted = time.monotonic(), False
        try:
            self._weigh()
            self._simulate(self.validity.valid if self.screen is None else self._screened(self.screen))
        except KeyboardInterrupt:
            interrupted = True
        seconds = time.monotonic() - began
        screened = self.screen is not None
        return Searched(self.space, self.validity, self.objectives, self._outcomes, seconds, interrupted, screened)

    def _weigh(self) -> None:
        points = weighing_order(self.space, self.validity.valid)
        for point, outcome in self.weigh(self._worth_weighing(points)):
            self._outcomes[point.key] = outcome
            self.objectives.bounds(outcome)  # an objective that is not known is refused at once
            self._keep(outcome)  # of a study that goes on
            self.tell("memory and bounds", len(self._outcomes), len(points), self._front)
        if all(one.state == "refused" for one in self._outcomes.values()):
            reason = self._outcomes[points[0].key].reason
            what = f"none of the {len(points):,} valid points can run: {reason}"
            raise OptionError(what, where="search", fix="vary over other values")

    def _worth_weighing(self, points: Iterable[Point]) -> Iterator[Point]:
        """Yield the points that may fit by what is found so far."""
        for point in points:
            if (outcome := implied(self.space, point, self._outcomes)) is None:
                yield point
            else:
                self._outcomes[point.key] = outcome

    def _screened(self, screen: Evaluate) -> list[Point]:
        """Return the best points that a search on another network finds."""

        def weigh(points: Iterable[Point]) -> Iterator[tuple[Point, Outcome]]:
            for point in points:
                known = self._outcomes[point.key]
                yield point, known if known.figures is None else replace(known, state="excluded", figures=None)

        def tell(phase: str, done: int, most: int, front: Sequence[Outcome]) -> None:
            if phase == SIMULATIONS:
                self.tell("screening", done, most, front)

        found = Search(self.space, self.validity, self.objectives, weigh, screen, self.top, tell).run()
        if found.interrupted:
            raise KeyboardInterrupt
        best = {one.key for one in (*found.ranked[: self.top], *self.objectives.front(found.ranked))}
        return [point for point in self.validity.valid if point.key in best]

    def _simulate(self, points: Iterable[Point]) -> None:
        """Simulate those of some points that may be the best."""
        waiting = [point for point in points if self._outcomes[point.key].state == "excluded"]
        ordered = sorted(waiting, key=lambda point: (self._bounds(point), point.key))
        for done, (point, outcome) in enumerate(self.simulate(self._worth_simulating(ordered)), 1):
            weighed = self._outcomes[point.key]
            found = replace(outcome, memory=outcome.memory or weighed.memory, at_bound=weighed.at_bound)
            self._outcomes[point.key] = found
            self._keep(found)
            self.tell(SIMULATIONS, done, len(ordered), self._front)

    def _worth_simulating(self, ordered: Iterable[Point]) -> Iterator[Point]:
        """Yield the points that what is found by then does not exclude."""
        for point in ordered:
            bounds = self._bounds(point)
            if not any(self.objectives.excludes(scores, bounds) for scores in self._scores) or self._is_among_top(
                bounds
            ):
                yield point

    def _is_among_top(self, bounds: Scores) -> bool:
        """Whether a point may be one of the best by a single objective."""
        return len(bounds) == 1 and (len(self._scores) < self.top or bounds <= self._scores[-1])

    def _bounds(self, point: Point) -> Scores:
        return self.objectives.bounds(self._outcomes[point.key])

    def _keep(self, outcome: Outcome) -> None:
        """Keep a simulated point, and its scores, if it is one of the best."""
        if outcome.state != "simulated":
            return
        scores = self.objectives.scores(outcome)
        self._front = self.objectives.front([*self._front, outcome])
        if len(scores) == 1:
            self._scores = sorted([*self._scores, scores])[: self.top]
            return
        exact = Objectives(self.objectives.all)
        if not any(exact.excludes(other, scores) for other in self._scores):
            self._scores = [other for other in self._scores if not exact.excludes(scores, other)] + [scores]
