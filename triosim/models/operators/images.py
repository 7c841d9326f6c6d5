"""What convolutional networks have beside convolutions: batch norm and poolings, over (samples, channels, height, width)."""

from __future__ import annotations

from triosim.models.operators.elementwise import mean
from triosim.models.operators.tape import Value


def batch_norm(x: Value) -> Value:
    """``nn.BatchNorm2d`` of the open module, in training: it keeps running statistics in buffers."""
    tape, channels = x.tape, (x.shape[1],)
    wide = "float32" if tape.autocast else tape.dtype
    weight, bias = tape.parameter("weight", channels), tape.parameter("bias", channels)
    running = [tape.new(channels, wide, category="buffer") for _ in range(2)]
    count = tape.new((), "int64", category="buffer")
    tape.record("add_", (count,), (count,))
    out = tape.new(x.shape, x.dtype)
    statistics = [tape.new(channels, "float32") for _ in range(2)]
    tape.record("native_batch_norm", (x, weight, bias, *running), (out, *statistics), training=True)

    def backward(g: Value, *_: Value | None) -> list[Value]:
        made = [tape.new(value.shape, value.dtype) for value in (x, weight, bias)]
        tape.record("native_batch_norm_backward", (g, x, weight, *running, *statistics), made)
        return made

    tape.differentiate((out, *statistics), (x, weight, bias), backward)
    return out


def max_pool(x: Value, kernel: int, *, stride: int, padding: int = 0) -> Value:
    """The largest of each window, and where it was."""
    tape = x.tape
    shape = (*x.shape[:2], *[(length + 2 * padding - kernel) // stride + 1 for length in x.shape[2:]])
    out, places = tape.new(shape, x.dtype), tape.new(shape, "int64")
    attributes = {
        "kernel_size": [kernel, kernel],
        "stride": [stride, stride],
        "padding": [padding, padding],
        "dilation": [1, 1],
        "ceil_mode": False,
    }
    tape.record("max_pool2d_with_indices", (x,), (out, places), **attributes)

    def backward(g: Value, _: Value | None) -> tuple[Value]:
        found = tape.new(x.shape, x.dtype)
        tape.record("max_pool2d_with_indices_backward", (g, x, places), (found,), **attributes)
        return (found,)

    tape.differentiate((out, places), (x,), backward)
    return out


def average_pool(x: Value, size: int) -> Value:
    """The averages over as large windows as make the image ``size`` high and wide."""
    out = x.tape.new((*x.shape[:2], size, size), x.dtype)
    x.tape.record("_adaptive_avg_pool2d", (x,), (out,))

    def backward(g: Value) -> tuple[Value]:
        found = g.tape.new(x.shape, x.dtype)
        g.tape.record("_adaptive_avg_pool2d_backward", (g, x), (found,))
        return (found,)

    x.tape.differentiate((out,), (x,), backward)
    return out


def halved(x: Value) -> Value:
    """The averages over windows of two by two."""
    out = x.tape.new((*x.shape[:2], *[length // 2 for length in x.shape[2:]]), x.dtype)
    attributes = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    x.tape.record("avg_pool2d", (x,), (out,), **attributes)

    def backward(g: Value) -> tuple[Value]:
        found = g.tape.new(x.shape, x.dtype)
        g.tape.record("avg_pool2d_backward", (g, x), (found,), **attributes)
        return (found,)

    x.tape.differentiate((out,), (x,), backward)
    return out


def mean_pool(x: Value) -> Value:
    """The average of each channel."""
    return mean(x, [-1, -2], keepdim=True)
