"""Views (``view``, ``transpose``, ``expand`` ...) and what may copy instead (``reshape``, ``contiguous``, ``cat``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from triosim.models.operators.layout import Shape, Strides, contiguous, is_contiguous, viewed
from triosim.models.operators.tape import Value


def _shown(name: str, x: Value, shape: Shape, strides: Strides, offset: int | None = None, **attributes: Any) -> Value:
    """Record a view."""
    out = Value(x.tape, shape, x.dtype, x.storage, strides, x.offset if offset is None else offset)
    x.tape.record(name, (x,), (out,), **attributes)
    return out


def view(x: Value, shape: Sequence[int]) -> Value:
    """``view``; one length may be -1. Raises ``ValueError`` where the strides do not allow it."""
    new = _whole(x, shape)
    strides = viewed(x.shape, x.strides, new)
    if strides is None:
        raise ValueError(f"{x.shape} with strides {x.strides} cannot be viewed as {new}")
    return _viewed("view", x, new, strides)


def _viewed(name: str, x: Value, new: Shape, strides: Strides) -> Value:
    out = _shown(name, x, new, strides)
    return x.tape.differentiate((out,), (x,), lambda g: (reshape(g, x.shape),))


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """``reshape``: a view where the strides allow it, otherwise a copy."""
    new = _whole(x, shape)
    if x.shape == new:
        return x
    strides = viewed(x.shape, x.strides, new)
    if strides is not None:
        return _viewed("view", x, new, strides)
    return _viewed("_unsafe_view", copied(x), new, contiguous(new))


def unsafe_view(x: Value, shape: Sequence[int]) -> Value:
    """``_unsafe_view`` of a fresh result, such as a product's."""
    new = _whole(x, shape)
    return _viewed("_unsafe_view", x, new, contiguous(new))


def _whole(x: Value, shape: Sequence[int]) -> Shape:
    if -1 not in shape:
        return tuple(shape)
    rest = math.prod([length for length in shape if length != -1])
    return tuple([math.prod(x.shape) // rest if length == -1 else length for length in shape])


def copied(x: Value) -> Value:
    """``clone`` as a contiguous tensor."""
    out = x.tape.result("clone", (x,), x.shape, x.dtype)
    return x.tape.differentiate((out,), (x,), lambda g: (g,))


def contiguous_of(x: Value) -> Value:
    """``contiguous``: a copy where it is not."""
    return x if is_contiguous(x.shape, x.strides) else copied(x)


def transpose(x: Value, first: int, second: int) -> Value:
    """``transpose``: two dimensions swapped."""
    shape, strides = list(x.shape), list(x.strides)
    shape[first], shape[second] = shape[second], shape[first]
    strides[first], strides[second] = strides[second], strides[first]
    out = _shown("transpose", x, tuple(shape), tuple(strides), dim0=first, dim1=second)
    return x.tape.differentiate((out,), (x,), lambda g: (transpose(g, first, second),))


def t(x: Value) -> Value:
    """``t``: a transposed matrix."""
    out = _shown("t", x, x.shape[::-1], x.strides[::-1])
    return x.tape.differentiate((out,), (x,), lambda g: (t(g),))


def permute(x: Value, dims: Sequence[int]) -> Value:
    """``permute``: the dimensions in another order."""
    shape, strides = tuple([x.shape[dim] for dim in dims]), tuple([x.strides[dim] for dim in dims])
    out = _shown("permute", x, shape, strides, dims=list(dims))
    back = [list(dims).index(axis) for axis in range(len(dims))]
    return x.tape.differentiate((out,), (x,), lambda g: (permute(g, back),))


def unsqueeze(x: Value, dim: int) -> Value:
    """``unsqueeze``: one more dimension, of length 1."""
    axis = dim % (len(x.shape) + 1)
    step = x.strides[axis] * x.shape[axis] if axis < len(x.shape) else 1
    shape, strides = (*x.shape[:axis], 1, *x.shape[axis:]), (*x.strides[:axis], step, *x.strides[axis:])
    out = _shown("unsqueeze", x, shape, strides, dim=dim)
    return x.tape.differentiate((out,), (x,), lambda g: (squeeze(g, axis),))


def squeeze(x: Value, dim: int) -> Value:
    """``squeeze``: without a dimension of length 1."""
    axis = dim % len(x.shape)
    shape, strides = (*x.shape[:axis], *x.shape[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
    out = _shown("squeeze", x, shape, strides, dim=dim)
    return x.tape.differentiate((out,), (x,), lambda g: (unsqueeze(g, axis),))


def expand(x: Value, shape: Sequence[int]) -> Value:
    """``expand``; its gradient is summed back (``triosim.models.operators.elementwise.sum_to``)."""
    new, lead = tuple(shape), len(shape) - len(x.shape)
    strides = tuple(
        [
            0 if axis < lead or (x.shape[axis - lead] == 1 and length != 1) else x.strides[axis - lead]
            for axis, length in enumerate(new)
        ]
    )
    if new == x.shape:
        return x
    out = _shown("expand", x, new, strides)
    return x.tape.differentiate((out,), (x,), lambda g: (g,))


def slice_of(x: Value, dim: int, start: int, stop: int) -> Value:
    """``slice``: part of a dimension."""
    axis = dim % len(x.shape)
    shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
    out = _shown("slice", x, shape, x.strides, x.offset + start * x.strides[axis], dim=dim)

    return x.tape.differentiate(
        (out,), (x,), lambda g: (g.tape.result("slice_backward", (g,), x.shape, x.dtype, dim=dim),)
    )


def select(x: Value, dim: int, index: int) -> Value:
    """``select``: one index of a dimension, which is dropped."""
    axis = dim % len(x.shape)
    shape, strides = (*x.shape[:axis], *x.shape[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
    out = _shown("select", x, shape, strides, x.offset + index * x.strides[axis], dim=dim)

    return x.tape.differentiate(
        (out,), (x,), lambda g: (g.tape.result("select_backward", (g,), x.shape, x.dtype, dim=dim),)
    )


def split(x: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    """``split`` of a dimension; the gradients are concatenated, with zeros for a part without one."""
    axis = dim % len(x.shape)
    found: list[Value] = []
    start = 0
    for size in sizes:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        found.append(Value(x.tape, shape, x.dtype, x.storage, x.strides, x.offset + start * x.strides[axis]))
        start += size
    name = "split" if len(set(sizes)) == 1 else "split_with_sizes"
    x.tape.record(name, (x,), found, dim=dim)

    def backward(*gradients: Value | None) -> tuple[Value]:
        whole = []
        for part, gradient in zip(found, gradients, strict=True):
            if gradient is None:
                gradient = x.tape.result("zeros", (), part.shape, part.dtype)
            whole.append(gradient)
        return (cat(whole, dim),)

    x.tape.differentiate(found, (x,), backward)
    return tuple(found)


def cat(values: Sequence[Value], dim: int) -> Value:
    """``cat``: values one after another along a dimension."""
    values = tuple(values)
    first = values[0]
    axis = dim % len(first.shape)
    length = sum(value.shape[axis] for value in values)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    out = first.tape.result("cat", values, shape, first.dtype, dim=dim)

    def backward(g: Value) -> list[Value | None]:
        found: list[Value | None] = []
        start = 0
        for value in values:
            stop = start + value.shape[axis]
            found.append(slice_of(g, dim if dim >= 0 else axis, start, stop) if value.node else None)
            start = stop
        return found

    return first.tape.differentiate((out,), values, backward)
