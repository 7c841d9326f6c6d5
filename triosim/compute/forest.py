"""Operator times by boosted trees on top of the roofline, for matrix products and causal attention.

Category three of TorchSim (appendix E). The trees are fitted by ``triosim.compute.calibration`` and ship with triosim
(``triosim.compute.stored``); what they learn and how sure they are is in ``triosim.compute.learned``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim import gpus
from triosim.compute import doubt, shapes, stored
from triosim.compute.base import ComputeModel, Estimates
from triosim.compute.operators import Operators, each_once
from triosim.gpus import Gpu
from triosim.trace import Operator

#: Half precision runs on the same units at the same rate in either format; the tables hold one of them.
_SAME_UNITS = {"float16": "bfloat16"}
_OTHER_FORMAT_ERROR = 0.05


class Forest(ComputeModel):
    """``linear``, ``mm``, ``addmm``, ``bmm``, ``matmul`` and causal attention, in the dtypes that were measured."""

    families: tuple[str, ...] = ("product", "attention")
    label = "forest"
    half_is_half = True

    def __init__(self, gpu: str | None = None) -> None:
        self._gpu = gpu

    @classmethod
    def load(cls, gpu: str) -> Forest | None:
        """Return the model for a GPU of the catalogue, or None where the catalogue does not have it."""
        return cls(gpu) if gpus.get(gpu) is not None else None

    @each_once
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; NaN for what belongs to no family that was measured."""
        target = gpus.find(gpu or self._gpu or "")
        seconds = np.full(len(operators), np.nan)
        errors = np.full(len(operators), np.nan)
        names = [self.label] * len(operators)
        for places, group in Operators.of(operators).calls:
            if group.family in self.families:
                found = self.ask(group, target)
                if found is not None:
                    seconds[places], errors[places], name = found
                    for place in places:
                        names[place] = name
        return Estimates(seconds, errors, names)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return time(after) / time(before). What is off on a GPU that was not measured is partly the same in both."""
        found = super().ratios(before, after, gpu, target)
        return doubt.on_one_gpu(found) if gpu == target else found

    def ask(self, group: shapes.Shapes, gpu: Gpu) -> tuple[shapes.Array, shapes.Array, str] | None:
        """Return seconds, relative errors and the name of what said so, for calls of one family and dtype."""
        dtype, extra = group.dtype, 0.0
        model = stored.find(group.family, dtype, gpu.name)
        if model is None and (dtype in _SAME_UNITS or not self.half_is_half):
            dtype, extra = _SAME_UNITS.get(dtype, "float32"), _OTHER_FORMAT_ERROR
            model = stored.find(group.family, dtype, gpu.name)
        if model is None:
            return None
        seconds = model.seconds(group, gpu)
        known = "" if model.knows(gpu) else f", {doubt.NOT_MEASURED}"
        return (
            seconds,
            model.relative_error(group, gpu, seconds) + extra,
            f"{stored.OWN_LABEL if stored.is_own(model) else self.label}, {group.family} in {dtype}{known}",
        )
