"""Views (``view``, ``transpose``, ``expand`` ...) and operators that may copy (``reshape``, ``contiguous``, ``cat``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from triosim.models.operators.layout import Shape, Strides, is_contiguous, viewed
from triosim.models.operators.tape import Value


def _view_of(x: Value, name: str, shape: Shape, strides: Strides | None, offset: int = 0, **attributes: Any) -> Value:
    """Record a view; ``offset`` is where it starts in ``x``."""
    out = x.alias(shape, strides, offset)
    x.tape.record(name, (x,), (out,), **attributes)
    return out


def _reshaped(x: Value, name: str, new: Shape, strides: Strides | None = None) -> Value:
    out = _view_of(x, name, new, strides)
    return x.tape.differentiate((out,), (x,), lambda g: (reshape(g, x.shape),))


def view(x: Value, shape: Sequence[int]) -> Value:
    """``view``; one length may be -1. Raises ``ValueError`` where the strides do not allow it."""
    new = _whole(x, shape)
    strides = viewed(x.shape, x.strides, new)
    if strides is None:
        raise ValueError(f"{x.shape} with strides {x.strides} cannot be viewed as {new}")
    return _reshaped(x, "view", new, strides)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """``reshape``: a view where the strides allow it, otherwise a copy."""
    new = _whole(x, shape)
    if x.shape == new:
        return x
    strides = viewed(x.shape, x.strides, new)
    return unsafe_view(copied(x), new) if strides is None else _reshaped(x, "view", new, strides)


def unsafe_view(x: Value, shape: Sequence[int]) -> Value:
    """``_unsafe_view`` of a fresh result, such as a product's."""
    return _reshaped(x, "_unsafe_view", _whole(x, shape))


def _whole(x: Value, shape: Sequence[int]) -> Shape:
    """Return a shape with the length that -1 stands for."""
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
    out = _view_of(x, "transpose", tuple(shape), tuple(strides), dim0=first, dim1=second)
    return x.tape.differentiate((out,), (x,), lambda g: (transpose(g, first, second),))


def t(x: Value) -> Value:
    """``t``: a transposed matrix."""
    out = _view_of(x, "t", x.shape[::-1], x.strides[::-1])
    return x.tape.differentiate((out,), (x,), lambda g: (t(g),))


def permute(x: Value, dims: Sequence[int]) -> Value:
    """``permute``: the dimensions in another order."""
    shape, strides = tuple([x.shape[dim] for dim in dims]), tuple([x.strides[dim] for dim in dims])
    out = _view_of(x, "permute", shape, strides, dims=list(dims))
    back = [list(dims).index(axis) for axis in range(len(dims))]
    return x.tape.differentiate((out,), (x,), lambda g: (permute(g, back),))


def unsqueeze(x: Value, dim: int) -> Value:
    """``unsqueeze``: one more dimension, of length 1."""
    axis = dim % (len(x.shape) + 1)
    step = x.strides[axis] * x.shape[axis] if axis < len(x.shape) else 1
    out = _view_of(x, "unsqueeze", _with(x.shape, axis, 1, drop=0), _with(x.strides, axis, step, drop=0), dim=dim)
    return x.tape.differentiate((out,), (x,), lambda g: (squeeze(g, axis),))


def squeeze(x: Value, dim: int) -> Value:
    """``squeeze``: without a dimension of length 1."""
    axis = dim % len(x.shape)
    out = _view_of(x, "squeeze", _with(x.shape, axis), _with(x.strides, axis), dim=dim)
    return x.tape.differentiate((out,), (x,), lambda g: (unsqueeze(g, axis),))


def expand(x: Value, shape: Sequence[int]) -> Value:
    """``expand``; its gradient is summed back (``triosim.models.operators.elementwise.sum_to``)."""
    new, lead = tuple(shape), len(shape) - len(x.shape)
    if new == x.shape:
        return x
    known = zip((1,) * lead + x.shape, (0,) * lead + x.strides, new, strict=True)
    strides = tuple([0 if before == 1 and length != 1 else step for before, step, length in known])
    out = _view_of(x, "expand", new, strides)
    return x.tape.differentiate((out,), (x,), lambda g: (g,))


def slice_of(x: Value, dim: int, start: int, stop: int) -> Value:
    """``slice``: part of a dimension."""
    axis = dim % len(x.shape)
    shape, offset = _with(x.shape, axis, stop - start), start * x.strides[axis]
    return _part(x, _view_of(x, "slice", shape, x.strides, offset, dim=dim), "slice_backward", dim)


def select(x: Value, dim: int, index: int) -> Value:
    """``select``: one index of a dimension, which is dropped."""
    axis = dim % len(x.shape)
    shape, strides, offset = _with(x.shape, axis), _with(x.strides, axis), index * x.strides[axis]
    return _part(x, _view_of(x, "select", shape, strides, offset, dim=dim), "select_backward", dim)


def _part(x: Value, out: Value, backward: str, dim: int) -> Value:
    """Return part of a tensor; the operator ``backward`` puts its gradient among zeros."""
    return x.tape.differentiate((out,), (x,), lambda g: (g.tape.result(backward, (g,), x.shape, x.dtype, dim=dim),))


def _with(lengths: Shape, axis: int, *new: int, drop: int = 1) -> Shape:
    """Return a shape or strides with other numbers in place of that of one dimension, or before it."""
    return (*lengths[:axis], *new, *lengths[axis + drop :])


def split(x: Value, sizes: Sequence[int], dim: int) -> tuple[Value, ...]:
    """``split`` of a dimension; the gradients are concatenated, with zeros for a part without one."""
    axis = dim % len(x.shape)
    starts = accumulate(sizes, initial=0)
    found = [
        x.alias(_with(x.shape, axis, size), x.strides, start * x.strides[axis])
        for size, start in zip(sizes, starts, strict=False)
    ]
    x.tape.record("split" if len(set(sizes)) == 1 else "split_with_sizes", (x,), found, dim=dim)

    def backward(*gradients: Value | None) -> tuple[Value]:
        whole = [
            x.tape.result("zeros", (), part.shape, part.dtype) if gradient is None else gradient
            for part, gradient in zip(found, gradients, strict=True)
        ]
        return (cat(whole, dim),)

    x.tape.differentiate(found, (x,), backward)
    return tuple(found)


def cat(values: Sequence[Value], dim: int) -> Value:
    """``cat``: values one after another along a dimension."""
    values = tuple(values)
    first = values[0]
    axis = dim % len(first.shape)
    shape = _with(first.shape, axis, sum(value.shape[axis] for value in values))
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
