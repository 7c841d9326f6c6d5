"""Operator times by boosted trees on top of the roofline: matrix products and causal attention, softmax and normalisation.

Categories three and two of TorchSim (appendix E). The trees are fitted by ``triosim.compute.fit.family_fitting`` and ship
with triosim (``triosim.compute.learned.model_files``); ``triosim.compute.learned.family_model`` says what they learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array, ComputeModel, Estimates, Rows
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.learned.call_features import ATTENTION_SECONDS
from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.models import alignment, attention_kernels, grouped_products
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu, energy
from triosim.trace import Operator

#: Half precision, and fp8, run on the same units at the same rate in either format; the tables hold one of them.
_SAME_UNITS = {"float16": "bfloat16", "float8_e5m2": "float8_e4m3fn"}
_OTHER_FORMAT_ERROR = 0.05
#: The additional relative error of full attention and of gradients: the tables hold causal attention, and products of rows
#: by the transposed weight, but one of the gradients' factors is transposed. The six float32 linear layers' gradients of two
#: traces of an H100 are off by 32% on average, where forward calls of the same layers are off by 15%.
_FULL_ERROR, _GRADIENT_ERROR = 0.25, 0.25
#: And of products of groups, which no table has, and of products in TF32.
_GROUPED_ERROR, _TF32_ERROR = 0.15, 0.1
_BLOCK = 128
#: What the tables' scaled products have beside the product: vLLM's linear layer finds the largest number of its activations,
#: and scales and casts them. Seconds a row (rows take turns at one maximum in memory), fitted by ``validation.quantising``,
#: and bytes a number, which is read in bf16, in fp8 twice, and written. In a step, the casts are operators of their own.
QUANTISING = {"float8_e4m3fn": (5.3e-9, 5.0), "float4_e2m1fn_x2": (0.5e-9, 2.5)}
#: The least that is left of such a time.
_LEAST_PRODUCT = 0.3
#: The name of a model of the user's own, instead of that of the model that ships.
_OWN = "own"


class Forest(ComputeModel):
    """``linear``, ``mm``, ``addmm``, ``bmm``, ``matmul`` and their backward; attention; in the dtypes that were measured.

    ``sustained``: as in a step, where the board's power limits long products, and not as in the short loops of the tables.
    """

    name = "forest"
    families: tuple[str, ...] = ("product", "attention")
    same_units = True

    def __init__(self, *, sustained: bool = True) -> None:
        self._sustained = sustained

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; NaN for what belongs to no family that was measured."""
        target = gpus.find(gpu)
        seen = OperatorSequence.of(operators)
        found = Estimates.unknown(len(seen), self.name)
        for rows, given in seen.calls:
            calls = _in_half_precision(given, target)
            model = self._model(calls, target) if calls.family in self.families else None
            if model is not None:
                found.seconds[rows], found.relative_error[rows] = self._predict(model, calls, target)
                found.relative_error[rows] += _TF32_ERROR if calls is not given else 0.0
                self._name(found, rows, model, target)
                if calls.family == "attention" and not model_files.is_own(model):
                    other_kernel = [row for row in rows.tolist() if attention_kernels.knows(seen[row], target)]
                    found.seconds[other_kernel] = np.nan
        for rows, calls in seen.gradients if "product" in self.families else ():
            model = self._model(calls, target) if calls.family == "product" else None
            if model is not None:
                seconds, error = self._predict(model, calls, target)
                found.add(rows, seconds, error + _GRADIENT_ERROR)
                self._name(found, rows, model, target)
        if "product" in self.families:
            found.relative_error[[grouped_products.is_grouped(operator) for operator in seen]] += _GROUPED_ERROR
            pairs = zip(seen, seen.forwards, strict=True)
            found.seconds[:] *= [alignment.slowdown(*one, target).factor for one in pairs]
            by_group = [grouped_products.slowdown(operator) for operator in seen]
            found.seconds[:] *= np.where(np.array(found.model) == _OWN, 1.0, by_group)
        return found

    def _model(self, calls: FamilyCalls, gpu: Gpu) -> FamilyModel | None:
        """Return the model of the calls' dtype, or of a dtype that runs on the same units."""
        model = model_files.find(calls.family, calls.dtype, gpu.name)
        if model is None and (calls.dtype in _SAME_UNITS or not self.same_units):
            model = model_files.find(calls.family, _SAME_UNITS.get(calls.dtype, "float32"), gpu.name)
        return model

    def _name(self, found: Estimates, rows: Rows, model: FamilyModel, gpu: Gpu) -> None:
        assert found.extrapolated is not None
        found.extrapolated[rows] = model.measured_gpu(gpu) is None
        name = _OWN if model_files.is_own(model) else self.name
        for row in rows.tolist():
            found.model[row] = name

    def _predict(self, model: FamilyModel, calls: FamilyCalls, gpu: Gpu) -> tuple[Array, Array]:
        """Return seconds and relative errors of calls."""
        seconds = model.seconds(calls, gpu)
        if self._sustained and not model_files.is_own(model):
            seconds = np.maximum(_without_quantising(seconds, calls, model.dtype, gpu), _at_power(calls, gpu))
        error = model.relative_error(calls, gpu, seconds) + (_OTHER_FORMAT_ERROR if model.dtype != calls.dtype else 0.0)
        if calls.family == "attention" and calls.kinds is not None:
            return seconds * _full_over_causal(calls, seconds), error + _FULL_ERROR
        return seconds, error


