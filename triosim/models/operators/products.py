"""Matrix products and convolutions, with their gradients in the order in which PyTorch computes them."""

from __future__ import annotations

import math

from triosim.errors import OptionError
from triosim.models.operators import float8
from triosim.models.operators.elementwise import add, elementwise, to, total
from triosim.models.operators.layout import channels_last, dense_like, is_contiguous
from triosim.models.operators.tape import Value
from triosim.models.operators.views import contiguous_of, reshape, t, transpose, unsafe_view, view

_NAMES = ("weight", "bias")


def lower_precision(x: Value) -> Value:
    """Return a value in the dtype that autocast computes products in; a parameter's copy is made once."""
    tape = x.tape
    if tape.autocast is None or x.dtype == tape.autocast or not x.is_floating:
        return x
    if tape.categories[x.storage] != "parameter":
        return to(x, tape.autocast)
    found = tape.copies.get(x.storage)
    if found is None:
        found = tape.copies[x.storage] = to(x, tape.autocast)
    return found


def _product(name: str, a: Value, b: Value, *added: Value, tf32: bool = False) -> Value:
    """Record a product; what is ``added`` stands before the factors. Of fp32 it is in TF32 where it or the step says so."""
    attributes = {"allow_tf32": True} if (tf32 or a.tape.products == "tf32") and a.dtype == "float32" else {}
    return a.tape.result(name, (*added, a, b), (*a.shape[:-1], b.shape[-1]), a.dtype, **attributes)


def _by_second(g: Value, a: Value, b: Value, *, tf32: bool = False) -> Value:
    """The gradient of the second factor, in its layout: a transposed weight gets a transposed gradient."""
    if b.strides[0] == 1 and b.strides[1] == b.shape[0]:
        return t(_product("mm", t(g), a, tf32=tf32))
    return _product("mm", t(a), g, tf32=tf32)


def mm(a: Value, b: Value, *, tf32: bool = False) -> Value:
    """(m, k) by (k, n); ``tf32``: in TF32 where it is in fp32."""
    a, b = lower_precision(a), lower_precision(b)
    out = _product("mm", a, b, tf32=tf32)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        second = _by_second(g, a, b, tf32=tf32) if b.node else None
        return _product("mm", g, t(b), tf32=tf32) if a.node else None, second

    return a.tape.differentiate((out,), (a, b), backward)


def addmm(bias: Value, a: Value, b: Value) -> Value:
    """(m, k) by (k, n), and a bias of (n)."""
    bias, a, b = lower_precision(bias), lower_precision(a), lower_precision(b)
    out = _product("addmm", a, b, bias)

    def backward(g: Value) -> tuple[Value | None, Value | None, Value | None]:
        first = _product("mm", g, t(b)) if a.node else None
        second = _by_second(g, a, b) if b.node else None
        own = view(total(g, [0], keepdim=True), bias.shape) if bias.node else None
        return own, first, second

    return a.tape.differentiate((out,), (bias, a, b), backward)


def linear(
    x: Value,
    outputs: int,
    *,
    bias: bool = True,
    weight: Value | None = None,
    names: tuple[str, str] = _NAMES,
    whole: bool = False,
) -> Value:
    """``nn.Linear`` of the open module: a weight of (outputs, inputs); ``weight`` where it is shared with another module.

    The product adds the bias where its input is contiguous (``addmm``). ``whole``: never in fp8.
    """
    tape, inputs, shape = x.tape, x.shape[-1], (*x.shape[:-1], outputs)
    if weight is None:
        weight = tape.parameter(names[0], (outputs, inputs))
    added = lower_precision(tape.parameter(names[1], (outputs,))) if bias else None
    x, weight = lower_precision(x), lower_precision(weight)
    is_matrix = len(x.shape) == 2
    if not whole and float8.fits(x, weight):
        found = view(float8.product(contiguous_of(x), weight), shape)
    elif added is not None and (is_matrix or is_contiguous(x.shape, x.strides)):
        found = addmm(added, reshape(x, (-1, inputs)), t(weight))
        return found if is_matrix else view(found, shape)
    else:
        turned = t(weight)
        found = mm(x, turned) if is_matrix else unsafe_view(mm(reshape(x, (-1, inputs)), turned), shape)
    return found if added is None else add(found, added)


