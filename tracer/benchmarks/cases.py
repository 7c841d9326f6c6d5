"""The micro-benchmarks: operators with random shapes, log-uniform in the ranges of common models, and their calls.

After TorchSim, appendix E, which draws products, attention and convolutions whose runs take from 10 us up. PyTorch is needed
only to call an operator. The same seed, operator, dtype and number always give the same case, so that an interrupted
measurement can be resumed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triosim.errors import OptionError, nearest
from triosim.operators import features
from triosim.trace import Operator, Phase, Tensor

#: A case that is too large for the limits is drawn again at most this often.
_TRIES = 2000
_FIRST_OUTPUT = 1_000_000  # ids of outputs, apart from those of inputs
Shape = tuple[int, ...]
#: Calls an operator: ``run(torch, tensors, attributes)``, of which a for-each operator gets lists of tensors.
Run = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The largest case: bytes of its tensors, FLOPs of its forward pass."""

    nbytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class SampledShapes:
    """Shapes of an operator's inputs and output (None: it works in place), and its other arguments.

    ``integers`` has the positions of integer inputs, with the bound that their values stay below.
    """

    inputs: Sequence[Shape]
    output: Shape | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An operator: its name in a trace, how its shapes are drawn, its call, and whether its backward pass is measured too."""

    name: str
    draw: Callable[[SizeSampler], SampledShapes]
    run: Run
    phase: Phase = "forward"
    backward: bool = True


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One operator to measure; ``integers`` has the positions of integer inputs, with the bound of their values.

    ``benchmark`` is what it was drawn for, empty for an operator of a plan; of that, ``forward`` is what it differentiates, and
    ``call`` the operator of a step that it stands for.
    """

    name: str
    operator: Operator
    benchmark: str
    integers: Mapping[int, int]
    forward: str = ""
    call: str = ""


class SizeSampler:
    """A sampler of log-uniform sizes; half of those from 64 up are rounded to a multiple of 64, as most sizes of models are."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def size(self, low: int, high: int) -> int:
        """Return a size from ``low`` to ``high``, log-uniformly."""
        found = round(math.exp(self._random.uniform(math.log(low), math.log(high))))
        if found >= 64 and self._random.random() < 0.5:
            found = 64 * round(found / 64)
        return min(max(found, low), high)

    def one(self, *choices: int) -> int:
        """Return one of some values."""
        return choices[int(self._random.integers(len(choices)))]


def case(benchmark: str, dtype: str, seed: int, number: int, limits: SizeLimits) -> BenchmarkCase | None:
    """Return the case of a number, or None where nothing within the limits was drawn."""
    kind = BENCHMARKS[benchmark]
    draw = SizeSampler(np.random.default_rng([seed, number, zlib.crc32(f"{benchmark} {dtype}".encode())]))
    for _ in range(_TRIES):
        drawn = kind.draw(draw)
        made = _operator(kind, drawn, dtype)
        held = sum(tensor.nbytes for tensor in (*made.inputs, *made.outputs)) * (3 if kind.backward else 1)
        if held <= limits.nbytes and features.flops(made) <= limits.flops:
            return BenchmarkCase(f"{benchmark}:{dtype}:{seed}:{number}", made, benchmark, drawn.integers)
    return None


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks of some names, all where there are none. Raises ``OptionError``."""
    for name in names:
        if name not in BENCHMARKS:
            raise OptionError(f"there is no benchmark '{name}'", where="--operators", fix=nearest(name, BENCHMARKS))
    return list(dict.fromkeys(names)) or list(BENCHMARKS)


