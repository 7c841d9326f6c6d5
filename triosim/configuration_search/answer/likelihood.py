"""How likely one simulated point is faster than another, by the doubts about their step times.

Configurations of one model on one system share much of what a prediction gets wrong: the same kernels on the same GPUs, the
same links. So of each source of doubt a part is common to both and cancels. What is left is taken to be normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from triosim.configuration_search.outcome import Figures

#: The correlation of the errors that one source of doubt makes in two configurations of a model on a system. Measured pairs of
#: one node fit 0.55 best, those of many nodes 0.2 (``python -m validation search_regret``).
CORRELATION = 0.4

#: The standard deviation of a normal distribution over its mean absolute deviation, which a doubt is.
_DEVIATION = math.sqrt(math.pi / 2)


def chance_of_being_better(first: Figures, second: Figures, ratio: float) -> float:
    """Return how likely the first step is better than the second, whose score is said to be ``ratio`` times as high.

    Scores are as uncertain as the steps' times, which they are in proportion to.
    """
    return chance(
        ratio,
        {source: error / first.step_time_s for source, error in first.doubts},
        {source: error / second.step_time_s for source, error in second.doubts},
    )


def chance(
    ratio: float, first: Mapping[str, float], second: Mapping[str, float], correlation: float = CORRELATION
) -> float:
    """Return it where the second step takes ``ratio`` times as long; the doubts are parts of the steps, by source."""
    variance = math.fsum(
        one * one + other * other - 2 * correlation * one * other
        for source in {**first, **second}
        for one, other in [(_DEVIATION * first.get(source, 0.0), _DEVIATION * second.get(source, 0.0))]
    )
    if variance <= 0.0:
        return 0.5 if ratio == 1.0 else float(ratio > 1.0)
    return 0.5 * (1.0 + math.erf(math.log(ratio) / math.sqrt(2.0 * variance)))
