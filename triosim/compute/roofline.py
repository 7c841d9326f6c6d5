"""Operator times by the roofline: whichever takes longer of arithmetic near the peak rate and bytes near the bandwidth.

    time = max(FLOPs / (e_c * rate of the dtype), bytes / (e_m * bandwidth), launch floor)

Williams, Waterman and Patterson, "Roofline" (CACM 2009). The efficiencies e_c and e_m belong to a class of operators. The
defaults are coarse, rounded fits to the measured tables that docs/compute-models.md names, over all of their GPUs; ``fit``
replaces those of the classes that a trace has enough operators of. Float32 convolutions run in TF32 where the GPU has it,
as PyTorch's default is, and products do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import features
from triosim.compute.base import ComputeModel, Estimates
from triosim.trace import Operator, Trace

#: No kernel is shorter than its launch.
FLOOR_SECONDS = 2e-6
#: The GPU whose proportions stand for one that nobody knows.
STAND_IN = "A100"
#: A class of fewer operators than this keeps its efficiencies.
FEWEST = 4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The part of the peak rate and of the bandwidth that a class reaches, and its mean absolute relative error."""

    compute: float
    memory: float
    error: float
    points: int = 0  # of the fit, 0 for a default


#: By class. Products, attention, element-wise operators, reductions: fitted to measured tables. The rest are assumptions.
DEFAULTS = {
    "product": Efficiency(0.75, 0.6, 0.3),
    "convolution": Efficiency(0.7, 0.6, 0.4),
    "convolution on tensor cores": Efficiency(0.4, 0.6, 0.4),
    "attention": Efficiency(0.5, 0.6, 0.5),
    "reduction": Efficiency(0.5, 0.62, 0.22),
    "elementwise": Efficiency(0.5, 0.78, 0.1),
    "optimizer": Efficiency(0.5, 0.7, 0.3),
}
Key = tuple[str, str, str]  # class, phase, and what it computes in: "" for a class that only moves bytes
_ARITHMETIC = ("product", "convolution", "attention")
_REDUCTIONS = ("norm", "softmax", "sum", "mean", "pool", "loss", "var", "argmax", "cumsum", "topk", "sort", "embedding")
#: The candidates of a fit.
_GRID = np.geomspace(0.02, 1.6, 56)


class Roofline(ComputeModel):
    """The roofline of a GPU of the catalogue. ``efficiencies`` shows those of the fit, by class, phase and dtype."""

    def __init__(self) -> None:
        self.gpu = ""
        self.efficiencies: dict[Key, Efficiency] = {}

    def fit(self, trace: Trace) -> None:
        """Find the efficiencies of each class, phase and dtype that the trace has operators of."""
        self.gpu = trace.gpu
        self.efficiencies = {}
        classes, arithmetic, traffic = _ceilings(trace.operators, _gpu(trace.gpu))
        seconds = np.array([operator.seconds for operator in trace.operators])
        for key in dict.fromkeys(classes):
            rows = np.array([one == key for one in classes]) & (seconds > 0.0)
            self.efficiencies[key] = _fit(arithmetic[rows], traffic[rows], seconds[rows], default(key))

    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU; efficiencies that were fitted on another one are taken to hold for it."""
        classes, arithmetic, traffic = _ceilings(operators, _gpu(gpu))
        used = [self.efficiencies.get(key) or default(key) for key in classes]
        compute = np.array([one.compute for one in used])
        memory = np.array([one.memory for one in used])
        error = np.array([one.error if gpu in ("", self.gpu) else max(one.error, default(key).error)
                          for one, key in zip(used, classes, strict=True)])  # fmt: skip
        said = [
            f"roofline of {key[0]}, {f'from {one.points} operators' if one.points else 'default efficiencies'}"
            for one, key in zip(used, classes, strict=True)
        ]
        return Estimates(np.maximum(np.fmax(arithmetic / compute, traffic / memory), FLOOR_SECONDS), error, said)


def default(key: Key) -> Efficiency:
    """Return the efficiency of what no trace was fitted to."""
    kind, _, dtype = key
    cores = " on tensor cores" if dtype not in ("float32", "float64", "") else ""
    return DEFAULTS.get(f"{kind}{cores}") or DEFAULTS[kind]


def class_of(operator: Operator, forward: Operator | None = None) -> str:
    """Return which efficiencies an operator has; that of the operator that it differentiates, where it is known."""
    if operator.phase == "optimizer":
        return "optimizer"
    name = features.base_name((forward or operator).name)
    lower = name.lower()
    if name in features.CONVOLUTIONS or name in features.TRANSPOSED_CONVOLUTIONS or "convolution" in lower:
        return "convolution"
    if name in features.PRODUCTS or lower.startswith(("addmm", "mm", "bmm", "linear")):
        return "product"
    if features.is_attention(name) or lower.startswith("scaleddotproduct"):
        return "attention"
    return "reduction" if any(word in lower for word in _REDUCTIONS) else "elementwise"


def arithmetic_dtype(operator: Operator, gpu: gpus.Gpu, kind: str) -> str:
    """Return the dtype that an operator computes in: that of its first tensor of numbers."""
    dtype = next((t.dtype for t in (*operator.inputs, *operator.outputs) if "float" in t.dtype), "float32")
    return "tf32" if dtype == "float32" and kind == "convolution" and "tf32" in gpu.flops else dtype


def _ceilings(operators: Sequence[Operator], gpu: gpus.Gpu) -> tuple[list[Key], Array, Array]:
    """Return each operator's class, and the seconds of its arithmetic and of its bytes at the GPU's peaks."""
    by_id = {operator.id: operator for operator in operators if operator.phase == "forward"}
    classes: list[Key] = []
    arithmetic, traffic = np.zeros(len(operators)), np.zeros(len(operators))
    for row, operator in enumerate(operators):
        forward = by_id.get(operator.forward) if operator.forward is not None else None
        kind = class_of(operator, forward)
        dtype = arithmetic_dtype(operator, gpu, kind) if kind in _ARITHMETIC else ""
        classes.append((kind, operator.phase, dtype))
        traffic[row] = features.input_bytes(operator, forward) + features.output_bytes(operator, forward)
        if dtype:
            arithmetic[row] = features.flops(operator, forward) / gpu.rate(dtype)
    return classes, arithmetic, traffic / gpu.bandwidth


def _fit(arithmetic: Array, traffic: Array, seconds: Array, default: Efficiency) -> Efficiency:
    """The pair of efficiencies with the smallest mean absolute relative error."""
    points = len(seconds)
    if not points:
        return default
    floor = FLOOR_SECONDS
    predicted = np.maximum(np.maximum(arithmetic / default.compute, traffic / default.memory), floor)
    if points < FEWEST:  # the default's proportions at the trace's level; what the error is, the points cannot say
        level = float(np.median(predicted / seconds))
        return replace(default, compute=default.compute * level, memory=default.memory * level)
    compute = _GRID if arithmetic.any() else np.array([default.compute])
    times = np.maximum(np.maximum(arithmetic / compute[:, None, None], traffic / _GRID[:, None]), floor)
    errors = np.abs(times / seconds - 1.0).mean(axis=2)
    best = np.unravel_index(int(errors.argmin()), errors.shape)
    free = max(points - (2 if len(compute) > 1 else 1), 1)
    return Efficiency(float(compute[best[0]]), float(_GRID[best[1]]), float(errors[best]) * points / free, points)


def _gpu(name: str) -> gpus.Gpu:
    return gpus.get(name) or gpus.find(STAND_IN)
