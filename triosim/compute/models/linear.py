"""Operator times by linear regression within the trace, for each kind of operator (name and phase).

Li et al., "Path Forward Beyond Simulators" (MICRO 2023): the time of a kernel is linear in its FLOPs, its input bytes or its
output bytes, whichever fits best. One of these drivers alone does not fit kernels that are bound by arithmetic and by memory:
for the ten convolutions of VGG-13 it is off by 44% and more, with a fixed time of half a millisecond, which makes a larger
batch far too cheap. So this is the regression over any of the drivers together,

    time = a + b1 * FLOPs + b2 * input bytes + b3 * output bytes,    a, b1, b2, b3 >= 0,

which minimises relative errors and has as few of the terms as fit the points about as well as more would. Without negative
terms, an operator of k times the size takes between once and k times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from triosim.compute import uncertainty
from triosim.compute.compute_model import Array, ComputeModel, Estimates
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.trace import Operator, Trace
from triosim.units import SHORTEST_SECONDS

#: Which terms a regression may have (0 is the fixed time), the simplest first.
_TERMS = sorted(
    ((*fixed, *drivers) for count in (1, 2, 3) for drivers in combinations((1, 2, 3), count) for fixed in ((), (0,))),
    key=len,
)
#: A difference between standard errors of less than this part of an operator's time counts as none.
_NEGLIGIBLE = 0.005
#: The least relative error of a line: the variation of one operator's time from step to step.
_LEAST_ERROR = 0.01

#: The relative error of a ratio for each factor of e between two sizes, in measured tables (``uncertainty.resizing_error``).
PER_E_FOLD = (0.23, 0.20, 0.11)

_NameAndPhase = tuple[str, str]
_POOLED: _NameAndPhase = ("", "")


@dataclass(frozen=True, slots=True)
class LinearFit:
    """The coefficients of the fixed time and of FLOPs, input bytes and output bytes.

    ``left_out`` is the mean absolute relative error of each point on the line through the others (leave-one-out
    cross-validation), times ``uncertainty.small_sample_factor``; NaN where all points have one size.
    """

    coefficients: tuple[float, float, float, float]
    left_out: float = math.nan


class Linear(ComputeModel):
    """Linear regression within the trace; ``lines`` are the fits by operator name and phase."""

    name = "linear"

    def __init__(self) -> None:
        self.lines: dict[_NameAndPhase, LinearFit] = {}
        self.gpu = ""

    def fit(self, trace: Trace) -> None:
        """Fit a line to each kind of operator, and one to all together for kinds that are not in the trace."""
        self.learn(trace.operators, trace.gpu)

    def learn(self, operators: Sequence[Operator], gpu: str) -> None:
        """Fit to operators of a trace of a GPU."""
        self.gpu = gpu
        drivers = _drivers(operators)
        seconds = np.array([operator.seconds for operator in operators])
        rows: dict[_NameAndPhase, list[int]] = {}
        for row, operator in enumerate(operators):
            rows.setdefault((operator.name, operator.phase), []).append(row)
        self.lines = {kind: fit_line(drivers[members], seconds[members]) for kind, members in rows.items()}
        self.lines[_POOLED] = fit_line(drivers, seconds)

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on its kind's line. They hold for the trace's GPU alone."""
        if gpu and gpu != self.gpu:
            return Estimates.unknown(len(operators), self.name)
        lines = [self.lines.get((operator.name, operator.phase)) for operator in operators]
        pooled = self.lines[_POOLED]
        coefficients = np.array([(line or pooled).coefficients for line in lines]).reshape(len(lines), 4)
        return Estimates(
            (coefficients * _drivers(operators)).sum(axis=1),
            np.array([(line or pooled).left_out for line in lines]),
            [self.name] * len(lines),
        )

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return time(after) / time(before) on the trace's GPU; the error grows with the change of size."""
        old, new = self.estimate(before, gpu), self.estimate(after, target)
        return uncertainty.resized(old, new, before, after, PER_E_FOLD)


def _drivers(operators: Sequence[Operator]) -> Array:
    """Return a row for each operator: 1 for the fixed time, then its drivers."""
    return np.column_stack([np.ones(len(operators)), OperatorSequence.of(operators).drivers])


def fit_line(drivers: Array, seconds: Array) -> LinearFit:
    """Return the simplest of the regressions that are about as good as the best."""
    timed = seconds >= SHORTEST_SECONDS
    points = int(timed.sum())
    if not points:
        return LinearFit((0.0, 0.0, 0.0, 0.0))
    relative = drivers[timed] / seconds[timed, None]
    found = []
    for terms in _TERMS:
        if len(terms) == 1 or points > len(terms):
            solved = _solve(relative[:, terms])
            if solved is not None:
                found.append((terms, *solved))
    if not found:  # operators without tensors: nothing to scale by
        return LinearFit((float(seconds[timed].mean()), 0.0, 0.0, 0.0))
    # The standard error of few points is itself uncertain, by one in sqrt(2 * degrees of freedom): within twice that, the
    # simpler regression is as good, and of two equally simple ones the first, in FLOPs.
    best_terms, _, best = min(found, key=lambda one: one[2])
    margin = 2.0 / math.sqrt(2.0 * max(points - len(best_terms), 1))
    good = best * (1.0 + margin) + _NEGLIGIBLE
    terms, solution, _ = next(one for one in found if one[2] <= good)
    fixed, *slopes = (float(solution[terms.index(term)]) if term in terms else 0.0 for term in range(4))
    left_out = math.nan
    if len(np.unique(drivers[timed], axis=0)) > 1:
        left_out = max(_left_out(relative[:, terms]) * uncertainty.small_sample_factor(points), _LEAST_ERROR)
    return LinearFit((fixed, slopes[0], slopes[1], slopes[2]), left_out)


def _left_out(relative: Array) -> float:
    """Return the mean absolute residual of each point on the line through the others: r / (1 - h), h of the hat matrix."""
    scaled = relative / relative.max(axis=0)
    # Of the hat matrix, one row and column a point, its diagonal and row sums are enough.
    inverse = np.linalg.pinv(scaled)
    residual = 1.0 - scaled @ inverse.sum(axis=1)
    leverage = np.einsum("ij,ji->i", scaled, inverse)
    return float(np.mean(np.abs(residual) / np.maximum(1.0 - leverage, 1e-3)))


def _solve(relative: Array) -> tuple[Array, float] | None:
    """Return the coefficients and standard error of least relative squares; None where a coefficient is not positive."""
    scale = relative.max(axis=0)
    if not (scale > 0.0).all():
        return None
    points, terms = relative.shape
    solution, _, rank, _ = np.linalg.lstsq(relative / scale, np.ones(points), rcond=1e-9)
    if rank < terms or not (solution > 0.0).all():
        return None
    residual = (relative / scale) @ solution - 1.0
    error = math.sqrt(float(residual @ residual) / max(points - terms, 1))
    return solution / scale, error
