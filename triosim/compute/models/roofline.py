"""Operator times by the roofline: a launch, and the longer of arithmetic near the peak and bytes near the bandwidth.

    time = launch + max(FLOPs / (e_c * rate of the dtype), bytes / (e_m * bandwidth)) + converted bytes / (e_m * bandwidth)

Williams, Waterman and Patterson, "Roofline" (CACM 2009). The efficiencies e_c and e_m belong to a class of operators. The
defaults are coarse, rounded fits to the measured tables that docs/compute-models.md names, over all of their GPUs; ``fit``
replaces those of the classes that a trace has enough operators of. Float32 convolutions run in TF32 where the GPU has it,
as PyTorch's default is; float32 products do not, and their rate is limited by the board's power. The products of a recurrent
layer's steps wait for each other: it has a launch for each. Tensor cores convolve images with their channels last; cuDNN
converts others before and after, which reads and writes each once more. Depthwise convolutions do not run on tensor cores,
nor do those in groups in float32; they, batch norm and gradients of pooling gain nothing from bandwidth that a multiprocessor
cannot use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triosim import gpus
from triosim.compute import attainable_rate, uncertainty
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


#: By class. Products, attention, element-wise operators and reductions are fitted to measured tables of operators; those of
#: images and of mixed precision to whole steps of timm's models (``python -m validation.image_models.efficiencies``).
DEFAULTS = {
    "product": Efficiency(0.75, 0.6, (0.5, 0.5, 0.3), 4e-6),
    "convolution": Efficiency(0.7, 0.6, (0.5, 0.5, 0.4), 4e-6),
    "convolution on tensor cores": Efficiency(1.0, 0.77, (0.5, 0.35, 0.21), 4e-6),
    "convolution in TF32": Efficiency(1.0, 0.77, (0.5, 0.5, 0.3), 4e-6),  # as in half precision
    "convolution gradient on tensor cores": Efficiency(1.0, 0.5, (0.5, 0.35, 0.21), 4e-6),
    "convolution gradient in TF32": Efficiency(1.0, 0.5, (0.5, 0.5, 0.3), 4e-6),  # as in half precision
    "grouped convolution": Efficiency(0.6, 0.54, (0.5, 0.5, 0.4), 4e-6),
    "grouped gradient": Efficiency(0.04, 0.54, (0.5, 0.5, 0.5), 4e-6),
    "depthwise convolution": Efficiency(0.5, 0.6, (0.5, 0.35, 0.25), 4e-6),
    "depthwise convolution gradient": Efficiency(0.5, 0.18, (0.5, 0.35, 0.25), 4e-6),
    "attention": Efficiency(0.5, 0.6, (0.7, 0.9, 0.45), 8e-6),
    "reduction": Efficiency(0.5, 0.62, (0.3, 0.3, 0.25)),
    "batch norm": Efficiency(0.5, 0.85, (0.3, 0.3, 0.2)),
    "row gradient": Efficiency(0.5, 0.7, (0.3, 0.3, 0.25)),
    "pooling": Efficiency(0.5, 0.67, (0.3, 0.3, 0.25)),
    "pooling gradient": Efficiency(0.5, 0.63, (0.3, 0.3, 0.25)),
    "elementwise": Efficiency(0.5, 0.78, (0.2, 0.12, 0.12)),
    "cast": Efficiency(0.5, 0.68, (0.2, 0.2, 0.2)),
    "transposition": Efficiency(0.5, 0.7, (0.3, 0.3, 0.3)),
    "copy": Efficiency(0.5, 0.42, (0.3, 0.3, 0.3)),
    "optimizer": Efficiency(0.5, 0.76, (0.4, 0.3, 0.3)),
}
Key = tuple[str, str, str]  # class, phase and dtype; the dtype is empty for a class that only moves bytes
_CONVOLUTIONS = ("convolution", "grouped convolution", "grouped gradient", "depthwise convolution")
#: The classes whose efficiencies depend on the dtype; all others only move bytes.
ARITHMETIC = ("product", *_CONVOLUTIONS, "attention")
#: Words in the names of operators that are not element-wise, and the classes that these are of, the first that fits.
_CLASSES: Mapping[str, Sequence[str]] = {
    "batch norm": ("batch_norm",),
    "pooling": ("pool", "upsample"),
    "reduction": ("norm", "softmax", "sum", "mean", "loss", "var", "argmax", "cumsum", "topk", "sort", "embedding"),
    "cast": ("to_copy", "cast_transpose"),
    "transposition": ("clone", "contiguous"),
    "copy": ("cat", "pad", "roll", "index", "slice_", "select_", "stack", "repeat"),
}
_ON_TENSOR_CORES = ("float16", "bfloat16", "tf32")
#: The bytes that depthwise convolutions, which execute many instructions for a number, move at most for each FLOP in float32:
#: those of an RTX 3090.
_MOST_BYTES_FOR_A_FLOP = 0.034
#: The bytes that a multiprocessor moves at most in a clock, where kernels wait for what they load: an RTX 3090 has 6.7, an A100
#: 13. Fitted to steps on one A100 and one V100 (``python -m validation.image_models.multiprocessors``).
MOST_BYTES_IN_A_CLOCK = {"batch norm": 8.5, "pooling gradient": 8.5}
#: The channels of a group that ordinary cores compute at once.
_LANES = 32
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
        found = ceilings(operators, _gpu(gpu))
        seconds = np.array([operator.seconds for operator in operators])
        members: dict[Key, list[int]] = {}
        for row, key in enumerate(found.classes):
            members.setdefault(key, []).append(row)
        for key, rows in members.items():
            timed = np.array(rows)[seconds[rows] > 0.0]
            ceiling = np.stack((found.arithmetic, found.traffic, found.converted))[:, timed]
            self.efficiencies[key] = _fit(ceiling, seconds[timed], default(key))

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return each operator's time on a GPU, with the fitted efficiencies even if they are another GPU's."""
        found = ceilings(operators, _gpu(gpu))
        used = [self.efficiencies.get(key) or default(key) for key in found.classes]
        compute = np.array([one.compute for one in used])
        memory = np.array([one.memory for one in used])
        launch = np.array([one.launch for one in used]) * found.launches
        seconds = np.fmax(found.arithmetic / compute, found.traffic / memory) + found.converted / memory + launch
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
    """Return the default efficiency of a class, phase and dtype: of its gradient and units, if they have one of their own."""
    kind, phase, dtype = key
    units = {"tf32": " in TF32", "float32": "", "float64": "", "": ""}.get(dtype, " on tensor cores")
    gradient = " gradient" if phase == "backward" else ""
    names = (f"{kind}{gradient}{units}", f"{kind}{gradient}", f"{kind}{units}", kind)
    return next(DEFAULTS[name] for name in names if name in DEFAULTS)


