"""Operator times by the roofline: a launch, and the longer of arithmetic near the peak and bytes near the bandwidth.

    time = launch + max(FLOPs / (e_c * rate of the dtype), bytes / (e_m * bandwidth))

Williams, Waterman and Patterson, "Roofline" (CACM 2009). The efficiencies e_c and e_m belong to a class of operators. The
defaults are coarse, rounded fits to the measured tables that docs/compute-models.md names, over all of their GPUs; ``fit``
replaces those of the classes that a trace has enough operators of. Float32 convolutions run in TF32 where the GPU has it,
as PyTorch's default is; float32 products do not, and their rate is limited by the board's power. The products of a recurrent
layer's steps wait for each other: it has a launch for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triosim import gpus
from triosim.compute import uncertainty
from triosim.compute.compute_model import CLASS_EDGES, Array, ComputeModel, Estimates
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import energy
from triosim.operators import features, products
from triosim.operators.kinds import kind_of
from triosim.trace import Operator, Trace

#: The launch of a kernel; its arithmetic or bytes come on top.
LAUNCH_SECONDS = 2e-6
#: A launch where the operators of a trace show none: the next kernel starts while one drains.
_LEAST_LAUNCH = 0.5e-6
#: The GPU whose data sheet stands for a GPU that is not in the catalogue.
STAND_IN = "A100"
#: The factor of the errors for such a GPU: that of the L4's steps in another size, treated as an unknown GPU.
OF_UNKNOWN_GPU = 1.4
#: The fewest operators to which the efficiencies of a class are fitted.
FEWEST = 4

Errors = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The part of the peak rate and of the bandwidth that a class reaches, its launch in seconds, and its errors.

    ``errors`` are mean absolute relative errors by size class (``CLASS_EDGES``), such that nine in ten rows of the tables are
    within 2.06 times them.
    """

    compute: float
    memory: float
    errors: Errors
    launch: float = LAUNCH_SECONDS

    @property
    def error(self) -> float:
        """The relative error of a long operator."""
        return self.errors[-1]


#: By class. Products, attention, element-wise operators, reductions: fitted to measured tables. The rest are assumptions.
DEFAULTS = {
    "product": Efficiency(0.75, 0.6, (0.5, 0.5, 0.3), 4e-6),
    "convolution": Efficiency(0.7, 0.6, (0.5, 0.5, 0.4), 4e-6),
    "convolution on tensor cores": Efficiency(0.4, 0.6, (0.5, 0.5, 0.4), 4e-6),
    "attention": Efficiency(0.5, 0.6, (0.7, 0.9, 0.45), 8e-6),
    "reduction": Efficiency(0.5, 0.62, (0.3, 0.3, 0.25)),
    "elementwise": Efficiency(0.5, 0.78, (0.2, 0.12, 0.12)),
    "optimizer": Efficiency(0.5, 0.7, (0.4, 0.3, 0.3)),
}
Key = tuple[str, str, str]  # class, phase and dtype; the dtype is empty for a class that only moves bytes
#: The classes whose efficiencies depend on the dtype; all others only move bytes.
ARITHMETIC = ("product", "convolution", "attention")
_REDUCTIONS = ("norm", "softmax", "sum", "mean", "pool", "loss", "var", "argmax", "cumsum", "topk", "sort", "embedding")
#: The relative error of a ratio for each factor of e between two sizes, in measured tables (``uncertainty.resizing_error``);
#: and the part of the error of one estimate that is left in the ratio of two on one GPU.
PER_E_FOLD = (0.14, 0.13, 0.09)
_SAME_GPU = 0.5
#: A fit is as good as the best within these margins of the error, relative and absolute: the candidates are 8% apart.
_AS_GOOD, _NEGLIGIBLE = 0.02, 0.03
#: The candidates of a fit.
_GRID = np.geomspace(0.02, 1.6, 56)


