"""Rules for norms, reductions and losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from triosim.operators.features import base_name
from triosim.sharding.dimensions import (
    Dims,
    broadcast_dims,
    join,
    join_equal_sizes,
    kept_where_equal,
    new_dims,
    shape_of,
    size,
)
from triosim.sharding.rules.common import Rules, output_shape, wrapped_dim
from triosim.sharding.rules.pointwise import broadcast
from triosim.trace import Operator

_CHANNEL_NORMS = "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_impl_index instance_norm"
#: Norms whose statistics are one a channel, and those that normalise over the last dimensions.
CHANNEL_NORMS = frozenset(_CHANNEL_NORMS.split())
LAST_NORMS = frozenset(("layer_norm", "native_layer_norm", "rms_norm", "fused_rms_norm"))


def norm(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The output is like the input; statistics are of channels (batch norm), of groups, or of all but the last dimensions."""
    if not inputs:
        return None
    name, data = base_name(operator.name), inputs[0]
    found = [data]
    for tensor in operator.outputs[1:]:
        if "batch_norm" in name and len(data) > 1 and tensor.shape == (size(data[1]),):
            found.append((data[1],))
        elif "group_norm" in name and len(tensor.shape) == 2 and tensor.shape[0] == size(data[0]):
            found.append((data[0], *new_dims(tensor.shape[1])))
        elif len(tensor.shape) == len(data):
            found.append(kept_where_equal(data, tensor.shape))
        else:
            break
    for dims in inputs[1:]:  # weights and biases, running statistics
        if len(dims) == 1 and len(data) > 1 and ("batch_norm" in name or "group_norm" in name):
            if size(dims[0]) == size(data[1]):
                join(dims[0], data[1])
        elif 0 < len(dims) <= len(data) and shape_of(dims) == shape_of(data[-len(dims) :]):
            broadcast_dims(data, dims)
    return found


def reduction(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The input's dimensions without those that are reduced, or with size 1 in their place."""
    if not inputs:
        return None
    dims, shape = inputs[0], output_shape(operator)
    count = len(dims)
    along = operator.attributes.get("dim", operator.attributes.get("dims"))
    candidates: Sequence[Sequence[int]]
    if isinstance(along, (int, list)) and not isinstance(along, bool):
        indices = along if isinstance(along, list) else [along]
        candidates = [[wrapped_dim(index, count) for index in indices] or range(count)]
    else:
        lost = range(count + 1 if count < 7 else 0)
        candidates = [gone for number in lost for gone in combinations(reversed(range(count)), number)]
    for gone in candidates:
        for kept in (True, False):
            found = tuple(() if index in gone else dim for index, dim in enumerate(dims) if kept or index not in gone)
            if shape_of(found) == shape:
                return [found] * len(operator.outputs)
    return None


def loss(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Logits (samples, classes, ...) and targets (samples, ...) have the same samples; the rest is found by shape."""
    if len(inputs) > 1 and len(inputs[1]) == len(inputs[0]) - 1:
        join_equal_sizes(inputs[0][0], inputs[1][0]) if inputs[1] else None
        for one, other in zip(inputs[0][2:], inputs[1][1:], strict=False):
            join_equal_sizes(one, other)
        return [inputs[1]] if output_shape(operator) == shape_of(inputs[1]) else []
    return broadcast(operator, inputs)


RULES: Rules = {
    norm: " ".join((*sorted(CHANNEL_NORMS | LAST_NORMS), "group_norm", "native_group_norm")),
    reduction: "sum mean amax amin max min argmax argmin prod var std var_mean std_mean norm linalg_vector_norm"
    " logsumexp all any count_nonzero nansum median",
    loss: "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss2d mse_loss l1_loss",
}
