"""Products and convolutions: which tensors they multiply, and their FLOPs.

A multiply-add counts as two, as in PyTorch's flop counter (``torch.utils.flop_counter``). Of the orders of a product of several
matrices the cheapest counts, as in ``linalg.multi_dot``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from triosim.operators import number_formats
from triosim.operators.kinds import PRODUCTS_BY_FORM, ProductForm, names
from triosim.trace import Operator, Tensor

_FORM_OF: Mapping[str, ProductForm] = {name: form for form, names in PRODUCTS_BY_FORM.items() for name in names.split()}

CONVOLUTIONS = frozenset(name for name in names("convolution") if "transpose" not in name)
TRANSPOSED_CONVOLUTIONS = names("convolution") - CONVOLUTIONS
#: Products of two factors, whose gradients have as many FLOPs each.
PRODUCTS = frozenset(name for name, form in _FORM_OF.items() if form in ("rows", "matrix", "added", "grouped"))
#: One product of matrices or a batch of them, which is what the tables of measured operators hold.
DENSE = frozenset((
    "linear", "mkldnn_linear", "mm", "bmm", "matmul", "linalg_matmul", "addmm", "baddbmm", "addmm_activation", "scaled_mm",
))  # fmt: skip
_WEIGHTS = {"rows": (0, 1), "matrix": (-1, -2), "added": (-1, -2), "grouped": (-1, -2)}


def form_of(name: str) -> ProductForm | None:
    """Return how a product of a bare name multiplies; None for other operators."""
    return _FORM_OF.get(name)


def named(*forms: ProductForm) -> str:
    """Return the names of the products of some forms, separated by spaces."""
    return " ".join(PRODUCTS_BY_FORM[form] for form in forms)


def factors(name: str, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the two tensors that a forward product or convolution multiplies: data first, then the weight."""
    form = _FORM_OF.get(name)
    if form == "added" and len(inputs) > 2:
        pair = inputs[1:3]
    elif name in CONVOLUTIONS or name in TRANSPOSED_CONVOLUTIONS or form in _WEIGHTS:
        pair = inputs[:2]
    else:
        return None
    return (pair[0], pair[1]) if len(pair) == 2 and all(tensor.shape for tensor in pair) else None


