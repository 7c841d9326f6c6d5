"""Pooling over (samples, channels, height, width), with its gradients."""

from __future__ import annotations

from triosim.models.operators.elementwise import mean
from triosim.models.operators.tape import Value


def max_pool(x: Value, kernel: int, *, stride: int, padding: int = 0) -> Value:
    """``max_pool2d``: the largest element of each window, and its index."""
    tape = x.tape
    shape = (*x.shape[:2], *[(length + 2 * padding - kernel) // stride + 1 for length in x.shape[2:]])
    out, indices = tape.new(shape, x.dtype), tape.new(shape, "int64")
    attributes = {
        "kernel_size": [kernel, kernel],
        "stride": [stride, stride],
        "padding": [padding, padding],
        "dilation": [1, 1],
        "ceil_mode": False,
    }
    tape.record("max_pool2d_with_indices", (x,), (out, indices), **attributes)

    def backward(g: Value, _: Value | None) -> tuple[Value]:
        found = tape.new(x.shape, x.dtype)
        tape.record("max_pool2d_with_indices_backward", (g, x, indices), (found,), **attributes)
        return (found,)

    tape.differentiate((out, indices), (x,), backward)
    return out


def adaptive_average_pool(x: Value, size: int) -> Value:
    """``adaptive_avg_pool2d``: averages that make the image ``size`` high and wide."""
    out = x.tape.new((*x.shape[:2], size, size), x.dtype)
    x.tape.record("_adaptive_avg_pool2d", (x,), (out,))

    def backward(g: Value) -> tuple[Value]:
        found = g.tape.new(x.shape, x.dtype)
        g.tape.record("_adaptive_avg_pool2d_backward", (g, x), (found,))
        return (found,)

    x.tape.differentiate((out,), (x,), backward)
    return out


def average_pool_2x2(x: Value) -> Value:
    """``avg_pool2d`` over windows of two by two."""
    out = x.tape.new((*x.shape[:2], *[length // 2 for length in x.shape[2:]]), x.dtype)
    attributes = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    x.tape.record("avg_pool2d", (x,), (out,), **attributes)

    def backward(g: Value) -> tuple[Value]:
        found = g.tape.new(x.shape, x.dtype)
        g.tape.record("avg_pool2d_backward", (g, x), (found,), **attributes)
        return (found,)

    x.tape.differentiate((out,), (x,), backward)
    return out


def global_average_pool(x: Value) -> Value:
    """The average of each channel."""
    return mean(x, [-1, -2], keepdim=True)
