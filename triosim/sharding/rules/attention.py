"""The rule for fused attention."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.operators.features import heads_dim
from triosim.sharding.dimensions import Dims, broadcast_dims, join_equal_sizes, name_heads, new_dim, shape_of, size
from triosim.sharding.rules.common import broadcasts_to
from triosim.trace import Operator


def attention(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Output (batch, heads, queries, value features), log-sum-exp (batch, heads, queries), mask (..., queries, keys)."""
    if len(inputs) < 3 or any(len(dims) < 3 for dims in inputs[:3]):
        return None
    query, key, value = inputs[:3]
    join_equal_sizes(query[0], key[0])
    join_equal_sizes(key[-2], value[-2])
    join_equal_sizes(query[-1], key[-1])
    index = heads_dim(operator)
    for dims in (key, value) if len(query) > 3 else ():
        shared = size(query[index]) // max(size(dims[index]), 1)  # heads of queries that share one of keys and values
        join_equal_sizes(query[index], (*dims[index], *new_dim(shared)))
    for dims in (query, key, value):
        name_heads((dims[index],))
    scores = (*query[:-1], key[-2])
    for dims in inputs[3:4]:
        if dims and broadcasts_to(shape_of(dims), shape_of(scores)):
            broadcast_dims(scores, dims)
    out = (*query[:-1], value[-1])
    shapes = [tensor.shape for tensor in operator.outputs[1:3]]
    heads, length, depth = tuple(axis for dim in query[:-2] for axis in dim), key[-2], query[-1]
    if shapes == [(size(heads), size(query[-2]), size(depth)), (size(heads), size(depth), size(length))]:
        # Written out as products ("math"): it saves its scaled queries and keys, and probabilities in several shapes.
        saved = [scores if len(t.shape) == len(scores) else (heads, *scores[-2:]) for t in operator.outputs[3:]]
        return [out, (heads, query[-2], depth), (heads, depth, length), *saved]
    found = []
    for tensor in operator.outputs:  # some of the output's shape, the log-sum-exp, the state of a random generator
        like = next((dims for dims in (out, query[:-1]) if shape_of(dims) == tensor.shape), None)
        if like is None:
            break
        found.append(like)
    return found or [out]