class Roofline(ComputeModel):
    """The roofline of a GPU; ``efficiencies`` are the fitted ones, by class, phase and dtype."""

    name = "roofline"

    def __init__(self) -> None:
        self.gpu = ""
        self.efficiencies: dict[Key, Efficiency] = {}

    def fit(self, trace: Trace) -> None:
        """Fit the efficiencies of each class, phase and dtype that the trace has operators of."""
        self.learn(trace.operators, trace.gpu)

    def learn(self, operators: Sequence[Operator], gpu: str) -> None:
        """Fit the efficiencies to operators that were measured on a GPU."""
        self.gpu = gpu
        self.efficiencies = {}
        found = _ceilings(operators, _gpu(gpu))
        seconds = np.array([operator.seconds for operator in operators])
        members: dict[Key, list[int]] = {}
        for row, key in enumerate(found.classes):
            members.setdefault(key, []).append(row)
        for key, rows in members.items():
            timed = np.array(rows)[seconds[rows] > 0.0]
            self.efficiencies[key] = _fit(found.arithmetic[timed], found.traffic[timed], seconds[timed], default(key))

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU, with the fitted efficiencies even if they are another GPU's."""
        found = _ceilings(operators, _gpu(gpu))
        used = [self.efficiencies.get(key) or default(key) for key in found.classes]
        compute = np.array([one.compute for one in used])
        memory = np.array([one.memory for one in used])
        launch = np.array([one.launch for one in used]) * found.launches
        seconds = np.fmax(found.arithmetic / compute, found.traffic / memory) + launch
        errors = np.array([one.errors for one in used]).reshape(len(used), 3)
        if gpu not in ("", self.gpu):
            errors = np.fmax(errors, np.array([default(key).errors for key in found.classes]).reshape(len(used), 3))
        which = np.searchsorted(CLASS_EDGES, seconds, side="right")
        unknown = OF_UNKNOWN_GPU if gpu and gpus.get(gpu) is None else 1.0
        errors = errors[np.arange(len(used)), which] * found.factor * unknown
        return Estimates(seconds, errors, [self.name] * len(used))

    def ratios(self, before: Sequence[Operator], after: Sequence[Operator], gpu: str, target: str) -> Estimates:
        """Return time(after, on ``target``) / time(before, on ``gpu``); the error grows with the change of size."""
        old, new = self.estimate(before, gpu), self.estimate(after, target)
        return uncertainty.resized(old, new, before, after, PER_E_FOLD, _SAME_GPU if gpu == target else 1.0)


def default(key: Key) -> Efficiency:
    """Return the default efficiency of a class, phase and dtype."""
    kind, _, dtype = key
    cores = " on tensor cores" if dtype not in ("float32", "float64", "") else ""
    return DEFAULTS.get(f"{kind}{cores}") or DEFAULTS[kind]


def class_of(operator: Operator, forward: Operator | None = None) -> str:
    """Return the class whose efficiencies an operator has: that of the operator that it differentiates, where known."""
    if operator.phase == "optimizer":
        return "optimizer"
    name = features.base_name((forward or operator).name)
    lower = name.lower()
    of = kind_of(name)
    if of in ARITHMETIC:
        return of
    if of == "recurrent":
        return "product"  # most of its arithmetic
    if of == "unknown" and "convolution" in lower:
        return "convolution"
    return "reduction" if any(word in lower for word in _REDUCTIONS) else "elementwise"


def arithmetic_dtype(operator: Operator, gpu: gpus.Gpu, kind: str) -> str:
    """Return the dtype that an operator computes in: that of its first floating-point tensor."""
    dtype = next((t.dtype for t in (*operator.inputs, *operator.outputs) if "float" in t.dtype), "float32")
    return "tf32" if dtype == "float32" and kind == "convolution" and "tf32" in gpu.flops else dtype


@dataclass(frozen=True, slots=True)
class _Ceilings:
    """For each operator: its class, the seconds of its arithmetic and of its bytes at the GPU's peaks, a factor of its error,
    and how many launches in a row it needs.
    """

    classes: list[Key]
    arithmetic: Array
    traffic: Array
    factor: Array
    launches: Array


