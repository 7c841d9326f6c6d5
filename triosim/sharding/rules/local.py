"""Operators that can run on a shard without communication between a column-parallel and a row-parallel layer.

Most of them can if some dimensions are not sharded: for a softmax that along which it normalises, for a layer norm the last
ones.
"""

from __future__ import annotations

from triosim.operators.features import base_name, heads_dim, is_attention
from triosim.operators.products import PRODUCTS
from triosim.sharding.dataflow import is_view
from triosim.sharding.placements import Placements
from triosim.sharding.rules.reductions import CHANNEL_NORMS, LAST_NORMS
from triosim.sharding.rules.spatial import POOLINGS
from triosim.trace import Operator, Tensor

#: What works along one dimension, the last unless the operator names another.
_ALONG_A_DIM = frozenset(
    ("softmax", "safe_softmax", "log_softmax", "cumsum", "cumprod", "sort", "argsort", "flip", "roll")
)
_OVER_ROWS = LAST_NORMS | _ALONG_A_DIM | frozenset(("sum", "mean", "amax", "amin"))

_NAMES = (
    "add sub rsub mul div neg pow exp abs clamp threshold maximum minimum relu relu6 leaky_relu prelu elu gelu silu mish tanh"
    " sigmoid softplus hardtanh hardswish hardsigmoid dropout native_dropout fused_dropout feature_dropout sqrt rsqrt square"
    " reciprocal erf log sin cos mean sum amax amin var swiglu geglu softcap rotary_embedding bias_gelu bias_dropout_add chain"
    " cast_transpose"
    " masked_fill where tril triu addcmul addcdiv lerp clone contiguous to to_copy copy reshape flatten view unsafe_view alias"
    " cat stack repeat_interleave expand repeat select unbind slice narrow split split_with_sizes chunk tensor_split"
    " unsafe_split unsafe_chunk pad constant_pad_nd new_empty upsample_nearest2d upsample_bilinear2d"
)
#: Operators that treat the entries of all dimensions, or of all but those that ``reduces_over_shards`` looks at, separately.
_LOCAL = POOLINGS | CHANNEL_NORMS | LAST_NORMS | _ALONG_A_DIM | frozenset(_NAMES.split())


def is_local(operator: Operator) -> bool:
    """Whether an operator can run on a shard without communication, in some of its dimensions at least."""
    name = base_name(operator.name)
    if name in PRODUCTS:
        return not any(tensor.category == "parameter" for tensor in operator.inputs)
    return is_view(operator) or is_attention(name) or name in _LOCAL


def reduces_over_shards(operator: Operator, placements: Placements) -> bool:
    """Whether an operator sums up, or normalises, over a dimension that is sharded."""
    if not any(tensor.numel for tensor in operator.outputs):
        return False
    name = base_name(operator.name)
    # Outputs after the first may be what a kernel keeps for itself.
    outputs = operator.outputs if name == "chain" else operator.outputs[:1]
    if not any(tensor.id in placements for tensor in outputs):
        return True
    data = operator.inputs[0]
    count, shard = len(data.shape), placements.get(data.id)
    if name == "chain":
        return _reduces_rows(operator) and any(_is_last_dim(t, placements) for t in (*operator.inputs, *outputs))
    if is_attention(name):
        return _attention_reduces(operator, placements)
    if shard is None:
        return False
    if name in POOLINGS:
        return shard.dim > 1
    if name in CHANNEL_NORMS:
        return shard.dim != 1
    if name in LAST_NORMS:
        sizes = operator.attributes.get("normalized_shape")
        weights = [len(t.shape) for t in operator.inputs if t.category == "parameter"]
        return shard.dim >= count - (len(sizes) if isinstance(sizes, list) else max(weights, default=1))
    if name in _ALONG_A_DIM:
        dim = operator.attributes.get("dim", operator.attributes.get("dims", -1))
        return shard.dim in [one % count for one in (dim if isinstance(dim, list) else [dim])]
    return False


def is_global_maximum(operator: Operator) -> bool:
    """Whether an operator finds the largest of all entries: a rank takes that of its shard, and scales by it."""
    names = operator.attributes.get("operators", [base_name(operator.name)])
    return names[-1] == "amax" and not any(tensor.shape for tensor in operator.outputs)


def attention_heads(operator: Operator) -> int:
    """Return the heads of fused attention, or of a product written out for it; 0 of any other operator."""
    name = base_name(operator.name)
    tensors = operator.inputs[:3] if is_attention(name) else operator.outputs[:1] if name in PRODUCTS else ()
    return min((tensor.shape[-3] if len(tensor.shape) >= 3 else 1 for tensor in tensors), default=0)


def has_single_head(operator: Operator, tensor: Tensor) -> bool:
    """Whether queries, keys or values of fused attention have one head, which all others share."""
    return len(tensor.shape) > 3 and tensor.shape[heads_dim(operator)] == 1


def _attention_reduces(operator: Operator, placements: Placements) -> bool:
    """Whether queries, keys or values are sharded otherwise than by batch or heads; a single head may be replicated."""
    count = len(operator.inputs[0].shape)
    independent = (0, count - 2) if heads_dim(operator) == -2 else range(count - 2)
    shards = [
        placements.get(tensor.id)
        for tensor in operator.inputs[:3]
        if tensor.id in placements or not has_single_head(operator, tensor)
    ]
    return any(shard is None or shard.dim not in independent for shard in shards)


def _reduces_rows(operator: Operator) -> bool:
    """Whether a compiled kernel holds a norm, a softmax or a sum, all of which are over the last dimension."""
    return not _OVER_ROWS.isdisjoint(operator.attributes.get("operators", ()))


def _is_last_dim(tensor: Tensor, placements: Placements) -> bool:
    """Whether neighbouring entries of a row are on different ranks (and not only whole heads of them)."""
    shard = placements.get(tensor.id)
    return shard is not None and shard.dim == len(tensor.shape) - 1 and shard.outer * shard.size == tensor.shape[-1]
