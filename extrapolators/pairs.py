"""Which layers Megatron-LM's tensor parallelism can pair: the first divided by output features, the second by input features.

Shoeybi et al. 2019, section 3. Between the two, each rank works on its own features (attention heads, channels) and nothing
is communicated. Which layers pair up is read from the dataflow: from the data of a layer back through operators that treat
features separately, every path must end in a layer, and nothing on the way may be used elsewhere.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from triosim.compute.features import PRODUCTS, base_name, is_attention
from triosim.extrapolators.dataflow import Dataflow, Datum, is_loss
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


@dataclass(frozen=True, slots=True)
class Pair:
    """``first`` are the layers divided by output features, ``second`` the one divided by input features.

    ``between`` are the operators that work on a rank's features alone, ``data`` what they and the first layers make.
    """

    first: tuple[Weighted, ...]
    second: Weighted
    between: tuple[Operator, ...]
    data: frozenset[Datum]


def find_pair(
    flow: Dataflow, second: Weighted, layers: Mapping[int, Weighted], taken: Container[int], ranks: int
) -> Pair | None:
    """Return the pair that a layer closes, or None. ``taken`` are the operators of layers that have another part already."""
    if second.data is None or is_grouped(second) or second.weight.shape[second.columns] % ranks:
        return None
    start = flow.datum(second.operator, second.data)
    if start is None:
        return None
    first: dict[int, Weighted] = {}
    between: dict[int, Operator] = {}
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
        inside = _is_local(maker, in_attention, ranks)
        if inside is None:
            return None
        between[maker.id] = maker
        for read, _ in flow.reads[maker.id]:
            if read in flow.trained and (read, inside) not in seen:
                seen.add((read, inside))
                todo.append((read, inside))
    data = frozenset(datum for number in (*first, *between) for datum, _ in flow.writes[number])
    inner = {second.operator.id, *between}
    if not first or any(reader.id not in inner for datum in data for reader in flow.readers[datum]):
        return None
    return Pair(tuple(first.values()), second, tuple(between.values()), data)


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


def dims_between(operator: Operator, storages: Container[int], ranks: int) -> dict[int, int]:
    """Return what is divided of an operator between a pair. ``storages`` hold the data between them."""
    dims: dict[int, int] = {}
    given = [t for t in operator.inputs if t.storage in storages or (t.category == "parameter" and len(t.shape) == 1)]
    if base_name(operator.name) in _CHANNELWISE:
        given += [t for t in operator.inputs if t.category == "buffer" and len(t.shape) == 1]
    for tensor in (*given, *operator.outputs):
        dim = _dim_between(operator, tensor, ranks)
        if dim is not None:
            dims[tensor.id] = dim
    return dims


def _is_local(operator: Operator, in_attention: bool, ranks: int) -> bool | None:
    """Whether what an operator reads is between the products of attention; None if it mixes features."""
    name = base_name(operator.name)
    if is_attention(name):
        return True if all(_heads(tensor) % ranks == 0 for tensor in operator.inputs[:3]) else None
    if name in PRODUCTS:
        batched = len(operator.outputs[0].shape) >= 3 and not any(t.category == "parameter" for t in operator.inputs)
        return True if batched and _heads(operator.outputs[0]) % ranks == 0 else None
    if name in _ELEMENTWISE or name in _CHANNELWISE:
        return in_attention
    return True if in_attention and name in _HEADWISE else None


def _heads(tensor: Tensor) -> int:
    return tensor.shape[-3] if len(tensor.shape) >= 3 else 1


def _dim_between(operator: Operator, tensor: Tensor, ranks: int) -> int | None:
    """The dimension of heads or channels, or the last of (..., features); another if that does not divide."""
    name, count = base_name(operator.name), len(tensor.shape)
    if count > 3 or (count == 3 and name in _CHANNELWISE):
        first = 1
    elif count == 3 and (name in PRODUCTS or name in _HEADWISE):
        first = 0  # batch and heads folded into one
    else:
        first = count - 1
    order = (first, *reversed(range(count)))
    return next((dim for dim in order if dim >= 0 and tensor.shape[dim] % ranks == 0), None)