def _ceilings(operators: Sequence[Operator], gpu: gpus.Gpu) -> _Ceilings:
    seen, rows = OperatorSequence.of(operators).distinct
    classes: list[Key] = []
    arithmetic, factor, launches = np.zeros(len(seen)), np.ones(len(seen)), np.ones(len(seen))
    flops = seen.drivers[:, 0]
    for row, (operator, forward) in enumerate(zip(seen, seen.forwards, strict=True)):
        kind = class_of(operator, forward)
        dtype = arithmetic_dtype(operator, gpu, kind) if kind in ARITHMETIC else ""
        classes.append((kind, operator.phase, dtype))
        if dtype:
            causal = kind == "attention" and (forward or operator).attributes.get("is_causal") is True
            arithmetic[row] = flops[row] * (0.5 if causal else 1.0) / _rate(gpu, dtype, kind)
            factor[row] = uncertainty.power_limit_factor(gpu, dtype) if kind == "product" else 1.0
        if features.kind(operator) == "recurrent":
            launches[row] = products.recurrent_steps(forward or operator)
    traffic = seen.drivers[:, 1:].sum(axis=1) / gpu.bandwidth
    return _Ceilings(
        [classes[row] for row in rows.tolist()], arithmetic[rows], traffic[rows], factor[rows], launches[rows]
    )


def _rate(gpu: gpus.Gpu, dtype: str, kind: str) -> float:
    """Return the FLOP/s that the efficiency of a class is a part of."""
    peak = gpu.rate(dtype)
    if kind != "product":
        return peak
    return min(peak, energy.sustained_rate(gpu, dtype) / DEFAULTS["product"].compute)


def _fit(arithmetic: Array, traffic: Array, seconds: Array, default: Efficiency) -> Efficiency:
    """Return the pair of efficiencies with about the smallest mean absolute relative error."""
    points = len(seconds)
    if not points:
        return default
    launches = (min(default.launch, float(seconds.min()) / 2.0), min(_LEAST_LAUNCH, float(seconds.min()) / 2.0))
    if points < FEWEST:  # scale the efficiency that limits them; so few show no error, so keep the default one
        by_compute, by_memory = arithmetic / default.compute, traffic / default.memory
        level = float(np.median(np.fmax(by_compute, by_memory) / (seconds - launches[0]))) or 1.0
        if (by_compute > by_memory).mean() >= 0.5:
            return replace(default, compute=default.compute * level, launch=launches[0])
        return replace(default, memory=default.memory * level, launch=launches[0])
    compute = _GRID if arithmetic.any() else np.array([default.compute])
    # A network repeats its layers: errors of equal points are computed once, and counted for each.
    points_once, distinct_rows = np.unique(np.stack((arithmetic, traffic, seconds)), axis=1, return_inverse=True)
    arithmetic_once, traffic_once, seconds_once = points_once
    busy = np.maximum(arithmetic_once / compute[:, None, None], traffic_once / _GRID[:, None])
    off = (np.abs((busy + launch) / seconds_once - 1.0) for launch in launches)
    errors = np.array([[row.take(distinct_rows, axis=1).mean(axis=1) for row in one] for one in off])
    # An efficiency that limits none of the operators cannot be fitted: of equally good pairs, take the nearest to the default.
    far = np.abs(np.log(compute / default.compute))[:, None] + np.abs(np.log(_GRID / default.memory))
    good = errors <= errors.min() * (1.0 + _AS_GOOD) + _NEGLIGIBLE
    which, row, column = np.unravel_index(int(np.where(good, far, np.inf).argmin()), errors.shape)
    free = max(points - (2 if len(compute) > 1 else 1), 1)
    error = float(errors[which, row, column]) * points / free * uncertainty.small_sample_factor(points)
    return Efficiency(float(compute[row]), float(_GRID[column]), (error, error, error), launches[which])


def _gpu(name: str) -> gpus.Gpu:
    return gpus.get(name) or gpus.find(STAND_IN)
