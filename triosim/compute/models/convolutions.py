"""Times of convolutions and their gradients, by boosted trees on top of the roofline of cuDNN's algorithms.

The trees are fitted to float32 convolutions of fifteen GPUs and half-precision ones of three
(``triosim.compute.learned.convolution_features`` says what they read). Half precision on other GPUs, bfloat16 and TF32 follow
from the rates of the GPU's tensor cores. Convolutions in groups were not measured, and are left to other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array, ComputeModel, Estimates
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.learned.convolution_features import arithmetic_dtype, convolution_features, rate
from triosim.compute.learned.family_model import FamilyModel
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu
from triosim.operators.convolutions import CHANNELS_LAST
from triosim.trace import Operator

#: The additional relative error in a dtype that no GPU was measured in.
_OTHER_FORMAT_ERROR = 0.05
#: The name of a model of the user's own, instead of that of the model that ships.
_OWN = "own"


class Convolutions(ComputeModel):
    """Convolutions of one to three dimensions, transposed ones, and both gradients."""

    name = "convolutions"

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; NaN for what is no convolution, or one in groups."""
        target = gpus.find(gpu)
        seen = OperatorSequence.of(operators)
        found = Estimates.unknown(len(seen), self.name)
        assert found.extrapolated is not None
        for rows, calls in (*seen.calls, *seen.gradients):
            if calls.family != "convolution":
                continue
            whole = calls["groups"] == 1
            rows, calls = rows[whole], calls.select(whole)
            model, calls = _model(calls, target)
            if model is None or not len(rows):
                continue
            seconds = _seconds(model, calls, target)
            measured_format = model.dtype == calls.dtype
            other_format = 0.0 if measured_format else _OTHER_FORMAT_ERROR
            found.add(rows, seconds, model.relative_error(calls, target, seconds) + other_format)
            # In a format that nobody measured, errors need not be alike for all sizes.
            found.extrapolated[rows] = measured_format and model.measured_gpu(target) is None
            for row in rows.tolist() if model_files.is_own(model) else ():
                found.model[row] = _OWN
        return found


def _seconds(model: FamilyModel, calls: FamilyCalls, gpu: Gpu) -> Array:
    """Return the time of each call; with channels last on tensor cores, that of the roofline.

    The tables' tensors have their channels first, and what trees learned of these is not so of the others: with it, training
    steps of eight networks on an RTX 3090 came out 15 to 50% too slow, without it 1 to 27%.
    """
    found = model.seconds(calls, gpu)
    if calls.kinds is None or arithmetic_dtype(calls.dtype, gpu) == "float32":
        return found
    _, roofline = convolution_features(calls, gpu, rate(gpu, calls.dtype))
    return np.where(np.char.endswith(calls.kinds, CHANNELS_LAST), roofline, found)


def _model(calls: FamilyCalls, gpu: Gpu) -> tuple[FamilyModel | None, FamilyCalls]:
    """Return the model for calls, and the calls in the dtype that the GPU computes in."""
    measured = model_files.find(calls.family, calls.dtype, gpu.name)
    if measured is not None and gpu.name in measured.rates:
        return measured, calls
    if arithmetic_dtype(calls.dtype, gpu) == "float32":
        return model_files.find(calls.family, "float32", gpu.name), replace(calls, dtype="float32")
    return measured or model_files.find(calls.family, "float16", gpu.name), calls
