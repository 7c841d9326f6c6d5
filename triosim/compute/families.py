"""Families of operators that learned models predict, and the sizes of their calls as columns of numbers.

Tables hold the sizes (``triosim.compute.fit.family_tables``); those of a trace's operators are read from the tensors' shapes.
Operators of no family, or whose shapes do not determine the sizes, are left to other models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from triosim.compute.compute_model import Array, Mask, Rows
from triosim.operators import convolutions, number_formats, products
from triosim.operators.convolutions import ConvolutionCall, Geometry
from triosim.operators.features import base_name, gradients_made, is_attention
from triosim.operators.kinds import kind_of
from triosim.trace import Operator

Family = Literal["product", "attention", "elementwise", "softmax", "layer_norm", "convolution"]
_Call = tuple[Family, str, tuple[int, ...], str]
FAMILIES: tuple[Family, ...] = get_args(Family)

#: The columns of each family. A product is ``b`` times (m, k) by (k, n).
COLUMNS: Mapping[Family, tuple[str, ...]] = {
    "product": ("b", "m", "n", "k"),
    "attention": ("batch", "sequence", "heads", "kv_heads", "head_dim"),
    "elementwise": ("rows", "columns"),
    "softmax": ("rows", "columns"),
    "layer_norm": ("rows", "columns"),
    "convolution": Geometry._fields,
}
ELEMENTWISE = frozenset((
    "add", "sub", "rsub", "mul", "div", "pow", "relu", "gelu", "tanh", "sigmoid", "silu", "neg", "exp", "sqrt", "rsqrt",
    "abs", "clamp", "hardtanh", "leaky_relu", "square",
))  # fmt: skip
#: Element-wise operators of two tensors; for one tensor and a number, tables append a ``u`` to the name.
BINARY = frozenset(("add", "sub", "mul", "div", "pow"))
#: The kind of attention that is not causal; the tables hold none.
FULL = "full"
_SOFTMAX = frozenset(("softmax", "log_softmax", "safe_softmax"))
_LAYER_NORM = frozenset(("layer_norm", "native_layer_norm"))
#: The rows of a tile of a grouped product, which belong to one group.
_TILE = 128


@dataclass(frozen=True)
class FamilyCalls:
    """The sizes of calls of one family in one dtype (of products a number format): a column for each of ``COLUMNS``.

    ``kinds`` names element-wise operators, and what calls of convolutions compute (``convolutions.Direction``), with or
    without ``convolutions.CHANNELS_LAST``; calls of attention that is not causal all have the kind ``FULL``. Convolutions in
    float32 that may compute in TF32 have the dtype ``tf32``.
    """

    family: Family
    dtype: str
    columns: Mapping[str, Array]
    kinds: npt.NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def select(self, rows: Mask | Rows) -> FamilyCalls:
        """Return some of the calls."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, columns=columns, kinds=None if self.kinds is None else self.kinds[rows])


def calls_of(operators: Sequence[Operator]) -> list[tuple[Rows, FamilyCalls]]:
    """Return the calls by family and dtype, each with the indices of its operators; operators without a family are left out."""
    return _grouped((row, _sizes(operator)) for row, operator in enumerate(operators))


def gradient_calls_of(
    operators: Sequence[Operator], forwards: Sequence[Operator | None]
) -> list[tuple[Rows, FamilyCalls]]:
    """Return the calls that compute the gradients of products and convolutions, one for each gradient, with the indices of
    their operators.

    Of (m, k) by (k, n), the data's gradient is (m, n) by (n, k), and the weight's (k, m) by (m, n).
    """
    found: list[tuple[int, _Call | None]] = []
    for row, (operator, forward) in enumerate(zip(operators, forwards, strict=True)):
        several = convolutions.gradient_calls(operator, forward) if operator.phase == "backward" else []
        if (
            forward is not None or len(several) > 1
        ):  # a single gradient without its forward operator is a call of its own
            found += [(row, _convolution(forward or operator, call)) for call in several]
        one = _sizes(forward) if forward is not None and operator.phase == "backward" else None
        if forward is None or one is None or one[0] != "product":
            continue
        b, m, n, k = one[2]
        data, weight = gradients_made(operator, forward)
        found += [(row, ("product", one[1], (b, m, k, n), ""))] if data else []
        found += [(row, ("product", one[1], (b, k, n, m), ""))] if weight else []
    return _grouped(found)


def _grouped(calls: Iterable[tuple[int, _Call | None]]) -> list[tuple[Rows, FamilyCalls]]:
    found: dict[tuple[Family, str, bool], list[tuple[int, tuple[int, ...], str]]] = {}
    for row, one in calls:
        if one is not None:
            found.setdefault((*one[:2], one[3] == FULL), []).append((row, one[2], one[3]))
    grouped = []
    for (family, dtype, _), members in found.items():
        values = np.array([sizes for _, sizes, _ in members], dtype=np.float64)
        columns = {name: values[:, number] for number, name in enumerate(COLUMNS[family])}
        named = np.array([kind for _, _, kind in members])
        kinds = named if named[0] else None
        grouped.append((np.array([row for row, _, _ in members]), FamilyCalls(family, dtype, columns, kinds)))
    return grouped