def class_of(operator: Operator, forward: Operator | None = None) -> str:
    """Return the class whose efficiencies an operator has: that of the operator that it differentiates, where known."""
    if operator.phase == "optimizer":
        return "optimizer"
    name = features.base_name((forward or operator).name)
    lower = name.lower()
    of = kind_of(name)
    if of == "convolution" or (of == "unknown" and "convolution" in lower):
        return _class_of_convolution(forward or operator, operator.phase)
    if of in ARITHMETIC:
        return of
    if of == "recurrent":
        return "product"  # most of its arithmetic
    found = next((one for one, words in _CLASSES.items() if any(word in lower for word in words)), "elementwise")
    if found == "batch norm" and operator.attributes.get("training") is False:
        return "elementwise"  # by statistics that are known
    if operator.phase == "backward" and found == "pooling":
        return "pooling gradient"
    return (
        "row gradient" if operator.phase == "backward" and of in ("norm", "softmax") and found == "reduction" else found
    )


def _class_of_convolution(operator: Operator, phase: str) -> str:
    """Return the class of a convolution by the channels of a group.

    cuDNN 8 has quick gradients of groups with their channels last for 4, 8, 16 or 32 channels in multiples of 32 groups alone.
    """
    groups = operator.attributes.get("groups", 1)
    weight = _weight(operator)
    if not isinstance(groups, int) or groups == 1 or len(weight) < 2:
        return "convolution"
    channels = weight[1]
    if channels == 1:
        return "depthwise convolution"
    quick = channels in (4, 8, 16, 32) and groups % 32 == 0
    slow = phase == "backward" and operator.attributes.get("channels_last") and not quick
    return "grouped gradient" if slow else "grouped convolution"


def arithmetic_dtype(operator: Operator, gpu: gpus.Gpu, kind: str) -> str:
    """Return the dtype that an operator computes in: that of its first floating-point tensor, as its units allow."""
    if kind == "depthwise convolution":
        return "float32"  # not on tensor cores
    dtype = next((t.dtype for t in (*operator.inputs, *operator.outputs) if "float" in t.dtype), "float32")
    allowed = operator.attributes.get("allow_tf32", kind in _CONVOLUTIONS) and kind != "grouped convolution"
    return "tf32" if dtype == "float32" and allowed and "tf32" in gpu.flops else dtype


@dataclass(frozen=True, slots=True)
class Ceilings:
    """For each operator: its class, the seconds at the GPU's peaks of its arithmetic, its bytes and those that it converts, a
    factor of its error, and how many launches in a row it needs.
    """

    classes: list[Key]
    arithmetic: Array
    traffic: Array
    converted: Array
    factor: Array
    launches: Array


