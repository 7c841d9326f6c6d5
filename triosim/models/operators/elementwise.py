"""Element-wise operators and reductions, and how PyTorch differentiates them (``tools/autograd/derivatives.yaml``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triosim.models.operators.layout import broadcast, dense_like
from triosim.models.operators.tape import Value
from triosim.models.operators.views import expand, view

#: Which of two dtypes a result has: the one that stands later.
_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def promoted(first: str, second: str) -> str:
    """Return the dtype of the result of two tensors (type promotion)."""
    if {first, second} == {"float16", "bfloat16"}:
        return "float32"
    return max(first, second, key=_ORDER.index)


def elementwise(name: str, *given: Value, dtype: str | None = None, **attributes: Any) -> Value:
    """Record an element-wise operator; its result has the strides of the first input of full size."""
    tape = given[0].tape
    shape = given[0].shape if len(given) == 1 else broadcast(*[value.shape for value in given])
    like = next((value for value in given if value.shape == shape), None)
    if dtype is None:
        dtype = given[0].dtype
        for other in given[1:]:
            if other.dtype != dtype and other.shape:
                dtype = promoted(dtype, other.dtype)
    out = tape.new(shape, dtype, None if like is None else dense_like(shape, like.strides))
    tape.record(name, given, (out,), **attributes)
    return out


def full_precision(x: Value) -> Value:
    """Return a value in the dtype in which autocast computes powers, exponentials and large sums: fp32."""
    return to(x, "float32") if x.tape.autocast is not None and x.is_floating else x


def sum_to(gradient: Value, value: Value) -> Value:
    """Return a gradient summed over broadcast dimensions to the shape of a value, and in its dtype."""
    if gradient.shape != value.shape:
        lead = len(gradient.shape) - len(value.shape)
        dims = [
            axis
            for axis, length in enumerate(gradient.shape)
            if axis < lead or (length != 1 and value.shape[axis - lead] == 1)
        ]
        if dims:
            gradient = total(gradient, dims, keepdim=True)
        if gradient.shape != value.shape:
            gradient = view(gradient, value.shape)
    return gradient if gradient.dtype == value.dtype else to(gradient, value.dtype)


def total(x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """``sum`` over some dimensions."""
    out = _reduced("sum", x, dims, keepdim)
    return x.tape.differentiate((out,), (x,), lambda g: (expand(_restored(g, x, dims, keepdim), x.shape),))


def mean(x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """``mean`` over some dimensions."""
    out = _reduced("mean", x, dims, keepdim)

    return x.tape.differentiate(
        (out,), (x,), lambda g: (elementwise("div", expand(_restored(g, x, dims, keepdim), x.shape)),)
    )


def _reduced(name: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    gone = {dim % len(x.shape) for dim in dims}
    shape = [1 if axis in gone else length for axis, length in enumerate(x.shape) if keepdim or axis not in gone]
    out = x.tape.result(name, (x,), tuple(shape), x.dtype, dim=list(dims), **({"keepdim": True} if keepdim else {}))
    return out


def _restored(gradient: Value, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    if keepdim:
        return gradient
    gone = {dim % len(x.shape) for dim in dims}
    return view(gradient, tuple([1 if axis in gone else length for axis, length in enumerate(x.shape)]))


def add(a: Value, b: Value) -> Value:
    """``a + b``."""
    out = elementwise("add", a, b)
    return a.tape.differentiate((out,), (a, b), lambda g: (g, g))


def add_in_place(a: Value, b: Value) -> Value:
    """``a += b``, in place."""
    out = Value(a.tape, a.shape, a.dtype, a.storage, a.strides, a.offset)
    a.tape.record("add_", (a, b), (out,))
    return a.tape.differentiate((out,), (a, b), lambda g: (g, g))


def add_number(x: Value) -> Value:
    """``x + number``."""
    out = elementwise("add", x)
    return x.tape.differentiate((out,), (x,), lambda g: (g,))


def sub(a: Value, b: Value) -> Value:
    """``a - b``."""
    out = elementwise("sub", a, b)
    return a.tape.differentiate((out,), (a, b), lambda g: (g, elementwise("neg", g) if b.node else None))


def mul(a: Value, b: Value) -> Value:
    """``a * b``."""
    out = elementwise("mul", a, b)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        for_b = elementwise("mul", g, a) if b.node else None
        return elementwise("mul", g, b) if a.node else None, for_b

    return a.tape.differentiate((out,), (a, b), backward)


def mul_number(x: Value) -> Value:
    """``x * number``."""
    out = elementwise("mul", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("mul", g),))


def div(a: Value, b: Value) -> Value:
    """``a / b``."""
    out = elementwise("div", a, b)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        for_b = None
        if b.node:
            ratio = elementwise("div", elementwise("div", a, b), b)
            for_b = elementwise("mul", elementwise("neg", g), ratio)
        return elementwise("div", g, b) if a.node else None, for_b

    return a.tape.differentiate((out,), (a, b), backward)


def div_number(x: Value) -> Value:
    """``x / number``."""
    out = elementwise("div", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("div", g),))


def power(x: Value, exponent: float) -> Value:
    """``x ** exponent``; autocast computes it in fp32."""
    x = full_precision(x)
    out = elementwise("pow", x, exponent=exponent)

    def backward(g: Value) -> tuple[Value]:
        inner = elementwise("mul", elementwise("pow", x, exponent=exponent - 1.0))
        return (elementwise("mul", g, inner),)

    return x.tape.differentiate((out,), (x,), backward)


def neg(x: Value) -> Value:
    """``-x``."""
    out = elementwise("neg", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("neg", g),))


def cos(x: Value) -> Value:
    """``cos``, without a gradient."""
    return elementwise("cos", x)


def sin(x: Value) -> Value:
    """``sin``, without a gradient."""
    return elementwise("sin", x)


def rsqrt(x: Value) -> Value:
    """``1 / sqrt(x)``."""
    out = elementwise("rsqrt", x)

    def backward(g: Value) -> tuple[Value]:
        cubed = elementwise("pow", out, exponent=3)
        return (elementwise("mul", elementwise("mul", g), cubed),)

    return x.tape.differentiate((out,), (x,), backward)


def tanh(x: Value) -> Value:
    """``tanh``."""
    out = elementwise("tanh", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("tanh_backward", g, out),))


def sigmoid(x: Value) -> Value:
    """``sigmoid``."""
    out = elementwise("sigmoid", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("sigmoid_backward", g, out),))


def gelu(x: Value) -> Value:
    """``gelu``, exact or by ``tanh``: one kernel either way."""
    out = elementwise("gelu", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("gelu_backward", g, x),))


def unfused_gelu(x: Value) -> Value:
    """The approximation by ``tanh`` as a formula, an operator at a time (``NewGELUActivation`` of transformers)."""
    half = mul_number(x)
    inner = mul_number(add(x, mul_number(power(x, 3.0))))
    return mul(half, add_number(tanh(inner)))


def quick_gelu(x: Value) -> Value:
    """The approximation by a sigmoid, an operator at a time (``QuickGELUActivation`` of transformers)."""
    return mul(x, sigmoid(mul_number(x)))


def relu(x: Value) -> Value:
    """``relu``."""
    out = elementwise("relu", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("threshold_backward", g, out),))


def relu_in_place(x: Value) -> Value:
    """``relu_``, in place."""
    out = Value(x.tape, x.shape, x.dtype, x.storage, x.strides, x.offset)
    x.tape.record("relu_", (x,), (out,))
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("threshold_backward", g, out),))


def silu(x: Value) -> Value:
    """``silu``; its gradient is one kernel on a GPU."""
    out = elementwise("silu", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("silu_backward", g, x),))


def dropout(x: Value, probability: float) -> Value:
    """``native_dropout``, which also returns a mask; no operator where the probability is 0."""
    if not probability:
        return x
    tape = x.tape
    strides = dense_like(x.shape, x.strides)
    out, mask = tape.new(x.shape, x.dtype, strides), tape.new(x.shape, "bool", strides)
    tape.record("native_dropout", (x,), (out, mask))
    scale = 1.0 / (1.0 - probability)
    tape.differentiate(
        (out, mask), (x,), lambda g, _: (elementwise("native_dropout_backward", g, mask, dtype=g.dtype, scale=scale),)
    )
    return out


def masked_fill(x: Value, mask: Value) -> Value:
    """``masked_fill``: a number where ``mask`` is true."""
    out = elementwise("masked_fill", x, mask, dtype=x.dtype)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("masked_fill", g, mask, dtype=g.dtype),))


def masked_fill_in_place(x: Value, mask: Value) -> Value:
    """``masked_fill_``, in place."""
    out = Value(x.tape, x.shape, x.dtype, x.storage, x.strides, x.offset)
    x.tape.record("masked_fill_", (x, mask), (out,))
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("masked_fill", g, mask, dtype=g.dtype),))


def to(x: Value, dtype: str) -> Value:
    """``to``: a copy in another dtype (``_to_copy``), or the value itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    out = elementwise("_to_copy", x, dtype=dtype)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("_to_copy", g, dtype=x.dtype),))