def call(torch: Any, benchmark: str, tensors: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function without arguments that runs an operator on the tensors of a case."""
    run, arguments = BENCHMARKS[benchmark].run, tensors
    if lists := attributes.get("lists"):
        each = len(tensors) // lists
        arguments = [list(tensors[number * each : (number + 1) * each]) for number in range(lists)]
        arguments.append(
            [torch.tensor(1.0, device=tensor.device) for tensor in arguments[0]]
        )  # an optimizer's step counts
    return lambda: run(torch, arguments, attributes)


def _operator(kind: Benchmark, drawn: SampledShapes, dtype: str) -> Operator:
    inputs = tuple(
        Tensor(number, shape, "int64" if number in drawn.integers else dtype)
        for number, shape in enumerate(drawn.inputs)
    )
    if drawn.output is None:  # in place, on the first of the lists
        outputs = inputs[: len(inputs) // int(drawn.attributes["lists"])]
    else:
        outputs = (Tensor(_FIRST_OUTPUT, drawn.output, dtype),)
    return Operator(0, kind.name, kind.phase, "", inputs, outputs, 0.0, attributes=drawn.attributes)


def _linear(draw: SizeSampler) -> SampledShapes:
    m, n, k = draw.size(1, 65536), draw.size(16, 65536), draw.size(16, 65536)
    return SampledShapes([(m, k), (n, k), (n,)], (m, n))


def _mm(draw: SizeSampler) -> SampledShapes:
    m, n, k = (draw.size(16, 65536) for _ in range(3))
    return SampledShapes([(m, k), (k, n)], (m, n))


def _bmm(draw: SizeSampler) -> SampledShapes:
    b, m, n, k = draw.size(1, 1024), draw.size(16, 4096), draw.size(16, 4096), draw.size(16, 4096)
    return SampledShapes([(b, m, k), (b, k, n)], (b, m, n))


def _conv2d(draw: SizeSampler) -> SampledShapes:
    kernel, stride = draw.one(1, 1, 3, 3, 3, 5, 7), draw.one(1, 1, 1, 2)
    samples, side = draw.size(1, 256), draw.size(7, 224)
    read, made = draw.one(3, *(draw.size(16, 2048) for _ in range(7))), draw.size(16, 2048)
    out = (side + 2 * (kernel // 2) - kernel) // stride + 1
    return SampledShapes(
        [(samples, read, side, side), (made, read, kernel, kernel), (made,)],
        (samples, made, out, out),
        {"stride": [stride, stride], "padding": [kernel // 2, kernel // 2]},
    )


def _sdpa(draw: SizeSampler) -> SampledShapes:
    shape = (draw.size(1, 64), draw.size(1, 128), draw.size(16, 32768), draw.one(32, 64, 64, 96, 128, 128, 256))
    return SampledShapes([shape] * 3, shape, {"is_causal": bool(draw.one(0, 1))})


def _rows(draw: SizeSampler) -> Shape:
    return draw.size(1, 1 << 18), draw.size(16, 65536)


def _norm_shapes(weights: int) -> Callable[[SizeSampler], SampledShapes]:
    def draw_norm(draw: SizeSampler) -> SampledShapes:
        shape = _rows(draw)
        return SampledShapes([shape, *[shape[1:]] * weights], shape, {"normalized_shape": list(shape[1:])})

    return draw_norm


def _batch_norm(draw: SizeSampler) -> SampledShapes:
    channels, side = draw.size(8, 2048), draw.size(1, 224)
    shape = (draw.size(2, 256), channels, side, side)
    return SampledShapes([shape, *[(channels,)] * 4], shape)


def _softmax(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return SampledShapes([shape], shape, {"dim": -1})


def _elementwise(operands: int) -> Callable[[SizeSampler], SampledShapes]:
    def draw_operands(draw: SizeSampler) -> SampledShapes:
        shape = _rows(draw)
        return SampledShapes([shape] * operands, shape)

    return draw_operands


def _max_pool2d(draw: SizeSampler) -> SampledShapes:
    window, side = draw.one(2, 2, 3), draw.size(8, 224)
    samples, channels = draw.size(1, 256), draw.size(8, 1024)
    out = (side - window) // 2 + 1
    return SampledShapes(
        [(samples, channels, side, side)],
        (samples, channels, out, out),
        {"kernel_size": [window] * 2, "stride": [2, 2]},
    )


def _embedding(draw: SizeSampler) -> SampledShapes:
    words, width = draw.size(64, 262144), draw.size(16, 16384)
    looked_up = (draw.size(1, 64), draw.size(16, 8192))
    return SampledShapes([(words, width), looked_up], (*looked_up, width), integers={1: words})


def _cross_entropy(draw: SizeSampler) -> SampledShapes:
    rows, classes = draw.size(1, 65536), draw.size(2, 262144)
    return SampledShapes([(rows, classes), (rows,)], (), integers={1: classes})


def _torch(name: str) -> Run:
    return lambda torch, t, a: getattr(torch, name)(*t, **a)


def _functional(name: str) -> Run:
    return lambda torch, t, a: getattr(torch.nn.functional, name)(*t, **a)


def _norm(name: str) -> Run:
    return lambda torch, t, a: getattr(torch.nn.functional, name)(t[0], a["normalized_shape"], *t[1:])


def _for_each(name: str, lists: int, run: Callable[[Any, Sequence[Any]], Any]) -> Benchmark:
    """Return an optimizer's operator on lists of tensors of equal shapes, in the number and sizes of a network's parameters."""

    def draw_lists(draw: SizeSampler) -> SampledShapes:
        shapes = [(draw.size(64, 1 << 25),) for _ in range(draw.size(1, 256))]
        return SampledShapes(shapes * lists, None, {"lists": lists})

    return Benchmark(name, draw_lists, lambda torch, t, _: run(torch, t), "optimizer", backward=False)


def _fused_sgd(torch: Any, t: Sequence[Any]) -> Any:
    return torch._fused_sgd_(
        *t[:3],
        weight_decay=0.0,
        momentum=0.9,
        lr=1e-9,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _fused_adamw(torch: Any, t: Sequence[Any]) -> Any:
    return torch._fused_adamw_(
        *t[:4], [], t[4], lr=1e-9, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )


#: Benchmarks by their name in options. A for-each operator reads lists of tensors, of which it changes the first; its factors
#: keep values finite however often it is run.
BENCHMARKS: Mapping[str, Benchmark] = {
    "linear": Benchmark("aten::linear", _linear, _functional("linear")),
    "mm": Benchmark("aten::mm", _mm, _torch("mm"), backward=False),
    "bmm": Benchmark("aten::bmm", _bmm, _torch("bmm")),
    "conv2d": Benchmark("aten::conv2d", _conv2d, _functional("conv2d")),
    "sdpa": Benchmark("aten::scaled_dot_product_attention", _sdpa, _functional("scaled_dot_product_attention")),
    "layer_norm": Benchmark("aten::layer_norm", _norm_shapes(2), _norm("layer_norm")),
    "rms_norm": Benchmark("aten::rms_norm", _norm_shapes(1), _norm("rms_norm")),
    "batch_norm": Benchmark(
        "aten::batch_norm",
        _batch_norm,
        lambda torch, t, _: torch.nn.functional.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True),
    ),
    "softmax": Benchmark("aten::softmax", _softmax, _torch("softmax")),
    "log_softmax": Benchmark("aten::log_softmax", _softmax, _torch("log_softmax")),
    "add": Benchmark("aten::add", _elementwise(2), _torch("add"), backward=False),
    "mul": Benchmark("aten::mul", _elementwise(2), _torch("mul")),
    "relu": Benchmark("aten::relu", _elementwise(1), _torch("relu")),
    "gelu": Benchmark("aten::gelu", _elementwise(1), _functional("gelu")),
    "silu": Benchmark("aten::silu", _elementwise(1), _functional("silu")),
    "clone": Benchmark("aten::clone", _elementwise(1), _torch("clone"), backward=False),
    "max_pool2d": Benchmark("aten::max_pool2d", _max_pool2d, _functional("max_pool2d")),
    "embedding": Benchmark(
        "aten::embedding", _embedding, lambda torch, t, _: torch.nn.functional.embedding(t[1], t[0])
    ),
    "cross_entropy": Benchmark(
        "aten::cross_entropy_loss", _cross_entropy, _functional("cross_entropy"), backward=False
    ),
    "foreach_add": _for_each("aten::_foreach_add_", 2, lambda torch, t: torch._foreach_add_(t[0], t[1], alpha=1e-9)),
    "foreach_mul": _for_each("aten::_foreach_mul_", 1, lambda torch, t: torch._foreach_mul_(t[0], 1.0)),
    "foreach_lerp": _for_each("aten::_foreach_lerp_", 2, lambda torch, t: torch._foreach_lerp_(t[0], t[1], 1e-3)),
    "foreach_addcmul": _for_each(
        "aten::_foreach_addcmul_", 3, lambda torch, t: torch._foreach_addcmul_(*t[:3], value=1e-9)
    ),
    "foreach_addcdiv": _for_each(
        "aten::_foreach_addcdiv_", 3, lambda torch, t: torch._foreach_addcdiv_(*t[:3], value=1e-9)
    ),
    "foreach_sqrt": _for_each("aten::_foreach_sqrt", 1, lambda torch, t: torch._foreach_sqrt(t[0])),
    "foreach_div": _for_each("aten::_foreach_div_", 2, lambda torch, t: torch._foreach_div_(t[0], t[1])),
    "fused_adamw": _for_each("aten::_fused_adamw_", 4, _fused_adamw),
    "fused_sgd": _for_each("aten::_fused_sgd_", 3, _fused_sgd),
}
