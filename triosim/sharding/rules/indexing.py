"""Rules for embeddings, advanced indexing and gathering."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.sharding.dimensions import Dims, broadcast_dims, in_proportion, join_equal_sizes, reshaped, shape_of
from triosim.sharding.rules.common import Rules, output_shape
from triosim.sharding.rules.pointwise import like_first
from triosim.trace import Operator


def embedding(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The indices' dimensions, and the table's columns."""
    if len(inputs) < 2 or len(inputs[0]) != 2:
        return None
    folded = reshaped(inputs[1], output_shape(operator)[:-1])
    return None if folded is None else [(*folded, inputs[0][1])]


def index(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Advanced indexing: the indices' dimensions, broadcast, in place of the first ones of the data.

    Without indices it permutes the rows received in an all-to-all, whose number stays in proportion to the rows sent.
    """
    if len(inputs) < 2:
        shape = output_shape(operator)
        return [(in_proportion(inputs[0][0], shape[0]), *inputs[0][1:])] if inputs and inputs[0] and shape else None
    found: Dims = ()
    for dims in inputs[1:]:
        found = broadcast_dims(found, dims)
    whole = (*found, *inputs[0][len(inputs) - 1 :])
    return [whole] if shape_of(whole) == output_shape(operator) else None


def unpermuted(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The outputs of experts, added up with the weights (tokens, chosen)."""
    rows, weights = inputs[:2]
    return [(weights[0], rows[1])] if len(rows) == len(weights) == 2 else None


def index_put(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Advanced indexing in place: the values have the dimensions of the indices."""
    if len(inputs) > 2:
        for one, other in zip(inputs[1], inputs[-1], strict=False):
            join_equal_sizes(one, other)
    return like_first(operator, inputs)


def gather(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The output is like the index."""
    return [inputs[1]] if len(inputs) > 1 and shape_of(inputs[1]) == output_shape(operator) else None


RULES: Rules = {
    embedding: "embedding",
    index: "index permute_tokens",
    unpermuted: "unpermute_tokens",
    gather: "gather take_along_dim",
    index_put: "index_put index_put_impl",
}