def transposed_linear(x: Value, outputs: int) -> Value:
    """``Conv1D`` of transformers' GPT-2: a linear layer whose weight is (inputs, outputs)."""
    tape, inputs = x.tape, x.shape[-1]
    weight, bias = tape.parameter("weight", (inputs, outputs)), tape.parameter("bias", (outputs,))
    return view(addmm(bias, view(x, (-1, inputs)), weight), (*x.shape[:-1], outputs))


def bmm(a: Value, b: Value) -> Value:
    """A batch of products."""
    a, b = lower_precision(a), lower_precision(b)
    out = _product("bmm", a, b)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        second = _product("bmm", transpose(a, 1, 2), g) if b.node else None
        return _product("bmm", g, transpose(b, 1, 2)) if a.node else None, second

    return a.tape.differentiate((out,), (a, b), backward)


def scaled_bmm(a: Value, b: Value) -> Value:
    """``baddbmm`` without its input (``beta=0``): a batch of products, scaled."""
    a, b = lower_precision(a), lower_precision(b)
    into = a.tape.result("empty", (), (*a.shape[:-1], b.shape[-1]), a.dtype)
    out = _product("baddbmm", a, b, into)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        first = elementwise("mul", _product("bmm", g, transpose(b, 1, 2))) if a.node else None
        second = elementwise("mul", _product("bmm", transpose(a, 1, 2), g)) if b.node else None
        return first, second

    return a.tape.differentiate((out,), (a, b), backward)


def matmul(a: Value, b: Value) -> Value:
    """``torch.matmul`` of (..., m, k) and (..., k, n) with the same leading dimensions."""
    lead = a.shape[:-2]
    first = reshape(lower_precision(a), (math.prod(lead), *a.shape[-2:]))
    second = reshape(lower_precision(b), (math.prod(lead), *b.shape[-2:]))
    return unsafe_view(bmm(first, second), (*lead, a.shape[-2], b.shape[-1]))


def convolution(
    x: Value, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1, bias: bool = False
) -> Value:
    """A convolution of the open module, over (samples, channels, height, width)."""
    tape = x.tape
    weight = lower_precision(tape.parameter("weight", (outputs, x.shape[1] // groups, kernel, kernel)))
    added = lower_precision(tape.parameter("bias", (outputs,))) if bias else None
    x = lower_precision(x)
    spatial = tuple([(length + 2 * padding - kernel) // stride + 1 for length in x.shape[2:]])
    if min(spatial) < 1:
        sides = "x".join(map(str, x.shape[2:]))
        raise OptionError(f"a kernel of {kernel} does not fit into data of {sides}", fix="describe larger images")
    shape = (x.shape[0], outputs, *spatial)
    strides = dense_like(shape, x.strides) if channels_last(x.shape, x.strides) else None
    out = tape.new(shape, x.dtype, strides)
    given = (x, weight) if added is None else (x, weight, added)
    attributes = {
        "stride": [stride, stride],
        "padding": [padding, padding],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": groups,
    }
    if tape.channels_last or strides is not None:
        attributes["channels_last"] = True
    tape.record("convolution", given, (out,), **attributes)

    def backward(g: Value) -> list[Value | None]:
        made = [tape.new(value.shape, g.dtype) if value.node else None for value in given]
        if made[0] is not None:
            made[0].strides = dense_like(x.shape, x.strides)
        tape.record("convolution_backward", (g, x, weight), [one for one in made if one is not None], **attributes)
        return made

    return tape.differentiate((out,), given, backward)
