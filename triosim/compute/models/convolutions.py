"""Times of convolutions and their gradients, by a Gaussian process on top of the roofline of cuDNN's algorithms.

It is fitted to float32 convolutions of fifteen GPUs and half-precision ones of three
(``triosim.compute.learned.convolution_features`` says what they read). Half precision on other GPUs, bfloat16 and TF32 follow
from the rates of the GPU's tensor cores. Convolutions in groups were not measured, nor on tensor cores channels last and boards
that halve the rate: they are left to other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim import gpus
from triosim.compute.attainable_rate import halves_tensor_cores
from triosim.compute.compute_model import ComputeModel, Estimates, Mask
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.learned.convolution_features import arithmetic_dtype
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
    """Convolutions of one to three dimensions, transposed ones, and both gradients.

    ``sustained``: as in a step, and not as in the loops of the tables, which add a cost of their own.
    """

    name = "convolutions"

    def __init__(self, *, sustained: bool = True) -> None:
        self._sustained = sustained

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; NaN for what was not measured, in groups or with channels last."""
        target = gpus.find(gpu)
        seen = OperatorSequence.of(operators)
        found = Estimates.unknown(len(seen), self.name)
        assert found.extrapolated is not None
        for rows, calls in (*seen.calls, *seen.gradients):
            if calls.family != "convolution":
                continue
            answered = (calls["groups"] == 1) & _alike(calls, target)
            rows, calls = rows[answered], calls.select(answered)
            model, calls = _model(calls, target)
            if model is None or not len(rows):
                continue
            seconds = model.seconds(calls, target) + (0.0 if self._sustained else model.loop_cost(calls, target))
            measured_format = model.dtype == calls.dtype
            other_format = 0.0 if measured_format else _OTHER_FORMAT_ERROR
            found.add(rows, seconds, model.relative_error(calls, target, seconds) + other_format)
            # In a format that nobody measured, errors need not be alike for all sizes.
            found.extrapolated[rows] = measured_format and model.measured_gpu(target) is None
            for row in rows.tolist() if model_files.is_own(model) else ():
                found.model[row] = _OWN
        return found


def _alike(calls: FamilyCalls, gpu: Gpu) -> Mask:
    """Return which calls are like measured ones: on tensor cores, with channels first, at the whole rate.

    Boards that halve their tensor cores, and channels last, are better known from steps on an RTX 3090, to which the roofline's
    efficiencies are fitted.
    """
    if calls.kinds is None or arithmetic_dtype(calls.dtype, gpu) == "float32":
        return np.ones(len(calls), dtype=bool)
    return ~np.char.endswith(calls.kinds, CHANNELS_LAST) & (not halves_tensor_cores(gpu, calls.dtype))


def _model(calls: FamilyCalls, gpu: Gpu) -> tuple[FamilyModel | None, FamilyCalls]:
    """Return the model for calls, and the calls in the dtype that the GPU computes in."""
    measured = model_files.find(calls.family, calls.dtype, gpu.name)
    if measured is not None and gpu.name in measured.rates:
        return measured, calls
    if arithmetic_dtype(calls.dtype, gpu) == "float32":
        return model_files.find(calls.family, "float32", gpu.name), replace(calls, dtype="float32")
    return measured or model_files.find(calls.family, "float16", gpu.name), calls
