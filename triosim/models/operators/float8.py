"""Linear layers in fp8 with one scale a tensor, as torchao's Float8Linear trains them, or as Transformer Engine does.

Micikevicius et al. 2022 ("FP8 Formats for Deep Learning"): activations and weights in e4m3, gradients in e5m2. A
tensor's largest magnitude gives its scale; it is scaled, clamped and cast, once for all products that read it. The
scales of weights are taken to be known from the optimizer's step (``precompute_float8_dynamic_scale_for_fsdp``), and
a weight is cast by one kernel. The tensor cores take the second factor by columns, so that each product of the
backward pass is given copies of the other layout. With delayed scaling (Transformer Engine), a tensor is scaled by what
earlier steps had, and one kernel casts it.
"""

from __future__ import annotations

import math

from triosim.models.operators.elementwise import elementwise
from triosim.models.operators.tape import Value
from triosim.models.operators.views import copied, t, view

_FORWARD, _BACKWARD = "float8_e4m3fn", "float8_e5m2"
#: Both sides of a factor have to be multiples of this.
_MULTIPLE = 16


def fits(x: Value, weight: Value) -> bool:
    """Whether the tensor cores can multiply rows by a weight in fp8: all sides are multiples of 16."""
    return not any(length % _MULTIPLE for length in (math.prod(x.shape[:-1]), *weight.shape))


def product(x: Value, weight: Value) -> Value:
    """Rows (..., k) by a transposed weight (n, k), with the three products of forward and backward pass in fp8."""
    narrow_x, scale = _cast(x, _FORWARD)
    rows = view(narrow_x, (-1, x.shape[-1]))
    table, of_table = _cast(weight, _FORWARD)
    out = _scaled(rows, t(table), scale, of_table, x.dtype)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        narrow, of_gradient = _cast(g, _BACKWARD)
        first = second = None
        if x.node:
            first = view(_scaled(narrow, t(copied(t(table))), of_gradient, of_table, x.dtype), x.shape)
        if weight.node:
            second = _scaled(copied(t(narrow)), t(copied(t(rows))), of_gradient, scale, weight.dtype)
        return first, second

    return x.tape.differentiate((out,), (x, weight), backward)


def _cast(x: Value, dtype: str) -> tuple[Value, Value]:
    """Return a tensor in fp8 and its scale; one cast for all products that read the tensor."""
    tape = x.tape
    key = x.storage, x.shape
    if key not in tape.narrow:
        if tape.categories[x.storage] == "parameter" or tape.products == "fp8-delayed":
            tape.narrow[key] = elementwise("_to_copy", x, dtype=dtype), tape.new((), "float32", category="buffer")
        else:
            largest = tape.result("amax", (x,), (), "float32", dim=list(range(len(x.shape))))
            scaled = elementwise("clamp", elementwise("mul", x, largest, dtype="float32"))
            tape.narrow[key] = elementwise("_to_copy", scaled, dtype=dtype), largest
    return tape.narrow[key]


def _scaled(a: Value, b: Value, of_a: Value, of_b: Value, dtype: str) -> Value:
    return a.tape.result("_scaled_mm", (a, b, of_a, of_b), (a.shape[0], b.shape[1]), dtype)
