"""The random slow-down factors of stragglers and of slow links."""

from __future__ import annotations

import math
import random

from triosim.conditions.conditions import Stragglers


def draw(stragglers: Stragglers, *what: int | str) -> float:
    """Return the factor of a rank in an iteration, or of a link, which ``what`` names.

    It depends on the seed and on ``what`` alone, not on what else is drawn.
    """
    generator = random.Random("/".join(map(str, (stragglers.seed, *what))))
    if stragglers.distribution == "uniform":
        return 1.0 + stragglers.spread * generator.random()
    if stragglers.distribution == "exponential":
        return 1.0 + (generator.expovariate(1.0 / stragglers.spread) if stragglers.spread else 0.0)
    return math.exp(generator.gauss(0.0, stragglers.spread))
