"""Rules for operators whose output has the dimensions of an input: element-wise ones, copies, scans, creation."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.sharding.dimensions import Dims, broadcast_dims, shape_of
from triosim.sharding.rules.common import Rules, broadcasts_to, output_shape
from triosim.trace import Operator


def broadcast(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The inputs broadcast to the output; all outputs up to the first of another shape have them."""
    shape = output_shape(operator)
    fitting = [dims for dims in inputs if broadcasts_to(shape_of(dims), shape)]
    if not fitting:
        return None
    found: Dims = ()
    for dims in fitting:
        found = broadcast_dims(found, dims)
    if shape_of(found) != shape:
        return None
    same = [tensor.shape == shape for tensor in operator.outputs]
    return [found] * (same.index(False) if False in same else len(same))


def like_first(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Every output is like the first input."""
    return [inputs[0]] * len(operator.outputs) if inputs else None


def copy(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """A copy into the first input, which has the dimensions of the second."""
    if len(inputs) > 1 and broadcasts_to(shape_of(inputs[1]), shape_of(inputs[0])):
        broadcast_dims(inputs[0], inputs[1])
    return like_first(operator, inputs)


def creation(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """New tensors: like an input that has the output's shape, or else unknown."""
    for dims in inputs:
        if dims and shape_of(dims) == output_shape(operator):
            return [dims]
    return None


RULES: Rules = {
    copy: "copy",
    like_first: "index_add index_copy scatter scatter_add fill zero dropout native_dropout"
    " fused_dropout softmax safe_softmax log_softmax argsort sort roll flip tril triu cumsum cumprod",
    creation: "arange zeros ones full empty rand randn randint new_zeros new_ones new_full new_empty empty_strided"
    " new_empty_strided zeros_like ones_like full_like empty_like rand_like randn_like eye linspace tensor scalar_tensor"
    " lift_fresh",
}