def ceilings(operators: Sequence[Operator], gpu: gpus.Gpu) -> Ceilings:
    """Return the ceilings of operators on a GPU."""
    seen, rows = OperatorSequence.of(operators).distinct
    classes: list[Key] = []
    arithmetic, converted = np.zeros(len(seen)), np.zeros(len(seen))
    factor, launches = np.ones(len(seen)), np.ones(len(seen))
    flops = seen.drivers[:, 0]
    for row, (operator, forward) in enumerate(zip(seen, seen.forwards, strict=True)):
        kind = class_of(operator, forward)
        dtype = arithmetic_dtype(operator, gpu, kind) if kind in ARITHMETIC else ""
        classes.append((kind, operator.phase, dtype))
        if dtype:
            causal = kind == "attention" and (forward or operator).attributes.get("is_causal") is True
            arithmetic[row] = flops[row] * (0.5 if causal else 1.0) / _rate(gpu, dtype, kind)
            if kind == "grouped convolution" and dtype == "float32":
                arithmetic[row] *= _idle_lanes(forward or operator)
            factor[row] = uncertainty.power_limit_factor(gpu, dtype) if kind == "product" else 1.0
            if kind in _CONVOLUTIONS and dtype in _ON_TENSOR_CORES and has_tensor_cores(gpu):
                converted[row] = _converted_bytes(operator) / gpu.bandwidth
        if features.kind(operator) == "recurrent":
            launches[row] = products.recurrent_steps(forward or operator)
    traffic = seen.drivers[:, 1:].sum(axis=1) / np.array([_bandwidth(gpu, kind) for kind, _, _ in classes])
    return Ceilings(
        [classes[row] for row in rows.tolist()],
        *(column[rows] for column in (arithmetic, traffic, converted, factor, launches)),
    )


def has_tensor_cores(gpu: gpus.Gpu) -> bool:
    """Whether half precision is convolved by tensor cores: on Ampere and later, and where its rate is many times float32's."""
    return "tf32" in gpu.flops or gpu.rate("float16") > 3.0 * gpu.rate("float32")


def _converted_bytes(operator: Operator) -> float:
    """Return what is read and written to convert a convolution's images, where their channels are not last.

    Forward kernels of one pixel need no conversion.
    """
    if operator.attributes.get("channels_last") or not operator.outputs:
        return 0.0
    if operator.phase == "forward" and math.prod(_weight(operator)[2:]) == 1:
        return 0.0
    data = operator.inputs[:2] if operator.name.endswith("_backward") else operator.inputs[:1]
    return 2.0 * sum(tensor.nbytes for tensor in (*data, operator.outputs[0]))


def _weight(operator: Operator) -> Sequence[int]:
    """Return the shape of a convolution's weight, empty without one; a gradient names its own first, then data and weight."""
    found = operator.inputs[1:][operator.name.endswith("_backward") :][:1]
    return found[0].shape if found else ()


def _idle_lanes(operator: Operator) -> float:
    """Return how many times as long a convolution in groups takes as one whose groups fill the lanes of a warp."""
    outputs, inputs = _weight(operator)[:2]
    groups: int = operator.attributes["groups"]
    return max(1.0, _LANES / min(inputs, max(1, outputs // groups)))


def _bandwidth(gpu: gpus.Gpu, kind: str) -> float:
    """Return the bytes in a second that the memory efficiency of a class is a part of."""
    if kind == "depthwise convolution":
        return min(gpu.bandwidth, _MOST_BYTES_FOR_A_FLOP * gpu.rate("float32"))
    most = MOST_BYTES_IN_A_CLOCK.get(kind, math.inf) * gpu.sms * gpu.clock_hz
    return min(gpu.bandwidth, most) if most > 0.0 else gpu.bandwidth


def _rate(gpu: gpus.Gpu, dtype: str, kind: str) -> float:
    """Return the FLOP/s that the efficiency of a class is a part of.

    Of convolutions on tensor cores, it is what products attain, which is all of the peak on boards that halve it alone.
    """
    peak = gpu.rate(dtype)
    if kind in _CONVOLUTIONS and dtype in _ON_TENSOR_CORES:
        return min(attainable_rate.DEFAULT.rate(gpu, dtype), energy.sustained_rate(gpu, dtype))
    if kind != "product":
        return peak
    return min(peak, energy.sustained_rate(gpu, dtype) / DEFAULTS["product"].compute)


def _fit(ceiling: Array, seconds: Array, default: Efficiency) -> Efficiency:
    """Return the pair of efficiencies with about the smallest mean absolute relative error.

    ``ceiling`` is the seconds at the peaks: of arithmetic, of the bytes, and of those that are converted.
    """
    points = len(seconds)
    if not points:
        return default
    arithmetic, traffic, converted = ceiling
    launches = (min(default.launch, float(seconds.min()) / 2.0), min(_LEAST_LAUNCH, float(seconds.min()) / 2.0))
    if points < FEWEST:  # scale the efficiency that limits them; so few show no error, so keep the default one
        by_compute, by_memory = arithmetic / default.compute, (traffic + converted) / default.memory
        level = float(np.median(np.fmax(by_compute, by_memory) / (seconds - launches[0]))) or 1.0
        if (by_compute > by_memory).mean() >= 0.5:
            return replace(default, compute=default.compute * level, launch=launches[0])
        return replace(default, memory=default.memory * level, launch=launches[0])
    compute = _GRID if arithmetic.any() else np.array([default.compute])
    # A network repeats its layers: errors of equal points are computed once, and counted for each.
    points_once, distinct_rows = np.unique(np.vstack((ceiling, seconds)), axis=1, return_inverse=True)
    arithmetic_once, traffic_once, converted_once, seconds_once = points_once
    busy = np.maximum(arithmetic_once / compute[:, None, None], traffic_once / _GRID[:, None])
    busy += converted_once / _GRID[:, None]
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
