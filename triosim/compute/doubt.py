"""How far off an estimate may be beyond what its model was seen to be: in another size, after few samples, at a power limit.

A straight line or a roofline through the operators of one batch size says how long others of that size take, not how the
efficiency changes with the size. By how much it does was found on the measured tables that docs/compute-models.md names:
matrix products, attention, softmax and normalisation of one size, predicted in another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from triosim.compute.base import CLASS_EDGES, Estimates
from triosim.compute.distinct_operators import Operators
from triosim.compute.rates import PLAIN, RateLaw
from triosim.gpus import Gpu
from triosim.trace import Operator

Array = npt.NDArray[np.float64]

#: How an estimate says that its GPU is in none of the tables.
NOT_MEASURED = "a GPU not measured"
#: How far a ratio of two sizes on such a GPU is off, over what two independent estimates would be: 11% where one estimate is
#: off by 19% (float32 products of eight GPUs, each left out of the fit).
SAME_GPU = 0.42
#: The 95th percentile of Student's distribution by degrees of freedom, from 1, and of a normal one.
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
_NORMAL = 1.645


def resized(
    known: Array,
    before: Sequence[Operator],
    after: Sequence[Operator],
    ratio: Array,
    per_e_fold: tuple[float, float, float],
) -> Array:
    """Return the relative error of ``ratio`` = time(after) / time(before): what is ``known`` of the model, and the size's.

    The two count as independent. ``per_e_fold`` is the model's error for each factor of e between the sizes, by the size class
    of the shorter of the two times; ``before`` says what was measured, and where nothing was, operators count as long.
    """
    measured = np.array([operator.seconds or np.inf for operator in before])
    shorter = measured * np.where(np.isfinite(ratio), np.minimum(ratio, 1.0), 1.0)
    each = np.array(per_e_fold)[np.searchsorted(CLASS_EDGES, shorter, side="right")]
    found: Array = np.hypot(known, each * growth(before, after))
    return found


def growth(before: Sequence[Operator], after: Sequence[Operator]) -> Array:
    """Return the logarithm of how much each operator's size changed: that of FLOPs or bytes, whichever changed most."""
    old, new = (np.maximum(Operators.of(some).drivers, 1.0) for some in (before, after))
    changed: Array = np.abs(np.log(new / old)).max(axis=1)
    return changed


def on_one_gpu(found: Estimates) -> Estimates:
    """Return ratios of two sizes on one GPU: most of what is off on a GPU that was not measured is the same in both."""
    share = np.array([SAME_GPU if NOT_MEASURED in name else 1.0 for name in found.model])
    return replace(found, relative_error=found.relative_error * share)


def of_few(samples: int) -> float:
    """Return by how much an error that so few samples showed is to be multiplied for one more, from 1 for very many.

    The prediction interval of the next sample of a normal distribution, over that of a known one. What a model is off by
    on a GPU is mostly the same for all of its operators there, so that a GPU is one sample.
    """
    if samples < 2:
        return 1.0  # they showed no error; what is taken instead is wide
    student = _STUDENT[samples - 2] if samples - 2 < len(_STUDENT) else _NORMAL * (1.0 + 1.0 / samples)
    return student / _NORMAL * math.sqrt(1.0 + 1.0 / samples)


def of_limited(gpu: Gpu, dtype: str, law: RateLaw = PLAIN) -> float:
    """Return by how much less certain a product is where its rate is what the board's power allows (T4, L4, P4), from 1.

    What the power allows depends on the clock that the board settles at, which no data sheet says: the square root of how
    far it is below the peak.
    """
    return math.sqrt(max(1.0, law.share * gpu.rate(dtype) / law.power_limit(gpu, dtype)))
