"""The geometry of a convolution: channels, sizes and kernel, with which it is a product of matrices.

As an implicit product (Chetlur et al., "cuDNN", 2014), a convolution multiplies (samples x output pixels, input channels x
kernel) by (input channels x kernel, output channels), once for each group. Its gradients multiply the same three sides in
another order, and a transposed convolution is the data gradient of the convolution that undoes its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from triosim.operators import features, products
from triosim.operators.kinds import kind_of
from triosim.trace import Operator

#: What a call computes: the output, the gradient of the data or that of the weight.
Direction = Literal["forward", "data", "weight"]
#: What follows the direction of a call on tensors that have their channels last.
CHANNELS_LAST = " channels last"
_SWAPPED: Mapping[Direction, Direction] = {"forward": "data", "data": "forward", "weight": "weight"}


class Geometry(NamedTuple):
    """The sizes of a convolution. Of three spatial dimensions, the first two are one: height is depth times height."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride: int
    dilation: int


class ConvolutionCall(NamedTuple):
    """What a kernel computes of a convolution."""

    geometry: Geometry
    direction: Direction


def forward_call(operator: Operator) -> ConvolutionCall | None:
    """Return what a forward convolution computes; None for another operator, or where its shapes do not fit together."""
    name = features.base_name(operator.name)
    pair = products.factors(name, operator.inputs)
    if kind_of(name) != "convolution" or pair is None or not operator.outputs:
        return None
    transposed = name in products.TRANSPOSED_CONVOLUTIONS or bool(operator.attributes.get("transposed"))
    shapes = (pair[0].shape, pair[1].shape, operator.outputs[0].shape)
    return _call(*shapes, "forward", transposed, operator.attributes)


def gradient_calls(operator: Operator, forward: Operator | None) -> list[ConvolutionCall]:
    """Return what a backward operator of a convolution computes: the gradient of the data, of the weight, or both.

    Without ``forward``, the operator itself names the gradient, the data and the weight, as ``convolution_backward`` does.
    """
    if forward is not None:
        made = features.gradients_made(operator, forward)
        call = forward_call(forward)
        found = [] if call is None else [_gradient(call, which) for which in _named(made)]
        return found
    name = features.base_name(operator.name)
    if kind_of(name) != "convolution" or not name.endswith("_backward") or len(operator.inputs) < 3:
        return []
    gradient, data, weight = (tensor.shape for tensor in operator.inputs[:3])
    written = [tensor.shape for tensor in operator.outputs if tensor.numel]
    transposed = bool(operator.attributes.get("transposed"))
    call = _call(data, weight, gradient, "forward", transposed, operator.attributes)
    directions = _named((data in written, weight in written))
    return [] if call is None else [_gradient(call, which) for which in directions]


def _named(made: tuple[bool, bool]) -> list[Direction]:
    names: tuple[Direction, Direction] = ("data", "weight")
    return [name for name, one in zip(names, made, strict=True) if one]


def _gradient(call: ConvolutionCall, which: Direction) -> ConvolutionCall:
    """Return a gradient of a call, of which a transposed convolution's is swapped already."""
    return ConvolutionCall(call.geometry, which if call.direction == "forward" else _SWAPPED[which])


def _call(
    data: Sequence[int],
    weight: Sequence[int],
    out: Sequence[int],
    direction: Direction,
    transposed: bool,
    attributes: Mapping[str, Any],
) -> ConvolutionCall | None:
    if transposed:
        data, out, direction = out, data, _SWAPPED[direction]
    spatial = len(weight) - 2
    if spatial not in (1, 2, 3) or not {len(data), len(out)} <= {spatial + 1, spatial + 2}:
        return None
    batch, channels = (data[0] if len(data) == spatial + 2 else 1), data[-spatial - 1]
    if weight[1] == 0 or channels % weight[1] or out[-spatial - 1] != weight[0]:
        return None
    (height, width), (out_height, out_width), kernel = (_plane(sides[-spatial:]) for sides in (data, out, weight))
    stride = _last(attributes.get("stride")) or max(1, round(width / max(out_width, 1)))
    sizes = (batch, channels, weight[0], channels // weight[1], height, width, out_height, out_width, *kernel)
    if not all(sizes):
        return None
    return ConvolutionCall(Geometry(*sizes, stride, _last(attributes.get("dilation")) or 1), direction)


def _plane(sides: Sequence[int]) -> tuple[int, int]:
    """Return height and width of one to three spatial dimensions."""
    return math.prod(sides[:-1]), sides[-1]


def _last(value: Any) -> int:
    """Return the last of an argument's numbers, 0 where it is not known."""
    if isinstance(value, (list, tuple)):
        value = value[-1] if value else 0
    return int(value) if isinstance(value, (int, float)) else 0
