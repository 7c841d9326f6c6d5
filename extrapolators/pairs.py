"""Which layers Megatron-LM's tensor parallelism can pair: the first divided by output features, the second by input features.

Shoeybi et al. 2019, section 3. Between the two, each rank works on its own features (attention heads, channels) and nothing
is communicated. Which layers pair up is read from the dataflow: from the data of a layer back through operators that treat
features separately, every path must end in a layer, and nothing on the way may be used elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from triosim.compute.features import PRODUCTS, base_name, is_attention
from triosim.extrapolators.dataflow import Dataflow, Datum, is_loss, is_view
from triosim.extrapolators.sharding import Weighted, is_grouped
from triosim.trace import Operator, Tensor

_POOLINGS = tuple(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3))

#: Operators that treat every element by itself, activations and what only moves data.
_ELEMENTWISE = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "pow", "exp", "abs", "clamp", "threshold"),
        *("relu", "relu6", "leaky_relu", "prelu", "elu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus"),
        *("hardtanh", "hardswish", "hardsigmoid", "dropout", "native_dropout", "fused_dropout", "feature_dropout"),
        *("clone", "contiguous", "to", "to_copy", "copy", "reshape", "flatten"),
    )
)
#: Operators that treat channels separately.
_CHANNELWISE = frozenset(
    (
        *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm"),
        *("upsample_nearest2d", "upsample_bilinear2d", "max_pool2d_with_indices", *_POOLINGS),
    )
)
#: Operators that treat attention heads separately, between the products of attention.
_HEADWISE = frozenset(
    ("softmax", "safe_softmax", "masked_fill", "where", "cat", "stack", "tril", "triu", "repeat_interleave", "expand")
)
#: Views in which dimensions change places.
_PERMUTING = frozenset(("transpose", "permute", "t", "movedim", "moveaxis", "swapaxes", "swapdims", "numpy_T"))


@dataclass(frozen=True, slots=True)
class Pair:
    """``first`` are the layers divided by output features, ``second`` the one divided by input features.

    ``between`` are the operators that work on a rank's features alone, in the order of the forward pass, views included;
    ``data`` is what they and the first layers make.
    """

    first: tuple[Weighted, ...]
    second: Weighted
    between: tuple[Operator, ...]
    data: frozenset[Datum]


@dataclass(frozen=True, slots=True)
class Undivided:
    """Why layers are no pair: the heads of the attention between them do not divide."""

    layer: str
    heads: int


def find_pair(
    flow: Dataflow, second: Weighted, layers: Mapping[int, Weighted], taken: Container[int], ranks: int
) -> Pair | Undivided | None:
    """Return the pair that a layer closes, if it does. ``taken`` are the operators of layers that have another part already."""
    if second.data is None or is_grouped(second) or second.weight.shape[second.columns] % ranks:
        return None
    start = flow.datum(second.operator, second.data)
    if start is None:
        return None
    first: dict[int, Weighted] = {}
    between: set[int] = set()
    undivided: Undivided | None = None
    todo, seen = [(start, False)], {(start, False)}
    while todo:
        datum, in_attention = todo.pop()
        maker = flow.by_id[datum.maker]
        layer = layers.get(maker.id)
        if layer is not None:
            if maker.id in taken or layer.data is None or is_grouped(layer) or layer.weight.shape[layer.rows] % ranks:
                return None
            first[maker.id] = layer
            continue
        inside = _is_local(maker, in_attention)
        if inside is None:
            return None
        for heads in _heads(maker):
            if heads % ranks:
                undivided = Undivided(maker.layer, heads)
        between.add(maker.id)
        for read, _ in flow.reads[maker.id]:
            if read in flow.trained and (read, inside) not in seen:
                seen.add((read, inside))
                todo.append((read, inside))
    data = frozenset(datum for number in (*first, *between) for datum, _ in flow.writes[number])
    inner = {second.operator.id, *between}
    if not first or any(reader.id not in inner for datum in data for reader in flow.readers[datum]):
        return None
    if undivided is not None:
        return undivided
    views = views_of(flow, data)
    whole = tuple(operator for operator in flow.forward if operator.id in between or operator.id in views)
    return Pair(tuple(first.values()), second, whole, data)


def views_of(flow: Dataflow, data: Container[Datum]) -> frozenset[int]:
    """Return the operators that show data in another shape."""
    return frozenset(
        operator.id
        for operator in flow.forward
        if is_view(operator) and any(datum in data for datum, _ in flow.reads[operator.id])
    )


def is_vocabulary_projection(flow: Dataflow, layer: Weighted) -> bool:
    """Whether a layer's output goes to the loss alone, as that of a language model's or a classifier's last layer."""
    todo = [datum for datum, _ in flow.writes[layer.operator.id]]
    found = False
    while todo:
        for reader in flow.readers[todo.pop()]:
            if is_loss(reader):
                found = True
            elif base_name(reader.name) in _ELEMENTWISE and layer.weight.shape[layer.rows] in reader.outputs[0].shape:
                todo += [datum for datum, _ in flow.writes[reader.id]]
            else:
                return False
    return found and layer.data is not None


