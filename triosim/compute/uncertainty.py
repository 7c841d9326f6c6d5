"""Corrections of a model's relative error: for another size, after few samples, at a power limit.

A line or a roofline that was fitted to operators of one batch size does not know how the efficiency changes with the size. By
how much it does was found on the measured tables that docs/compute-models.md names: matrix products, attention, softmax and
normalisation of one size, predicted in another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from triosim.compute.attainable_rate import DEFAULT, AttainableRate
from triosim.compute.compute_model import CLASS_EDGES, Array, Estimates, ratio
from triosim.compute.operator_sequence import OperatorSequence
from triosim.gpus import Gpu
from triosim.trace import Operator

#: The 95th percentile of Student's distribution by degrees of freedom, from 1, and of a normal one.
_STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
_NORMAL = 1.645


def resized(
    old: Estimates,
    new: Estimates,
    before: Sequence[Operator],
    after: Sequence[Operator],
    per_e_fold: tuple[float, float, float],
    share: float = 1.0,
) -> Estimates:
    """Return the ratios of two estimates by a model that saw one size of each operator; errors grow with the change of size.

    ``share`` of the larger error of the two counts; for ``per_e_fold`` see ``resizing_error``.
    """
    ratios = ratio(old, new, before)
    known = np.fmax(old.relative_error, new.relative_error) * share
    return Estimates(ratios, resizing_error(known, before, after, ratios, per_e_fold), new.model)


def resizing_error(
    known: Array,
    before: Sequence[Operator],
    after: Sequence[Operator],
    ratios: Array,
    per_e_fold: tuple[float, float, float],
) -> Array:
    """Return the relative errors of ratios time(after) / time(before): of the model (``known``) and of the change of size.

    The two count as independent. ``per_e_fold`` is the model's error for each factor of e between the sizes, by the size class
    of the shorter of the two times; an operator of ``before`` that was not measured counts as long.
    """
    measured = np.array([operator.seconds or np.inf for operator in before])
    shorter = measured * np.where(np.isfinite(ratios), np.minimum(ratios, 1.0), 1.0)
    each = np.array(per_e_fold)[np.searchsorted(CLASS_EDGES, shorter, side="right")]
    old, new = (np.maximum(OperatorSequence.of(some).drivers, 1.0) for some in (before, after))
    change = np.abs(np.log(new / old)).max(axis=1)  # of FLOPs or bytes, whichever changed most
    found: Array = np.hypot(known, each * change)
    return found


def small_sample_factor(samples: int) -> float:
    """Return the factor by which the error seen in few samples grows for one more sample; 1 for very many.

    It is the prediction interval of the next sample of a normal distribution, over that of a known one. The errors of a model
    on one GPU are mostly the same for all operators, so that a GPU is one sample.
    """
    if samples < 2:
        return 1.0  # one sample shows no error; callers take a wide one instead
    student = _STUDENT[samples - 2] if samples - 2 < len(_STUDENT) else _NORMAL * (1.0 + 1.0 / samples)
    return student / _NORMAL * math.sqrt(1.0 + 1.0 / samples)


def power_limit_factor(gpu: Gpu, dtype: str, attainable: AttainableRate = DEFAULT) -> float:
    """Return the factor by which a product's error grows where the board's power limits its rate (T4, L4, P4); 1 elsewhere.

    It is the square root of how far the rate at that power is below the peak: the clock at which the board settles is in no
    data sheet.
    """
    return math.sqrt(max(1.0, attainable.share * gpu.rate(dtype) / attainable.power_limit(gpu, dtype)))
