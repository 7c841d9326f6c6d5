"""The conditions under which a system runs, as values: slow-down factors, stragglers, events and interference.

A slow-down factor multiplies a time: with 1.2 something takes a fifth longer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: Slow-down factors by kind of transfer (a collective, "send" or "copy").
SlowdownFactors = Mapping[str, float]

Distribution = Literal["uniform", "exponential", "lognormal"]

#: Whether a GPU draws its factor once for the run or in each iteration.
DrawnEvery = Literal["run", "iteration"]


@dataclass(frozen=True, slots=True)
class Interference:
    """Slow-down factors of computation while a kind of transfer runs on its GPU, and of transfers while their GPUs compute.

    A kind that is not named has the factor 1. Of several transfers at once the largest factor counts.
    """

    computation: SlowdownFactors = field(default_factory=dict)
    communication: SlowdownFactors = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(factor != 1.0 for factors in (self.computation, self.communication) for factor in factors.values())


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Random slow-down factors of GPUs or links, the same for the same seed.

    distribution: "uniform" from 1 to 1 + ``spread``, "exponential" (1 + an exponential of mean ``spread``), or "lognormal" with
        median 1, where ``spread`` is the standard deviation of the logarithm.
    every: how often a GPU draws; links draw once.
    """

    distribution: Distribution = "uniform"
    spread: float = 0.1
    seed: int = 0
    every: DrawnEvery = "run"

    def draw(self, *what: int | str) -> float:
        """Return the factor of a rank in an iteration, or of a link, which depends on the seed and on ``what`` alone."""
        generator = random.Random("/".join(map(str, (self.seed, *what))))
        if self.distribution == "uniform":
            return 1.0 + self.spread * generator.random()
        if self.distribution == "exponential":
            return 1.0 + (generator.expovariate(1.0 / self.spread) if self.spread else 0.0)
        return math.exp(generator.gauss(0.0, self.spread))


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """A GPU that becomes slower, recovers or fails at a time (seconds).

    ``slowdown`` is relative to its speed at the start: 1 is a recovery, infinity a failure.
    """

    at: float
    rank: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A change of the bandwidth (bytes per second) of the links from one node to another at a time; with 0 they fail.

    With ``both``, the links in the other direction change too.
    """

    at: float
    source: str
    destination: str
    bandwidth: float
    both: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """All conditions of a run. By default GPUs and links are equal and nothing interferes or happens.

    slow_gpus: slow-down factors by rank.
    gpu_kinds: names of GPUs by rank, where these are other models than the trace's.
    stragglers: random factors of GPUs; slow_links: of links, both directions of a link equally.
    """

    interference: Interference = Interference()
    slow_gpus: Mapping[int, float] = field(default_factory=dict)
    gpu_kinds: Mapping[int, str] = field(default_factory=dict)
    stragglers: Stragglers | None = None
    slow_links: Stragglers | None = None
    gpu_events: tuple[GpuEvent, ...] = ()
    link_events: tuple[LinkEvent, ...] = ()

    @property
    def heterogeneous(self) -> bool:
        """Whether an operator takes different times on different GPUs."""
        return bool(self.slow_gpus or self.gpu_kinds or self.stragglers)
