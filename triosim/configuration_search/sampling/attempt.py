"""What is found out of a point that a sampler draws: it is weighed, and simulated where it may be among the best."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from triosim.configuration_search.evaluation import Simulate, Weigh
from triosim.configuration_search.objectives import Objectives, Scores
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.space import Space


@dataclass(frozen=True, slots=True)
class Attempt:
    """A point to try, and the scores ``to_reach`` when it was drawn: one of them at least, by its bounds."""

    point: Point
    to_reach: tuple[Scores, ...] = ()

    @property
    def key(self) -> str:
        """The point's settings as canonical JSON."""
        return self.point.key

    def is_excluded(self, outcome: Outcome, objectives: Objectives) -> bool:
        """Whether the bounds of an outcome are worse than what was found before."""
        bounds = objectives.bounds(outcome)
        return any(objectives.excludes(scores, bounds) for scores in self.to_reach)

    def __str__(self) -> str:
        return str(self.point)


@dataclass
class Try:
    """Weighs a point, and simulates it unless it does not fit or its bounds exclude it."""

    space: Space
    objectives: Objectives
    _weigh: Weigh = field(init=False, repr=False)
    _simulate: Simulate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._weigh, self._simulate = Weigh(self.space), Simulate(self.space)

    def __call__(self, attempt: Attempt) -> Outcome:
        """Return what is found of the attempt's point."""
        weighed = self._weigh(attempt.point)
        if weighed.state != "excluded" or attempt.is_excluded(weighed, self.objectives):
            return weighed
        found = self._simulate(attempt.point)
        return replace(found, memory=found.memory or weighed.memory, at_bound=weighed.at_bound)
