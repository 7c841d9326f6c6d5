"""The interface of compute models, which estimate operator times from shapes: ``ComputeModel`` and its ``Estimates``.

A model is not asked for an operator that was measured in the shapes that it has (``triosim.compute.pricing.repricing``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.errors import PluginError
from triosim.trace import Operator, Trace

Array = npt.NDArray[np.float64]

#: Size classes of operators, by seconds: short, middle, long.
CLASS_EDGES = (20e-6, 200e-6)


@dataclass(frozen=True, slots=True)
class Estimates:
    """What a model answers: one entry for each operator that was asked about, in order.

    ``relative_error`` is the typical error of the model for such an operator (0.1 is 10%), NaN where it is not known;
    ``model`` names the model that the time comes from.
    """

    seconds: Array
    relative_error: Array
    model: list[str]


def checked(estimates: object, operators: Sequence[Operator], model: ComputeModel) -> Estimates:
    """Check a model's answer: one entry an operator, 0 or more, or NaN. Raises ``PluginError``."""
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
        on held-out rows of the measured tables, ratios of the fitted models are off by 1.4 times what one estimate is.
        """
        old = checked(self.estimate(before, gpu), before, self)
        new = checked(self.estimate(after, target), after, self)
        nothing = np.array([operator.seconds == 0.0 for operator in before])
        return Estimates(ratio(old, new, nothing), np.hypot(old.relative_error, new.relative_error), new.model)


def ratio(old: Estimates, new: Estimates, nothing: npt.NDArray[np.bool_] | bool = False) -> Array:
    """Return new / old seconds; where ``old`` has none, 1 for an operator that takes ``nothing``, otherwise NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = np.where(old.seconds > 0.0, new.seconds / old.seconds, np.where(nothing, 1.0, np.nan))
    return found