def dims_between(operator: Operator, storages: Container[int], known: Mapping[int, int], ranks: int) -> dict[int, int]:
    """Return what is divided of an operator between a pair.

    ``storages`` hold the data between them, ``known`` is what is divided of the tensors that other operators have made.
    """
    given = [t for t in operator.inputs if t.storage in storages or (t.category == "parameter" and len(t.shape) == 1)]
    if base_name(operator.name) in _CHANNELWISE:
        given += [t for t in operator.inputs if t.category == "buffer" and len(t.shape) == 1]
    dims: dict[int, int] = {}
    for tensor in given:
        dim = known.get(tensor.id, _dim_between(operator, tensor, ranks))
        if dim is not None:
            dims[tensor.id] = dim
    source = next((t for t in given if t.id in dims), None) if is_view(operator) else None
    for tensor in operator.outputs:
        if source is not None:
            dim = _dim_of_view(operator, source.shape, dims[source.id], tensor.shape, ranks)
        else:
            dim = _dim_between(operator, tensor, ranks)
        if dim is not None:
            dims[tensor.id] = dim
    return dims


def _is_local(operator: Operator, in_attention: bool) -> bool | None:
    """Whether what an operator reads is between the products of attention; None if it mixes features."""
    name = base_name(operator.name)
    if is_attention(name):
        return True
    if name in PRODUCTS:
        batched = len(operator.outputs[0].shape) >= 3 and not any(t.category == "parameter" for t in operator.inputs)
        return True if batched else None
    if name in _ELEMENTWISE or name in _CHANNELWISE:
        return in_attention
    return True if in_attention and name in _HEADWISE else None


def _heads(operator: Operator) -> list[int]:
    """The heads of what attention multiplies; none of any other operator."""
    name = base_name(operator.name)
    factors = operator.inputs[:3] if is_attention(name) else operator.outputs[:1] if name in PRODUCTS else ()
    return [tensor.shape[-3] if len(tensor.shape) >= 3 else 1 for tensor in factors]


def _dim_between(operator: Operator, tensor: Tensor, ranks: int) -> int | None:
    """The dimension of heads or channels, or the last of (..., features); another if that does not divide."""
    name, count = base_name(operator.name), len(tensor.shape)
    if is_attention(name):
        heads = max(
            len(operator.inputs[0].shape) - 3, 0
        )  # counted from the front: what is saved of the softmax has them too
        return heads if heads < count and tensor.shape[heads] % ranks == 0 else None
    if count > 3 or (count == 3 and name in _CHANNELWISE):
        first = 1
    elif count == 3 and (name in PRODUCTS or name in _HEADWISE):
        first = 0  # batch and heads folded into one
    else:
        first = count - 1
    order = (first, *reversed(range(count)))
    return next((dim for dim in order if dim >= 0 and tensor.shape[dim] % ranks == 0), None)


def _dim_of_view(
    operator: Operator, before: tuple[int, ...], dim: int, after: tuple[int, ...], ranks: int
) -> int | None:
    """The dimension of a view that is divided, if ``dim`` of what it shows is.

    Where the view permutes, it is one of the same size. Elsewhere it is the outermost that divides of those into which the
    dimension unfolds: the 12 heads of 12 x 64 features.
    """
    if base_name(operator.name) in _PERMUTING:
        same = [index for index, size in enumerate(after) if size == before[dim]]
        return next((index for index in same if index != dim), same[0] if same else None)
    start = math.prod(before[:dim])
    places = [(index, math.prod(after[:index])) for index, size in enumerate(after) if size > 1]
    unfolded = [index for index, place in places if start <= place < start * before[dim]]
    return next((index for index in unfolded if after[index] % ranks == 0), None)
