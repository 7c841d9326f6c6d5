"""The memory layout of tensors: strides of views and of results, by PyTorch's rules.

A view of a tensor is possible where its strides allow it (``at::detail::computeStride``); otherwise the tensor is copied
first. The result of an element-wise operator has the layout of its first operand of full size (``TensorIterator``). Strides are
in elements.
"""

from __future__ import annotations

import math
from functools import lru_cache

Shape = tuple[int, ...]
Strides = tuple[int, ...]


@lru_cache(maxsize=8192)
def contiguous(shape: Shape) -> Strides:
    """Return the strides of a contiguous tensor."""
    found: list[int] = []
    step = 1
    for length in reversed(shape):
        found.append(step)
        step *= max(length, 1)
    return tuple(reversed(found))


@lru_cache(maxsize=8192)
def dense_like(shape: Shape, strides: Strides) -> Strides:
    """Return dense strides in which the dimensions are ordered as in ``strides``."""
    found = list(strides)
    step = 1
    order = sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
    for axis in order:
        found[axis] = step
        step *= max(shape[axis], 1)
    return tuple(found)


@lru_cache(maxsize=8192)
def is_contiguous(shape: Shape, strides: Strides) -> bool:
    """Whether a tensor is contiguous; the strides of dimensions of length 1 do not matter."""
    return all(
        length == 1 or own == plain for length, own, plain in zip(shape, strides, contiguous(shape), strict=True)
    )


@lru_cache(maxsize=8192)
def channels_last(shape: Shape, strides: Strides) -> bool:
    """Whether images (samples, channels, height, width) are in the channels-last format, and not also contiguous."""
    turned, order = (shape[0], *shape[2:], shape[1]), (strides[0], *strides[2:], strides[1])
    return is_contiguous(turned, order) and not is_contiguous(shape, strides)


@lru_cache(maxsize=8192)
def viewed(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Return the strides of a view in shape ``new``, or None where only a copy could have it."""
    if shape == new:
        return strides
    if not math.prod(shape):
        return contiguous(new)
    found: list[int] = [0] * len(new)
    axis = len(new) - 1
    chunk = 1  # elements of the dimensions so far that lie one after the other
    viewed_so_far = 1
    step = strides[-1] if strides else 1
    for dim in range(len(shape) - 1, -1, -1):
        chunk *= shape[dim]
        ends = dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != chunk * step)
        if not ends:
            continue
        while axis >= 0 and (viewed_so_far < chunk or new[axis] == 1):
            found[axis] = viewed_so_far * step
            viewed_so_far *= new[axis]
            axis -= 1
        if viewed_so_far != chunk:
            return None
        if dim > 0:
            step = strides[dim - 1]
            chunk = viewed_so_far = 1
    return tuple(found) if axis < 0 else None


@lru_cache(maxsize=8192)
def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to. Raises ``ValueError`` where they do not."""
    count = max(map(len, shapes))
    found = []
    for axis in range(-count, 0):
        lengths = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(lengths) > 1:
            raise ValueError(f"{shapes} do not broadcast")
        found.append(lengths.pop() if lengths else 1)
    return tuple(found)
