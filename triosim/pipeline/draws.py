"""Repeated runs with other random seeds: their configurations, and the distribution of their step times.

Drawn at random are the loads of experts (``ep``), stragglers and slow links. Quantiles are interpolated between the two nearest
step times (Hyndman and Fan 1996, "Sample quantiles in statistical packages", definition 7); the deviation is that of a sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from triosim.conditions import Conditions, Stragglers
from triosim.config import RunConfig
from triosim.pipeline.planning import PlannedRun, tokens_are_drawn
from triosim.pipeline.system import System
from triosim.results.result import Result
from triosim.results.values import Draws


def other_draws(config: RunConfig, planned: PlannedRun) -> Iterator[tuple[RunConfig, System]]:
    """Yield configuration and system of the second and further draws: each has every seed one higher than the one before.

    The subject is priced already, and neither a timeline nor link loads are kept of them.
    """
    system = planned.system
    for number in range(1, config.draws):
        options = dict(config.options)
        if tokens_are_drawn(planned.plan):
            options["seed"] = str(int(options.get("seed", 0)) + number)
        other = config.replaced(options=options, draws=1, timeline=False, links=False)
        yield other, System.under(_with_later_seeds(system.conditions, number), system.nominal)


def _with_later_seeds(conditions: Conditions, number: int) -> Conditions:
    def later(drawn: Stragglers | None) -> Stragglers | None:
        return drawn and replace(drawn, seed=drawn.seed + number)

    return replace(conditions, stragglers=later(conditions.stragglers), slow_links=later(conditions.slow_links))


def draws_of(step_times: Sequence[float]) -> Draws:
    """Return how two or more step times are spread."""
    ordered = sorted(step_times)

    def quantile(part: float) -> float:
        place = part * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return Draws(
        tuple(step_times),
        mean_s=math.fsum(ordered) / len(ordered),
        deviation_s=statistics.stdev(ordered),
        min_s=ordered[0],
        p5_s=quantile(0.05),
        p50_s=quantile(0.5),
        p95_s=quantile(0.95),
        max_s=ordered[-1],
    )


@dataclass(frozen=True, slots=True)
class Draw:
    """One run of several: its step time in seconds, and whether some rank does not fit its GPU."""

    step_time_s: float
    too_small: bool

    @classmethod
    def of(cls, result: Result) -> Draw:
        """Return the values of a result."""
        return cls(result.step_time_s, result.memory is not None and not result.memory.fits)


def with_draws(first: Result, drawn: Sequence[Draw]) -> Result:
    """Return the result of the first draw with how all of them are spread, and a note where only some fit their GPUs."""
    notes = first.notes
    many = sum(draw.too_small for draw in drawn)
    if 0 < many < len(drawn):
        notes = (*notes, f"in {many} of {len(drawn)} draws a rank does not fit its GPU")
    draws = draws_of([draw.step_time_s for draw in drawn])
    return replace(first, data=replace(first.data, draws=draws, notes=notes))
