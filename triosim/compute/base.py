"""What a compute model is: it estimates the time of operators from their shapes.

A model is never asked for an operator that was measured in the very shapes that it has; see ``triosim.compute.pricing``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triosim.errors import PluginError
from triosim.trace import Operator, Trace


@dataclass(frozen=True, slots=True)
class Estimates:
    """One entry for each operator that was asked about, in its order.

    ``relative_error`` is the typical error of the model for such an operator (0.1 is 10%), NaN where it is not known;
    ``model`` names what said so.
    """

    seconds: npt.NDArray[np.float64]
    relative_error: npt.NDArray[np.float64]
    model: list[str]


def checked_seconds(model: ComputeModel, operators: Sequence[Operator], gpu: str) -> npt.NDArray[np.float64]:
    """Return a model's estimates, which must be a number of 0 or more for each operator. Raises ``PluginError``."""
    estimates = model.estimate(operators, gpu)
    where = type(model).__name__
    if not isinstance(estimates, Estimates):
        raise PluginError(f"estimate() returned a {type(estimates).__name__}", where=where, fix="return Estimates")
    seconds = np.asarray(estimates.seconds, dtype=np.float64)
    if seconds.shape != (len(operators),):
        raise PluginError(
            f"estimate() returned {seconds.size} times for {len(operators)} operators",
            where=where,
            fix="return one each",
        )
    wrong = ~(np.isfinite(seconds) & (seconds >= 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise PluginError(
            f"estimated {seconds[row]} seconds for {operators[row].name}", where=where, fix="times are 0 or more"
        )
    return seconds


class ComputeModel(ABC):
    """Estimates operator times. Plug-ins derive from it: entry point group ``triosim.compute_models``."""

    def fit(self, trace: Trace) -> None:  # noqa: B027 - a model may come fitted
        """Learn from the operators of a trace. The default learns nothing."""

    @abstractmethod
    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        """Return the estimated time of each operator on ``gpu``.

        The forward operator of a backward operator is looked up by id among ``operators``, so give both.
        """
