"""Operator times by boosted trees on top of the roofline: matrix products and causal attention, softmax and normalisation.

Categories three and two of TorchSim (appendix E). The trees are fitted by ``triosim.compute.fit.family_fitting`` and ship
with triosim (``triosim.compute.learned.model_files``); what they learn and how sure they are is in
``triosim.compute.learned.family_model``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import uncertainty
from triosim.compute.compute_model import Array, ComputeModel, Estimates
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.learned.call_features import ATTENTION_SECONDS
from triosim.compute.models import attention_kernels
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu
from triosim.trace import Operator

#: Half precision runs on the same units at the same rate in either format; the tables hold one of them.
_SAME_UNITS = {"float16": "bfloat16"}
_OTHER_FORMAT_ERROR = 0.05
#: The additional relative error of full attention and of gradients: the tables hold causal attention, and products of rows
#: by the transposed weight, whereas one of the gradients' factors is turned. The six float32 linear layers' gradients of two
#: traces of an H100 are off by 32% on average, where forward calls of the same layers are off by 15%.
_FULL_ERROR, _TURNED_ERROR = 0.25, 0.25
_BLOCK = 128


class Forest(ComputeModel):
    """``linear``, ``mm``, ``addmm``, ``bmm``, ``matmul`` and their backward; attention; in the dtypes that were measured."""

    families: tuple[str, ...] = ("product", "attention")
    label = "forest"
    same_units = True

    def __init__(self, gpu: str | None = None) -> None:
        self._gpu = gpu

    @classmethod
    def load(cls, gpu: str) -> Forest | None:
        """Return the model for a GPU of the catalogue, or None where the catalogue does not have it."""
        return cls(gpu) if gpus.get(gpu) is not None else None

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; NaN for what belongs to no family that was measured."""
        target = gpus.find(gpu or self._gpu or "")
        seconds = np.full(len(operators), np.nan)
        errors = np.full(len(operators), np.nan)
        names = [self.label] * len(operators)
        seen = OperatorSequence.of(operators)
        for rows, group in seen.calls:
            found = self.ask(group, target) if group.family in self.families else None
            if found is not None:
                seconds[rows], errors[rows], name = found
                for row in rows:
                    names[row] = name
                    if not name.startswith(model_files.OWN_LABEL) and attention_kernels.knows(seen[row], target):
                        seconds[row] = np.nan  # another kernel than that of the tables
        for rows, group in seen.gradients if "product" in self.families else ():
            found = self.ask(group, target)
            if found is not None:
                _add(seconds, errors, names, rows, found)
        return Estimates(seconds, errors, names)

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return time(after) / time(before). On a GPU that was not measured, part of the error cancels."""
        found = super().ratios(before, after, gpu, target)
        return uncertainty.same_gpu_ratios(found) if gpu == target else found

    def ask(self, group: FamilyCalls, gpu: Gpu) -> tuple[Array, Array, str] | None:
        """Return seconds, relative errors and the name of the model, for calls of one family and dtype."""
        dtype, extra = group.dtype, 0.0
        model = model_files.find(group.family, dtype, gpu.name)
        if model is None and (dtype in _SAME_UNITS or not self.same_units):
            dtype, extra = _SAME_UNITS.get(dtype, "float32"), _OTHER_FORMAT_ERROR
            model = model_files.find(group.family, dtype, gpu.name)
        if model is None:
            return None
        seconds = model.seconds(group, gpu)
        error = model.relative_error(group, gpu, seconds) + extra
        if group.family == "attention" and group.kinds is not None:
            seconds, error = seconds * _full_over_causal(group, seconds), error + _FULL_ERROR
        known = "" if model.knows(gpu) else f", {uncertainty.NOT_MEASURED}"
        return (
            seconds,
            error,
            f"{model_files.OWN_LABEL if model_files.is_own(model) else self.label}, {group.family} in {dtype}{known}",
        )


def _full_over_causal(group: FamilyCalls, seconds: Array) -> Array:
    """Return how many times as long attention takes when it is not causal.

    Of n blocks of queries by n of keys, causal attention computes n (n + 1) / 2, so that the other takes 2n / (n + 1) times
    as long, but for what a call of no arithmetic takes.
    """
    blocks = np.ceil(group["sequence"] / _BLOCK)
    base = np.minimum(ATTENTION_SECONDS, seconds) / seconds
    found: Array = base + (1.0 - base) * 2.0 * blocks / (blocks + 1.0)
    return found


def _add(
    seconds: Array, errors: Array, names: list[str], rows: npt.NDArray[np.int64], found: tuple[Array, Array, str]
) -> None:
    """Add the times of products to those of their operators; the errors of one operator's products count as dependent."""
    for row, time, error in zip(rows.tolist(), found[0], found[1] + _TURNED_ERROR, strict=True):
        before = seconds[row]
        if np.isnan(before):
            seconds[row], errors[row] = time, error
        else:
            seconds[row] = before + time
            errors[row] = (before * errors[row] + time * error) / (before + time)
        names[row] = f"{found[2]}, a product for each gradient"


class Reduction(Forest):
    """``softmax``, ``log_softmax``, ``layer_norm``, which are bound by memory with a rate that depends on the row's length.

    TorchSim takes a decision tree over the number and the length of the rows, as kernels are chosen by length (one warp, one
    block, or several passes a row); here it is a few small trees over the memory's roofline. Half precision is taken as
    float32 rows of as many bytes.
    """

    families = ("softmax", "layer_norm")
    label = "reduction"
    same_units = False
