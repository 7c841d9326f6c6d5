"""Element-wise operators and reductions, with their derivatives in PyTorch (``tools/autograd/derivatives.yaml``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Record an element-wise operator; its result has the strides of the first input of full size.

    One whose name ends with an underscore writes its result into the first input.
    """
    tape, first = given[0].tape, given[0]
    if name.endswith("_"):
        out = first.alias()
    else:
        shape = first.shape if len(given) == 1 else broadcast(*[value.shape for value in given])
        like = next((value for value in given if value.shape == shape), None)
        if dtype is None:
            dtype = first.dtype
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
    return to(gradient, value.dtype)


def total(x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """``sum`` over some dimensions."""
    return _reduced("sum", x, dims, keepdim)


def mean(x: Value, dims: Sequence[int], *, keepdim: bool = False) -> Value:
    """``mean`` over some dimensions."""
    return _reduced("mean", x, dims, keepdim)


def _reduced(name: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    gone = {dim % len(x.shape) for dim in dims}
    kept = tuple([1 if axis in gone else length for axis, length in enumerate(x.shape)])
    shape = kept if keepdim else tuple([length for axis, length in enumerate(x.shape) if axis not in gone])
    out = x.tape.result(name, (x,), shape, x.dtype, dim=list(dims), **({"keepdim": True} if keepdim else {}))

    def backward(g: Value) -> tuple[Value]:
        spread = expand(g if keepdim else view(g, kept), x.shape)
        return (elementwise("div", spread) if name == "mean" else spread,)

    return x.tape.differentiate((out,), (x,), backward)


# ---- operators whose gradient is one operator -------------------------------------------------------------------


def one_kernel(name: str, backward: str, *, saves_output: bool) -> Callable[[Value], Value]:
    """Return a differentiable operator; ``backward`` reads the gradient and the input, or the output, of the forward one."""

    def operator(x: Value) -> Value:
        out = elementwise(name, x)
        return x.tape.differentiate((out,), (x,), lambda g: (elementwise(backward, g, out if saves_output else x),))

    operator.__name__ = name
    return operator


tanh = one_kernel("tanh", "tanh_backward", saves_output=True)
sigmoid = one_kernel("sigmoid", "sigmoid_backward", saves_output=True)
relu = one_kernel("relu", "threshold_backward", saves_output=True)
relu_in_place = one_kernel("relu_", "threshold_backward", saves_output=True)
silu = one_kernel("silu", "silu_backward", saves_output=False)
#: Exact or by ``tanh``: one kernel either way.
gelu = one_kernel("gelu", "gelu_backward", saves_output=False)


def _linear_map(name: str) -> Callable[[Value], Value]:
    """Return an operator with a number, whose gradient is the same operator on the gradient."""

    def operator(x: Value) -> Value:
        return x.tape.differentiate((elementwise(name, x),), (x,), lambda g: (elementwise(name, g),))

    return operator


#: ``x * number``, ``x / number`` and ``-x``.
mul_number, div_number, neg = map(_linear_map, ("mul", "div", "neg"))


def add_number(x: Value) -> Value:
    """``x + number``."""
    return x.tape.differentiate((elementwise("add", x),), (x,), lambda g: (g,))


# ---- arithmetic -------------------------------------------------------------------------------------------------


def add(a: Value, b: Value, *, in_place: bool = False) -> Value:
    """``a + b``, or ``a += b``."""
    out = elementwise("add_" if in_place else "add", a, b)
    return a.tape.differentiate((out,), (a, b), lambda g: (g, g))


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


def power(x: Value, exponent: float) -> Value:
    """``x ** exponent``; autocast computes it in fp32."""
    x = full_precision(x)
    out = elementwise("pow", x, exponent=exponent)

    def backward(g: Value) -> tuple[Value]:
        inner = elementwise("mul", elementwise("pow", x, exponent=exponent - 1.0))
        return (elementwise("mul", g, inner),)

    return x.tape.differentiate((out,), (x,), backward)


def rsqrt(x: Value) -> Value:
    """``1 / sqrt(x)``."""
    out = elementwise("rsqrt", x)

    def backward(g: Value) -> tuple[Value]:
        cubed = elementwise("pow", out, exponent=3)
        return (elementwise("mul", elementwise("mul", g), cubed),)

    return x.tape.differentiate((out,), (x,), backward)


def over_root_mean_square(x: Value) -> Value:
    """``x * rsqrt(mean(x ** 2) + epsilon)`` over the last dimension, an operator at a time."""
    return mul(x, rsqrt(add_number(mean(power(x, 2), [-1], keepdim=True))))


def unfused_gelu(x: Value) -> Value:
    """The approximation by ``tanh`` as a formula, an operator at a time (``NewGELUActivation`` of transformers)."""
    half = mul_number(x)
    inner = mul_number(add(x, mul_number(power(x, 3.0))))
    return mul(half, add_number(tanh(inner)))


def quick_gelu(x: Value) -> Value:
    """The approximation by a sigmoid, an operator at a time (``QuickGELUActivation`` of transformers)."""
    return mul(x, sigmoid(mul_number(x)))


# ---- masks and copies -------------------------------------------------------------------------------------------


def dropout(x: Value, probability: float) -> Value:
    """``native_dropout``, which also returns a mask; no operator where the probability is 0."""
    if not probability:
        return x
    tape = x.tape
    strides = dense_like(x.shape, x.strides)
    out, mask = tape.new(x.shape, x.dtype, strides), tape.new(x.shape, "bool", strides)
    tape.record("native_dropout", (x,), (out, mask))
    scale = 1.0 / (1.0 - probability)
    return tape.differentiate(
        (out, mask), (x,), lambda g, _: (elementwise("native_dropout_backward", g, mask, dtype=g.dtype, scale=scale),)
    )


def masked_fill(x: Value, mask: Value, *, in_place: bool = False) -> Value:
    """``masked_fill``: a number where ``mask`` is true."""
    out = elementwise("masked_fill_" if in_place else "masked_fill", x, mask, dtype=x.dtype)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("masked_fill", g, mask, dtype=g.dtype),))


def clamp(x: Value, *, least: bool = False) -> Value:
    """``clamp`` to a largest number, and to a ``least``."""
    out = elementwise("clamp", x)

    def backward(g: Value) -> tuple[Value]:
        inside = elementwise("le", x, dtype="bool")
        if least:
            inside = elementwise("logical_and_", inside, elementwise("ge", x, dtype="bool"))
        return (elementwise("where", inside, g, dtype=g.dtype),)

    return x.tape.differentiate((out,), (x,), backward)


def to(x: Value, dtype: str) -> Value:
    """``to``: a copy in another dtype (``_to_copy``), or the value itself if it has that dtype."""
    if x.dtype == dtype:
        return x
    out = elementwise("_to_copy", x, dtype=dtype)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("_to_copy", g, dtype=x.dtype),))
