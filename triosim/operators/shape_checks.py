"""Checks that an operator's shapes fit together: a product's inner dimensions, a convolution's channels, a missing weight.

The rules are those of PyTorch's own operators; other operators are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triosim.operators.features import base_name
from triosim.trace import Operator

Shape = tuple[int, ...]


def contradiction(operator: Operator) -> str:
    """Return what is wrong with a forward operator's shapes, or an empty text."""
    inputs, outputs = ([tensor.shape for tensor in some] for some in (operator.inputs, operator.outputs))
    name = base_name(operator.name)
    check = _CHECKS.get(name)
    if check is None or operator.phase != "forward":
        return ""
    if name in ("addmm", "baddbmm"):
        inputs = inputs[1:]
    if len(inputs) < 2:
        return f"{name} needs two tensors to multiply, and has {len(inputs)}"
    return check(inputs, outputs, operator)


def _linear(inputs: Sequence[Shape], outputs: Sequence[Shape], operator: Operator) -> str:
    first, weight = inputs[:2]
    if len(weight) != 2 or first[-1:] != weight[1:]:
        return f"{_x(first)} cannot be multiplied by the transpose of the weight {_x(weight)}"
    return _result((*first[:-1], weight[0]), outputs)


def _product(inputs: Sequence[Shape], outputs: Sequence[Shape], operator: Operator) -> str:
    first, second = inputs[:2]
    if len(first) < 2 or len(second) < 2:
        return ""  # vectors: matmul takes them
    if first[-1] != second[-2]:
        return f"{_x(first)} cannot be multiplied by {_x(second)}: {first[-1]} columns, {second[-2]} rows"
    if len(first) == len(second) and first[:-2] == second[:-2]:
        return _result((*first[:-1], second[-1]), outputs)
    return ""


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape], operator: Operator) -> str:
    data, weight = inputs[:2]
    if operator.attributes.get("transposed") or len(weight) < 3 or len(data) not in (len(weight), len(weight) - 1):
        return "" if operator.attributes.get("transposed") else f"no convolution of {_x(data)} by a weight {_x(weight)}"
    channels = data[1 - (len(data) < len(weight))]
    groups = operator.attributes.get("groups", channels // weight[1] if weight[1] else 0)
    if channels != groups * weight[1] or not groups or weight[0] % groups:
        return f"the weight {_x(weight)} does not fit the {channels} channels of {_x(data)}"
    return ""


def _result(wanted: Shape, outputs: Sequence[Shape]) -> str:
    if outputs and outputs[0] != wanted:
        return f"the result has the shape {_x(wanted)}, not {_x(outputs[0])}"
    return ""


def _x(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


_CHECKS: Mapping[str, Callable[[Sequence[Shape], Sequence[Shape], Operator], str]] = {
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "matmul"), _product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "cudnn_convolution"), _convolution),
}
