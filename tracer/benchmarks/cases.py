"""The cases of the micro-benchmarks: operators with random shapes, log-uniform in the ranges of models in use.

After TorchSim, appendix E, which draws products, attention and convolutions whose runs take from 10 us up. Nothing here needs
PyTorch: a case is an operator of a trace, and ``triosim.tracer.benchmarks.measure`` runs it. The same seed, operator, dtype and
number always give the same case, so that an interrupted measurement can be resumed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triosim.errors import OptionError, nearest
from triosim.operators import features
from triosim.trace import Operator, Phase, Tensor

#: A case that is too large for the limits is drawn again at most this often.
_TRIES = 2000
_FIRST_OUTPUT = 1_000_000  # ids of outputs, apart from those of inputs
Shape = tuple[int, ...]


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
    attributes: Mapping[str, Any]
    integers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An operator's name in a trace, how its shapes are drawn, and whether its backward pass is measured too."""

    name: str
    draw: Callable[[SizeSampler], SampledShapes]
    phase: Phase = "forward"
    backward: bool = True


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One operator to measure; ``integers`` has the positions of integer inputs, with the bound of their values."""

    name: str
    operator: Operator
    benchmark: str
    backward: bool
    integers: Mapping[int, int]


class SizeSampler:
    """Draws sizes; half of those from 64 up are rounded to a multiple of 64, as most sizes of models are."""

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
            return BenchmarkCase(f"{benchmark}:{dtype}:{seed}:{number}", made, benchmark, kind.backward, drawn.integers)
    return None


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks of some names, all where there are none. Raises ``OptionError``."""
    for name in names:
        if name not in BENCHMARKS:
            raise OptionError(f"there is no benchmark '{name}'", where="--operators", fix=nearest(name, BENCHMARKS))
    return list(dict.fromkeys(names)) or list(BENCHMARKS)


