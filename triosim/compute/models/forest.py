"""Operator times by boosted trees on top of the roofline, for matrix products and causal attention.

Category three of TorchSim (appendix E). The trees are fitted by ``triosim.compute.fit.fitting`` and ship with triosim
(``triosim.compute.learned.stored``); what they learn and how sure they are is in ``triosim.compute.learned.family_model``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import doubt, shapes
from triosim.compute.base import ComputeModel, Estimates
from triosim.compute.distinct_operators import Operators, each_once
from triosim.compute.learned import attention_kernels, stored
from triosim.compute.learned.shape_features import ATTENTION_SECONDS
from triosim.gpus import Gpu
from triosim.trace import Operator

#: Half precision runs on the same units at the same rate in either format; the tables hold one of them.
_SAME_UNITS = {"float16": "bfloat16"}
_OTHER_FORMAT_ERROR = 0.05
#: What full attention and gradients are off by beyond what the tables show: they hold causal attention, and products of rows
#: by the transposed weight, whereas one of the gradients' factors is turned. The six float32 linear layers' gradients of two
#: traces of an H100 are off by 32% on average, where forward calls of the same layers are off by 15%.
_FULL_ERROR, _TURNED_ERROR = 0.25, 0.25
_BLOCK = 128


class Forest(ComputeModel):
    """``linear``, ``mm``, ``addmm``, ``bmm``, ``matmul`` and their backward; attention; in the dtypes that were measured."""

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
        seen = Operators.of(operators)
        for places, group in seen.calls:
            found = self.ask(group, target) if group.family in self.families else None
            if found is not None:
                seconds[places], errors[places], name = found
                for place in places:
                    names[place] = name
                    if not name.startswith(stored.OWN_LABEL) and attention_kernels.knows(seen[place], target):
                        seconds[place] = np.nan  # another kernel than that of the tables
        for places, group in seen.gradients if "product" in self.families else ():
            found = self.ask(group, target)
            if found is not None:
                _add(seconds, errors, names, places, found)
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
        error = model.relative_error(group, gpu, seconds) + extra
        if group.family == "attention" and group.kinds is not None:
            seconds, error = seconds * _all_of(group, seconds), error + _FULL_ERROR
        known = "" if model.knows(gpu) else f", {doubt.NOT_MEASURED}"
        return (
            seconds,
            error,
            f"{stored.OWN_LABEL if stored.is_own(model) else self.label}, {group.family} in {dtype}{known}",
        )


def _all_of(group: shapes.Shapes, seconds: shapes.Array) -> shapes.Array:
    """Return how many times longer attention takes that is not causal.

    Of n blocks of queries by n of keys, causal attention computes n (n + 1) / 2, so that the other takes 2n / (n + 1) times
    as long, but for what a call of no arithmetic takes.
    """
    blocks = np.ceil(group["sequence"] / _BLOCK)
    base = np.minimum(ATTENTION_SECONDS, seconds) / seconds
    found: shapes.Array = base + (1.0 - base) * 2.0 * blocks / (blocks + 1.0)
    return found


def _add(
    seconds: shapes.Array,
    errors: shapes.Array,
    names: list[str],
    places: npt.NDArray[np.int64],
    found: tuple[shapes.Array, shapes.Array, str],
) -> None:
    """Add products to what their operators take. What is off in both of one operator counts as off by the same."""
    for place, time, error in zip(places.tolist(), found[0], found[1] + _TURNED_ERROR, strict=True):
        before = seconds[place]
        if np.isnan(before):
            seconds[place], errors[place] = time, error
        else:
            seconds[place] = before + time
            errors[place] = (before * errors[place] + time * error) / (before + time)
        names[place] = f"{found[2]}, a product for each gradient"