def _in_half_precision(calls: FamilyCalls, gpu: Gpu) -> FamilyCalls:
    """Return calls in TF32 as those in half precision that take as long: twice as wide, numbers run at half the rate."""
    if calls.family != "product" or calls.dtype != "tf32":
        return calls
    if "tf32" not in gpu.flops:
        return replace(calls, dtype="float32")
    return replace(calls, dtype="bfloat16", columns={**calls.columns, "k": 2.0 * calls["k"]})


def _without_quantising(seconds: Array, calls: FamilyCalls, dtype: str, gpu: Gpu) -> Array:
    """Return the seconds of products alone: those of the tables of a ``dtype`` also quantise (``QUANTISING``)."""
    if calls.family != "product" or dtype not in QUANTISING:
        return seconds
    per_row, per_number = QUANTISING[dtype]
    quantising: Array = calls["b"] * calls["m"] * (per_row + per_number * calls["k"] / gpu.bandwidth)
    return np.maximum(seconds - quantising, _LEAST_PRODUCT * seconds)


def _at_power(calls: FamilyCalls, gpu: Gpu) -> Array | float:
    """Return the shortest time on tensor cores that the board's power allows for long."""
    if calls.dtype == "float32" or calls.family not in Forest.families:
        return 0.0
    b, m, n, k = (
        (calls[name] for name in "bmnk")
        if calls.family == "product"
        else (calls["batch"] * calls["heads"], calls["sequence"], calls["sequence"], calls["head_dim"])
    )
    least: Array = (
        2.0 * b * m * n * k / energy.sustained_rate(gpu, calls.dtype)
    )  # attention: two products, half of them masked
    return least


def _full_over_causal(group: FamilyCalls, seconds: Array) -> Array:
    """Return the ratio of the times of full and causal attention.

    Of n blocks of queries by n of keys, causal attention computes n (n + 1) / 2: but for the time of a call without arithmetic,
    the ratio is 2n / (n + 1).
    """
    blocks = np.ceil(group["sequence"] / _BLOCK)
    base = np.minimum(ATTENTION_SECONDS, seconds) / seconds
    found: Array = base + (1.0 - base) * 2.0 * blocks / (blocks + 1.0)
    return found


class Reduction(Forest):
    """``softmax``, ``log_softmax``, ``layer_norm``, which are bound by memory at a rate that depends on the length of the rows.

    TorchSim fits a decision tree to the number and the length of the rows, since kernels are chosen by length (one warp, one
    block, or several passes a row); here a few small trees correct the memory's roofline. Half precision is estimated as
    float32 rows of as many bytes.
    """

    families = ("softmax", "layer_norm")
    name = "reduction"
    same_units = False