def _sizes(operator: Operator) -> _Call | None:
    """Return an operator's family, dtype, sizes and kind."""
    name = base_name(operator.name)
    inputs = [tensor for tensor in operator.inputs if tensor.shape]
    if not inputs or any(not tensor.numel for tensor in inputs):
        return None
    dtype = inputs[0].dtype
    grouped = products.form_of(name) == "grouped"
    if name in products.DENSE or grouped:
        product = _grouped_product(name, operator) if grouped else _product(name, operator)
        form = number_formats.of_scaled(inputs) if name.startswith("scaled_") else dtype
        if form == "float32" and operator.attributes.get("allow_tf32") is True:
            form = "tf32"
        return None if product is None else ("product", form, product, "")
    if is_attention(name) and "backward" not in name.lower():
        attention = _attention(operator)
        return None if attention is None else ("attention", dtype, attention, "" if _is_causal(operator) else FULL)
    if kind_of(name) == "convolution":
        return _single_convolution(operator)
    if name in _SOFTMAX or name in _LAYER_NORM:
        normalised = name in _LAYER_NORM and len(inputs) > 1
        width = inputs[1].numel if normalised else inputs[0].shape[-1]
        if inputs[0].numel % width:
            return None
        return "softmax" if name in _SOFTMAX else "layer_norm", dtype, (inputs[0].numel // width, width), ""
    if name in ELEMENTWISE:
        large = max(inputs, key=lambda tensor: tensor.numel)
        both = sum(tensor.numel == large.numel for tensor in inputs) > 1
        sizes = (large.numel // large.shape[-1], large.shape[-1])
        return "elementwise", dtype, sizes, f"{name}u" if name in BINARY and not both else name
    return None


def _product(name: str, operator: Operator) -> tuple[int, int, int, int] | None:
    pair = products.factors(name, operator.inputs)
    if pair is None or any(len(tensor.shape) < 2 for tensor in pair):
        return None
    first, second = pair[0].shape, pair[1].shape
    if products.form_of(name) == "rows":
        return (1, math.prod(first[:-1]), second[0], first[-1]) if second[1] == first[-1] else None
    if first[-1] != second[-2]:
        return None
    inner = first[-1] * number_formats.numbers_in_an_element(pair[0].dtype)
    if len(second) == 2:
        return 1, math.prod(first[:-1]), second[-1], inner
    return math.prod(first[:-2]), first[-2], second[-1], inner


def _grouped_product(name: str, operator: Operator) -> tuple[int, int, int, int] | None:
    """Return one product that has the work of those of all groups: of the rows of each, in whole tiles, or of all gradients."""
    pair = products.factors(name, operator.inputs)
    if pair is None:
        return None
    first, second = pair[0].shape, pair[1].shape
    if len(first) == 2 and len(second) == 3 and first[1] == second[1]:
        groups, inner, wide = second
        return 1, groups * math.ceil(first[0] / groups / _TILE) * _TILE, wide, inner
    if len(first) == len(second) == 2 and operator.outputs and len(operator.outputs[0].shape) == 3:
        groups = operator.outputs[0].shape[0]
        return 1, groups * first[0], second[1], math.ceil(first[1] / groups)
    return None


def _single_convolution(operator: Operator) -> _Call | None:
    """Return a forward convolution, or the one gradient that an operator without a forward operator computes."""
    if operator.phase == "forward":
        call = convolutions.forward_call(operator)
        return None if call is None else _convolution(operator, call)
    several = convolutions.gradient_calls(operator, None) if operator.forward is None else []
    return _convolution(operator, several[0]) if len(several) == 1 else None


def _convolution(operator: Operator, call: ConvolutionCall) -> _Call:
    """Return a call; in float32 it may compute in TF32, as PyTorch's default is, unless the operator says otherwise."""
    dtype = operator.inputs[0].dtype
    if dtype == "float32" and operator.attributes.get("allow_tf32") is not False:
        dtype = "tf32"
    layout = convolutions.CHANNELS_LAST if operator.attributes.get("channels_last") else ""
    return "convolution", dtype, call.geometry, call.direction + layout


def _is_causal(operator: Operator) -> bool:
    """Whether attention is causal by its attribute, without a mask; without the attribute it is not, as in PyTorch."""
    masked = any(len(tensor.shape) > 1 for tensor in operator.inputs[3:])
    return operator.attributes.get("is_causal") is True and not masked


def _attention(operator: Operator) -> tuple[int, int, int, int, int] | None:
    """Self-attention alone: (batch, heads, sequence, head_dim) three times."""
    shapes = [tensor.shape for tensor in operator.inputs[:3]]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return None
    (batch, heads, length, width), key, value = shapes
    if key != value or key[0] != batch or key[2] != length or key[3] != width or heads % key[1]:
        return None
    return batch, length, heads, key[1], width