def operands(name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return all tensors that a forward product or convolution multiplies."""
    pair = factors(name, inputs)
    if pair is not None:
        return pair
    form = _FORM_OF.get(name)
    if form in ("chain", "einsum"):
        return inputs
    if form in ("added", "summed") or name == "addr":
        return inputs[1:3] if len(inputs) > 2 else inputs
    return inputs[: 3 if form == "bilinear" else 2]


def weight_dimensions(name: str, weight: Tensor) -> tuple[int, int]:
    """Return the dimensions of output and input features of a product's or convolution's weight."""
    if name in TRANSPOSED_CONVOLUTIONS:
        return 1, 0
    if name in CONVOLUTIONS:
        return 0, 1
    rows, columns = _WEIGHTS.get(_FORM_OF.get(name, ""), (0, 1))
    count = len(weight.shape)
    return rows % count, columns % count


def flops(name: str, operator: Operator) -> float | None:
    """Return the FLOPs of a forward product or convolution; None where the shapes do not say them."""
    inputs, outputs = operator.inputs, operator.outputs
    pair = factors(name, inputs)
    if name in CONVOLUTIONS or name in TRANSPOSED_CONVOLUTIONS:
        if pair is None or not outputs:
            return None
        transposed = name in TRANSPOSED_CONVOLUTIONS or bool(operator.attributes.get("transposed"))
        return 2.0 * (pair[0] if transposed else outputs[0]).numel * math.prod(pair[1].shape[1:])
    form = _FORM_OF.get(name)
    if form == "chain":
        return _chain([tensor.shape for tensor in inputs])
    if form == "einsum":
        return _einsum(operator)
    if form is None or len(inputs) < 2 or not outputs:
        return None
    if form == "outer":
        return outputs[0].numel * (2.0 if name == "addr" else 1.0)
    if form == "summed":
        first, second = operands(name, inputs)
        return 2.0 * first.numel * second.shape[-1] if second.shape else None
    if form == "contraction":  # M x K by K x N: the product of the sizes is (M K N) squared
        return _contraction([*inputs[:2], outputs[0]])
    if form == "bilinear":
        return _bilinear(inputs)
    if pair is None:
        return None
    groups = outputs[0].shape[0] if form == "grouped" and len(pair[0].shape) == len(pair[1].shape) == 2 else 1
    packed = number_formats.numbers_in_an_element(pair[0].dtype)
    return 2.0 * outputs[0].numel * packed * pair[0].shape[-1] / max(groups, 1)


def recurrent_flops(operator: Operator) -> float | None:
    """Return the FLOPs of the products in an LSTM, GRU or plain recurrent layer: each weight once for each step."""
    inputs = operator.inputs
    if len(inputs) < 3 or not inputs[0].shape:
        return None
    data, hidden = inputs[0], inputs[1]
    weights = [tensor for tensor in inputs[1:] if len(tensor.shape) == 2 and tensor.category == "parameter"]
    if not weights and "cudnn_rnn" in operator.name:  # of which states have three dimensions; autocast copies weights
        weights = [tensor for tensor in inputs[1:] if len(tensor.shape) == 2]
    if not weights:  # they, and the biases, have a row for each feature of each gate
        wide = [tensor.shape[0] for tensor in inputs[2:] if len(tensor.shape) == 1]
        rows = wide[0] if wide else _gates(operator.name) * (hidden.shape[-1] if hidden.shape else 0)
        weights = [tensor for tensor in inputs[1:] if len(tensor.shape) == 2 and tensor.shape[0] == rows]
    steps = data.numel / data.shape[-1] if data.shape[-1] else 0.0
    return 2.0 * steps * sum(tensor.numel for tensor in weights) if weights else None


def recurrent_steps(operator: Operator) -> float:
    """Return how many products of a recurrent layer run one after the other: those of each step and layer, on average.

    Directions run side by side. Of a cell, whose state has two dimensions, there is one.
    """
    data = operator.inputs[0] if operator.inputs else None
    hidden = next((tensor for tensor in operator.inputs[1:] if len(tensor.shape) == 3), None)
    if data is None or hidden is None or not operator.outputs or not (data.numel and hidden.numel):
        return 1.0
    stacked, samples, features = hidden.shape
    directions = max(operator.outputs[0].shape[-1] // features, 1) if operator.outputs[0].shape else 1
    return max(data.numel / data.shape[-1] / samples * stacked / directions, 1.0)


def _gates(name: str) -> int:
    return 4 if "lstm" in name.lower() else 3 if "gru" in name.lower() else 1


def _contraction(tensors: Sequence[Tensor]) -> float:
    return 2.0 * math.sqrt(math.prod(tensor.numel for tensor in tensors))


def _bilinear(inputs: Sequence[Tensor]) -> float | None:
    """(..., i) by (o, i, j), and the result, (..., o, j), by (..., j)."""
    weight = next((tensor for tensor in inputs[2:] if len(tensor.shape) == 3), None)
    if weight is None or not inputs[0].shape or not inputs[0].shape[-1]:
        return None
    made, left, right = weight.shape
    rows = inputs[0].numel / inputs[0].shape[-1]
    return 2.0 * rows * made * right * (left + 1)


def _chain(shapes: Sequence[tuple[int, ...]]) -> float | None:
    """The cheapest order of multiplying matrices (Cormen et al., "Introduction to Algorithms", matrix-chain multiplication)."""
    if len(shapes) < 2 or not all(shapes):
        return None
    first, *rest = shapes
    sides = [first[0] if len(first) > 1 else 1, first[-1], *(shape[-1] if len(shape) > 1 else 1 for shape in rest)]
    count = len(shapes)
    cost = [[0.0] * count for _ in range(count)]
    for length in range(1, count):
        for start in range(count - length):
            last = start + length
            cost[start][last] = min(
                cost[start][cut] + cost[cut + 1][last] + 2.0 * sides[start] * sides[cut + 1] * sides[last + 1]
                for cut in range(start, last)
            )
    return cost[0][-1]


def _einsum(operator: Operator) -> float | None:
    """Two for each combination of the equation's letters; without an equation, the FLOPs of one product of matrices."""
    left = str(operator.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [tensor.shape for tensor in operator.inputs]
    if [len(term) for term in left] == [len(shape) for shape in shapes]:
        lengths = dict(zip("".join(left), itertools.chain.from_iterable(shapes), strict=True))
        return 2.0 * math.prod(lengths.values())
    tensors = [*operator.inputs[:2], *operator.outputs[:1]]
    return _contraction(tensors) if len(tensors) == 3 else None
