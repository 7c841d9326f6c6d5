"""Rules for views and for operators that rearrange a tensor: reshape, transpose, expand, slice, select, cat, stack."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, permutations

from triosim.operators.features import base_name
from triosim.sharding.dimensions import (
    Dim,
    Dims,
    broadcast_dims,
    concatenated,
    follows,
    join,
    new_dim,
    new_dims,
    reshaped,
    shape_of,
    size,
    sliced,
    swapped,
)
from triosim.sharding.rules.common import Rules, Shape, output_shape, wrapped_dim
from triosim.trace import Operator


def view(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The same elements in the same order, in another shape."""
    found = reshaped(inputs[0], output_shape(operator)) if inputs else None
    return None if found is None else [found]


def transpose(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """The dimensions in another order: by the attributes, or else by the shape."""
    if not inputs:
        return None
    dims, count, attributes = inputs[0], len(inputs[0]), operator.attributes
    if "dim0" in attributes and "dim1" in attributes and count:
        return [swapped(dims, *(wrapped_dim(attributes[key], count) for key in ("dim0", "dim1")))]
    if isinstance(attributes.get("dims"), list):
        order = [wrapped_dim(index, count) for index in attributes["dims"]]
        return [tuple(dims[index] for index in order)] if sorted(order) == list(range(count)) else None
    found = transposed(dims, output_shape(operator))
    return None if found is None else [found]


def transposed(dims: Dims, shape: Shape) -> Dims | None:
    """Return the dimensions in the order that gives a shape: the last two swapped, or the two after the first, or any."""
    count = len(dims)
    pairs = [(count - 2, count - 1), (1, 2), *combinations(range(count), 2)] if count > 1 else []
    swaps = (swapped(dims, one, two) for one, two in pairs if two < count)
    orders = chain(swaps, permutations(dims) if count <= 6 else ())
    return next((found for found in orders if shape_of(found) == shape), None)


def expand(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Expansions and repetitions: a dimension that grows gets a new axis for the copies."""
    if not inputs:
        return None
    shape = output_shape(operator)
    dims: Dims = ((),) * (len(shape) - len(inputs[0])) + inputs[0]
    found: list[Dim] = []
    for dim, length in zip(dims, shape, strict=False):
        before = size(dim)
        if before == length:
            found.append(dim)
        elif before and length % before == 0:
            times = new_dim(length // before)
            inner = base_name(operator.name) == "repeat_interleave"
            found.append((*dim, *times) if inner else (*times, *dim))
        else:
            return None
    return [tuple(found)]


def split(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """Slices and chunks: each dimension in which an output is smaller is sliced."""
    if not inputs:
        return None
    found = []
    for tensor in operator.outputs:
        if len(tensor.shape) != len(inputs[0]):
            break
        found.append(tuple(sliced(dim, length) for dim, length in zip(inputs[0], tensor.shape, strict=True)))
    return found


def select(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """``select`` and ``unbind`` remove a dimension."""
    if not inputs or not inputs[0]:
        return None
    dims, shape = inputs[0], output_shape(operator)
    indices = [wrapped_dim(operator.attributes["dim"], len(dims))] if "dim" in operator.attributes else range(len(dims))
    for index in sorted(indices, key=lambda one: follows(dims[one], "batch")):
        rest = (*dims[:index], *dims[index + 1 :])
        if shape_of(rest) == shape:
            return [rest] * len(operator.outputs)
    return None


def cat(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """One dimension is concatenated; in all others the inputs are the same."""
    shape = output_shape(operator)
    if not inputs or any(len(dims) != len(shape) for dims in inputs):
        return None
    found: list[Dim] = []
    for index, length in enumerate(shape):
        rows = [dims[index] for dims in inputs]
        along = operator.attributes.get("dim")
        if (along is None or wrapped_dim(along, len(shape)) == index) and sum(map(size, rows)) == length:
            found.append(concatenated(rows))
        else:
            for row in rows[1:]:
                if size(row) == size(rows[0]):
                    join(rows[0], row)
            found.append(rows[0])
    return [tuple(found)]


def stack(operator: Operator, inputs: Sequence[Dims]) -> list[Dims] | None:
    """A new dimension that counts the inputs."""
    shape, count = output_shape(operator), len(inputs)
    if not inputs:
        return None
    dims = inputs[0]
    for other in inputs[1:]:
        dims = broadcast_dims(dims, other) if len(other) == len(dims) else dims
    dim = operator.attributes.get("dim")
    indices = [wrapped_dim(dim, len(shape))] if dim is not None else range(len(shape))
    for index in indices:
        found = (*dims[:index], *new_dims(count), *dims[index:])
        if shape_of(found) == shape:
            return [found]
    return None


RULES: Rules = {
    view: "view unsafe_view reshape flatten unflatten squeeze unsqueeze reshape_alias view_as ravel alias",
    transpose: "transpose swapaxes swapdims t permute movedim numpy_T mT adjoint",
    expand: "expand expand_as broadcast_to repeat tile repeat_interleave",
    split: "slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk swiglu geglu",
    select: "select unbind",
    cat: "cat concat concatenate",
    stack: "stack",
}
