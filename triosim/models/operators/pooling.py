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
        return (tape.result("max_pool2d_with_indices_backward", (g, x, indices), x.shape, x.dtype, **attributes),)

    return tape.differentiate((out, indices), (x,), backward)


def adaptive_average_pool(x: Value, size: int) -> Value:
    """``adaptive_avg_pool2d``: averages that make the image ``size`` high and wide."""
    out = x.tape.result("_adaptive_avg_pool2d", (x,), (*x.shape[:2], size, size), x.dtype)

    return x.tape.differentiate(
        (out,), (x,), lambda g: (g.tape.result("_adaptive_avg_pool2d_backward", (g, x), x.shape, x.dtype),)
    )


def average_pool_2x2(x: Value) -> Value:
    """``avg_pool2d`` over windows of two by two."""
    out = x.tape.new((*x.shape[:2], *[length // 2 for length in x.shape[2:]]), x.dtype)
    attributes = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    x.tape.record("avg_pool2d", (x,), (out,), **attributes)

    return x.tape.differentiate(
        (out,), (x,), lambda g: (g.tape.result("avg_pool2d_backward", (g, x), x.shape, x.dtype, **attributes),)
    )


def global_average_pool(x: Value) -> Value:
    """The average of each channel."""
    return mean(x, [-1, -2], keepdim=True)