def _operator(kind: Benchmark, drawn: SampledShapes, dtype: str) -> Operator:
    inputs = tuple(
        Tensor(place, shape, "int64" if place in drawn.integers else dtype) for place, shape in enumerate(drawn.inputs)
    )
    if drawn.output is None:  # in place, on the first of the lists
        outputs = inputs[: len(inputs) // int(drawn.attributes["lists"])]
    else:
        outputs = (Tensor(_FIRST_OUTPUT, drawn.output, dtype),)
    return Operator(0, kind.name, kind.phase, "", inputs, outputs, 0.0, attributes=drawn.attributes)


def _drawn(
    inputs: Sequence[Shape], output: Shape | None, integers: Mapping[int, int] | None = None, **attributes: Any
) -> SampledShapes:
    return SampledShapes(inputs, output, attributes, integers or {})


def _linear(draw: SizeSampler) -> SampledShapes:
    m, n, k = draw.size(1, 65536), draw.size(16, 65536), draw.size(16, 65536)
    return _drawn([(m, k), (n, k), (n,)], (m, n))


def _mm(draw: SizeSampler) -> SampledShapes:
    m, n, k = (draw.size(16, 65536) for _ in range(3))
    return _drawn([(m, k), (k, n)], (m, n))


def _bmm(draw: SizeSampler) -> SampledShapes:
    b, m, n, k = draw.size(1, 1024), draw.size(16, 4096), draw.size(16, 4096), draw.size(16, 4096)
    return _drawn([(b, m, k), (b, k, n)], (b, m, n))


def _conv2d(draw: SizeSampler) -> SampledShapes:
    kernel, stride = draw.one(1, 1, 3, 3, 3, 5, 7), draw.one(1, 1, 1, 2)
    samples, side = draw.size(1, 256), draw.size(7, 224)
    read, made = draw.one(3, *(draw.size(16, 2048) for _ in range(7))), draw.size(16, 2048)
    out = (side + 2 * (kernel // 2) - kernel) // stride + 1
    return _drawn(
        [(samples, read, side, side), (made, read, kernel, kernel), (made,)],
        (samples, made, out, out),
        stride=[stride, stride],
        padding=[kernel // 2, kernel // 2],
    )


def _sdpa(draw: SizeSampler) -> SampledShapes:
    shape = (draw.size(1, 64), draw.size(1, 128), draw.size(16, 32768), draw.one(32, 64, 64, 96, 128, 128, 256))
    return _drawn([shape] * 3, shape, is_causal=bool(draw.one(0, 1)))


def _rows(draw: SizeSampler) -> Shape:
    return draw.size(1, 1 << 18), draw.size(16, 65536)


def _layer_norm(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return _drawn([shape, shape[1:], shape[1:]], shape, normalized_shape=list(shape[1:]))


def _rms_norm(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return _drawn([shape, shape[1:]], shape, normalized_shape=list(shape[1:]))


def _batch_norm(draw: SizeSampler) -> SampledShapes:
    channels, side = draw.size(8, 2048), draw.size(1, 224)
    shape = (draw.size(2, 256), channels, side, side)
    return _drawn([shape, *[(channels,)] * 4], shape)


def _softmax(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return _drawn([shape], shape, dim=-1)


def _of_one(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return _drawn([shape], shape)


def _of_two(draw: SizeSampler) -> SampledShapes:
    shape = _rows(draw)
    return _drawn([shape, shape], shape)


def _max_pool2d(draw: SizeSampler) -> SampledShapes:
    window, side = draw.one(2, 2, 3), draw.size(8, 224)
    samples, channels = draw.size(1, 256), draw.size(8, 1024)
    out = (side - window) // 2 + 1
    return _drawn(
        [(samples, channels, side, side)], (samples, channels, out, out), kernel_size=[window] * 2, stride=[2, 2]
    )


def _embedding(draw: SizeSampler) -> SampledShapes:
    words, width = draw.size(64, 262144), draw.size(16, 16384)
    looked_up = (draw.size(1, 64), draw.size(16, 8192))
    return _drawn([(words, width), looked_up], (*looked_up, width), {1: words})


def _cross_entropy(draw: SizeSampler) -> SampledShapes:
    rows, classes = draw.size(1, 65536), draw.size(2, 262144)
    return _drawn([(rows, classes), (rows,)], (), {1: classes})


def _for_each(lists: int) -> Callable[[SizeSampler], SampledShapes]:
    """Return what draws lists of tensors with equal shapes, in the number and sizes of a network's parameters."""

    def draw_lists(draw: SizeSampler) -> SampledShapes:
        shapes = [(draw.size(64, 1 << 25),) for _ in range(draw.size(1, 256))]
        return _drawn(shapes * lists, None, lists=lists)

    return draw_lists


def _optimizer(name: str, lists: int) -> Benchmark:
    return Benchmark(name, _for_each(lists), "optimizer", backward=False)


#: Benchmarks by their name in options. A for-each operator reads lists of tensors, of which it changes the first.
BENCHMARKS: Mapping[str, Benchmark] = {
    "linear": Benchmark("aten::linear", _linear),
    "mm": Benchmark("aten::mm", _mm, backward=False),
    "bmm": Benchmark("aten::bmm", _bmm),
    "conv2d": Benchmark("aten::conv2d", _conv2d),
    "sdpa": Benchmark("aten::scaled_dot_product_attention", _sdpa),
    "layer_norm": Benchmark("aten::layer_norm", _layer_norm),
    "rms_norm": Benchmark("aten::rms_norm", _rms_norm),
    "batch_norm": Benchmark("aten::batch_norm", _batch_norm),
    "softmax": Benchmark("aten::softmax", _softmax),
    "log_softmax": Benchmark("aten::log_softmax", _softmax),
    "add": Benchmark("aten::add", _of_two, backward=False),
    "mul": Benchmark("aten::mul", _of_two),
    "relu": Benchmark("aten::relu", _of_one),
    "gelu": Benchmark("aten::gelu", _of_one),
    "silu": Benchmark("aten::silu", _of_one),
    "clone": Benchmark("aten::clone", _of_one, backward=False),
    "max_pool2d": Benchmark("aten::max_pool2d", _max_pool2d),
    "embedding": Benchmark("aten::embedding", _embedding),
    "cross_entropy": Benchmark("aten::cross_entropy_loss", _cross_entropy, backward=False),
    "foreach_add": _optimizer("aten::_foreach_add_", 2),
    "foreach_mul": _optimizer("aten::_foreach_mul_", 1),
    "foreach_lerp": _optimizer("aten::_foreach_lerp_", 2),
    "foreach_addcmul": _optimizer("aten::_foreach_addcmul_", 3),
    "foreach_addcdiv": _optimizer("aten::_foreach_addcdiv_", 3),
    "foreach_sqrt": _optimizer("aten::_foreach_sqrt", 1),
    "foreach_div": _optimizer("aten::_foreach_div_", 2),
    "fused_adamw": _optimizer("aten::_fused_adamw_", 4),
    "fused_sgd": _optimizer("aten::_fused_sgd_", 3),
}
