"""What a compute model is: it estimates the time of operators from their shapes.

A model is never asked for an operator that was measured in the very shapes that it has; see ``triosim.compute.pricing``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


class ComputeModel(ABC):
    """Estimates operator times. Plug-ins derive from it: entry point group ``triosim.compute_models``."""

    def fit(self, trace: Trace) -> None:  # noqa: B027 - a model may come fitted
        """Learn from the operators of a trace. The default learns nothing."""

    @abstractmethod
    def estimate(self, operators: Sequence[Operator], gpu: str) -> Estimates:
        """Return the estimated time of each operator on ``gpu``.

        The forward operator of a backward operator is looked up by id among ``operators``, so give both.
        """
