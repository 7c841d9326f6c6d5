"""Operator times by regressions fitted to measured rows of the user, from a file of ``triosim calibrate compute``.

``TRIOSIM_MODELS`` or ``--models`` names the file. An operator whose name the rows did not have is predicted by the regression
of its class; a GPU, a phase, a class or a dtype that they did not have is left to other models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.compute.learned import model_files
from triosim.compute.learned.kind_regression import MEASURED_ERROR, KindFeatures, OperatorKind, call_of
from triosim.compute.models.convolutions import Convolutions
from triosim.compute.models.elementwise import Elementwise
from triosim.compute.models.forest import Forest, Reduction
from triosim.compute.models.roofline import ARITHMETIC, LAUNCH_SECONDS, arithmetic_dtype, class_of, default
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu
from triosim.operators import features
from triosim.trace import Operator, Tensor

_BACKWARD = re.compile(r"_?backward\w*$", re.IGNORECASE)
_LIBRARIES = ("native", "cudnn", "miopen", "mkldnn", "thnn")
_DIMENSIONS = 4


class Calibrated(ComputeModel):
    """The user's regressions of every kind of operator that the rows have (forward, backward, optimizer), on their GPU."""

    name = "calibrated"

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU, NaN where no regression covers it."""
        target = gpus.find(gpu)
        found = Estimates.unknown(len(operators), self.name)
        regressions = model_files.regressions(target.name)
        if not regressions:
            return found
        known = kind_features(operators, target)
        covered: dict[OperatorKind, list[int]] = {}
        for row, kinds in enumerate(known.kinds):
            kind = next((kind for kind in kinds if kind in regressions), None)
            if kind is not None:
                covered.setdefault(kind, []).append(row)
        by_shipped = [row for kind, rows in covered.items() if regressions[kind].form == "shipped" for row in rows]
        known = with_shipped(known, operators, by_shipped, target)
        for kind, several in covered.items():
            regression, rows = regressions[kind], np.array(several)
            found.seconds[rows] = regression.seconds(known, rows)
            found.relative_error[rows] = regression.relative_error(known, rows)
        measured = model_files.measured_calls(target.name)
        for row, call in enumerate(known.calls):
            if call in measured:
                found.seconds[row], found.relative_error[row] = measured[call], MEASURED_ERROR
        return found


def kind_features(operators: Sequence[Operator], gpu: Gpu) -> KindFeatures:
    """Return the inputs of regressions for operators on a GPU, without ``shipped``.

    Forward operators are looked up by id among ``operators``.
    """
    sequence = OperatorSequence.of(operators)
    drivers = np.column_stack([np.ones(len(sequence)), sequence.drivers])
    arithmetic = np.zeros(len(sequence))
    sizes, kinds = [], []
    for row, (operator, forward) in enumerate(zip(sequence, sequence.forwards, strict=True)):
        of = class_of(operator, forward)
        dtype = arithmetic_dtype(operator, gpu, of) if of in ARITHMETIC else ""
        kinds.append(_kinds(operator.name, of, operator.phase, dtype))
        arithmetic[row] = drivers[row, 1] / gpu.rate(dtype) if dtype else 0.0
        sizes.append(_sizes(forward or operator))
    traffic = drivers[:, 2:].sum(axis=1) / gpu.bandwidth
    least = LAUNCH_SECONDS * 1e-3
    both = np.log(np.maximum(arithmetic, least)), np.log(np.maximum(traffic, least))
    lengths = np.array(sizes, dtype=float).reshape(len(sizes), 3 * _DIMENSIONS)
    columns = np.column_stack(
        [*both, both[0] - both[1], np.log2(np.maximum(np.hstack([drivers[:, 2:], lengths]), 1.0))]
    )
    unknown = np.full(len(operators), np.nan)
    calls = [call_of(operator) for operator in sequence]
    return KindFeatures(drivers, np.maximum(arithmetic, traffic) + LAUNCH_SECONDS, unknown, columns, kinds, calls)


def with_shipped(known: KindFeatures, operators: Sequence[Operator], rows: Sequence[int], gpu: Gpu) -> KindFeatures:
    """Return features with the estimates of the shipped models for the operators in some rows."""
    if not rows:
        return known
    asked, shipped = [operators[row] for row in rows], np.array(known.shipped)
    with model_files.using(""):
        for model in (Forest(), Convolutions(), Elementwise(), Reduction()):
            seconds = model.estimate(asked, gpu.name).seconds
            shipped[rows] = np.where(np.isnan(shipped[rows]), seconds, shipped[rows])
    return replace(known, shipped=shipped)


def roofline_error(kind: OperatorKind) -> float:
    """Return the relative error that the roofline states for a class of operators (``any CLASS``) by default."""
    return default((kind.name.removeprefix("any "), kind.phase, kind.dtype)).error


@lru_cache(maxsize=4096)
def bare_name(name: str) -> str:
    """Return an operator's name without its library, version and pass.

    ``ConvolutionBackward0`` and ``aten::convolution_backward`` are both ``convolution``.
    """
    bare = features.base_name(name)
    found = (_BACKWARD.sub("", bare) or bare).replace("_", "").lower()
    for library in _LIBRARIES:
        found = found.removeprefix(library)
    return found or bare


@lru_cache(maxsize=4096)
def _kinds(name: str, of: str, phase: str, dtype: str) -> tuple[OperatorKind, OperatorKind]:
    return OperatorKind(bare_name(name), phase, dtype), OperatorKind(f"any {of}", phase, dtype)


def _sizes(operator: Operator) -> list[int]:
    """Return the last dimensions of the first two tensors read and of the first one written."""
    tensors: list[Tensor | None] = [*operator.inputs[:2], None, None][:2] + [*operator.outputs[:1], None][:1]
    found: list[int] = []
    for tensor in tensors:
        shape = () if tensor is None else tensor.shape[-_DIMENSIONS:]
        found += (1,) * (_DIMENSIONS - len(shape)) + shape
    return found
