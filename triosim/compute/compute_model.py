"""The interface of compute models, which estimate operator times from shapes: ``ComputeModel`` and its ``Estimates``.

A model is not asked for an operator that was measured in the shapes that it has (``triosim.compute.pricing.repricing``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.errors import PluginError
from triosim.trace import Operator, Trace

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

#: Size classes of operators, by seconds: short, middle, long.
CLASS_EDGES = (20e-6, 200e-6)
#: The error of a ratio of two sizes on a GPU that a model was not fitted on, over that of two independent estimates: 11% where
#: one estimate is off by 19% (float32 products of eight GPUs, each left out of the fit).
_SHARE_OF_RATIO = 0.42


@dataclass(frozen=True, slots=True)
class Estimates:
    """A model's answer: one entry for each operator that was asked about, in order.

    ``relative_error`` is the typical error of the model for such an operator (0.1 is 10%), NaN where it is not known;
    ``model`` is the name of the model that the time comes from. ``extrapolated``, where given, marks estimates for a GPU that
    the model was not fitted on: most of their error is the same for all sizes there.
    """

    seconds: Array
    relative_error: Array
    model: list[str]
    extrapolated: Mask | None = None

    @classmethod
    def unknown(cls, count: int, model: str) -> Estimates:
        """Return estimates that know none of the operators (NaN), for a model to fill in."""
        return cls(np.full(count, np.nan), np.full(count, np.nan), [model] * count, np.zeros(count, dtype=bool))

    def add(self, rows: Rows, seconds: Array, errors: Array) -> None:
        """Add the times of calls to those of their operators; the errors of one operator's calls count as dependent."""
        for row, time, error in zip(rows.tolist(), seconds, errors, strict=True):
            before = self.seconds[row]
            if np.isnan(before):
                self.seconds[row], self.relative_error[row] = time, error
            else:
                self.seconds[row] = before + time
                self.relative_error[row] = (before * self.relative_error[row] + time * error) / (before + time)

    def select(self, rows: Rows) -> Estimates:
        """Return the estimates of some of the operators."""
        extrapolated = None if self.extrapolated is None else self.extrapolated[rows]
        return Estimates(
            self.seconds[rows], self.relative_error[rows], [self.model[row] for row in rows.tolist()], extrapolated
        )


def checked(estimates: object, operators: Sequence[Operator], model: ComputeModel) -> Estimates:
    """Check that a model gave one time an operator, 0 or more, or NaN. Raises ``PluginError``."""
    where = type(model).__name__
    if not isinstance(estimates, Estimates):
        raise PluginError(f"returned a {type(estimates).__name__}", where=where, fix="return Estimates")
    for name in ("seconds", "relative_error", "model"):
        if len(getattr(estimates, name)) != len(operators):
            raise PluginError(
                f"returned {len(getattr(estimates, name))} {name} for {len(operators)} operators",
                where=where,
                fix="return one each",
            )
    wrong = (estimates.seconds < 0) | np.isinf(estimates.seconds)
    if wrong.any():
        row = int(wrong.argmax())
        raise PluginError(
            f"estimated {estimates.seconds[row]} for {operators[row].name}",
            where=where,
            fix="times are 0 or more, NaN where they are not known",
        )
    return estimates


class ComputeModel(ABC):
    """Estimates operator times. Plug-ins derive from it: entry point group ``triosim.compute_models``."""

    @property
    def identity(self) -> Hashable | None:
        """What estimates follow from, of a fitted model also what it learnt; None where that is not known.

        Models of one identity are the same, and what one of them has priced is kept.
        """
        return None

    def fit(self, trace: Trace) -> None:  # noqa: B027 - a model may come fitted
        """Learn from the operators of a trace. The default learns nothing."""

    @abstractmethod
    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        """Return the estimated time of each operator on ``gpu``, NaN where the model does not know.

        The forward operator of a backward operator is looked up by id among ``operators``, so give both.
        """

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return time(after, on ``target``) / time(before, on ``gpu``), as the ``seconds`` of estimates.

        ``before`` and ``after`` are the same operators, one for one. The errors of the two estimates count as independent:
        on held-out rows of the measured tables, ratios of the fitted models are off by 1.4 times what one estimate is. On a GPU
        that the model was not fitted on, part of the error cancels in the ratio of two sizes.
        """
        old = checked(self.estimate(before, gpu), before, self)
        new = checked(self.estimate(after, target), after, self)
        error = np.hypot(old.relative_error, new.relative_error)
        if gpu == target and new.extrapolated is not None:
            error = error * np.where(new.extrapolated, _SHARE_OF_RATIO, 1.0)
        return Estimates(ratio(old, new, before), error, new.model)


def ratio(old: Estimates, new: Estimates, before: Sequence[Operator]) -> Array:
    """Return new / old seconds; where ``old`` has none, 1 for an operator that took no time ``before``, otherwise NaN."""
    nothing = np.array([operator.seconds == 0.0 for operator in before], dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.where(old.seconds > 0.0, new.seconds / old.seconds, np.where(nothing, 1.0, np.nan))
    return found
