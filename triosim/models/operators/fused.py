"""Fused operators: what compilers and training libraries run as one kernel, which reads and writes memory once.

Megatron-LM fuses a bias with what follows it (Narayanan et al. 2021, section 4.2); ``torch.compile``, Liger and Transformer
Engine do the same to norms, rotary_angles, gates and the loss.
"""

from __future__ import annotations

from triosim.models.operators.elementwise import elementwise, total
from triosim.models.operators.layout import dense_like
from triosim.models.operators.tape import Value
from triosim.models.operators.views import view

#: The names of gated units, by activation.
_UNITS = {"silu": "swiglu", "gelu": "geglu"}


def rms_norm(x: Value) -> Value:
    """``nn.RMSNorm`` of the open module: one kernel, which keeps the reciprocal of the root."""
    tape, width = x.tape, x.shape[-1]
    weight = tape.parameter("weight", (width,))
    out, root = tape.new(x.shape, x.dtype), tape.new((*x.shape[:-1], 1), "float32")
    tape.record("_fused_rms_norm", (x, weight), (out, root), normalized_shape=[width])

    def backward(g: Value, _: Value | None) -> list[Value]:
        made = [tape.new(x.shape, x.dtype), tape.new(weight.shape, weight.dtype)]
        tape.record("_fused_rms_norm_backward", (g, x, root, weight), made, normalized_shape=[width])
        return made

    return tape.differentiate((out, root), (x, weight), backward)


def gated_unit(gate: Value, up: Value, activation: str) -> Value:
    """``activation(gate) * up``: of ``silu`` a SwiGLU, of ``gelu`` a GeGLU (Shazeer 2020)."""
    tape, name = gate.tape, _UNITS[activation]
    out = elementwise(f"fused::{name}", gate, up)

    def backward(g: Value) -> list[Value]:
        made = [tape.new(one.shape, one.dtype) for one in (gate, up)]
        tape.record(f"fused::{name}_backward", (g, gate, up), made)
        return made

    return tape.differentiate((out,), (gate, up), backward)


def soft_capped(x: Value) -> Value:
    """``cap * tanh(x / cap)``."""
    out = elementwise("fused::softcap", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("fused::softcap_backward", g, out),))


def rotary_embedding(x: Value, angles: tuple[Value, Value]) -> Value:
    """Rotary position embedding of queries or keys."""
    out = elementwise("fused::rotary_embedding", x, *angles)

    def backward(g: Value) -> tuple[Value, None, None]:
        return elementwise("fused::rotary_embedding_backward", g, *angles), None, None

    return x.tape.differentiate((out,), (x, *angles), backward)


def bias_gelu(x: Value) -> Value:
    """``gelu(x + bias)``, with a bias of the open module."""
    bias = x.tape.parameter("bias", x.shape[-1:])
    out = elementwise("fused::bias_gelu", x, bias)

    def backward(g: Value) -> tuple[Value, Value]:
        found = elementwise("fused::bias_gelu_backward", g, x, bias)
        return found, _summed(found)

    return x.tape.differentiate((out,), (x, bias), backward)


def bias_dropout_add(x: Value, residual: Value, probability: float) -> Value:
    """``residual + dropout(x + bias)``, with a bias of the open module; also makes the mask of dropout."""
    tape = x.tape
    bias = tape.parameter("bias", x.shape[-1:])
    strides = dense_like(x.shape, x.strides)
    out = tape.new(x.shape, x.dtype, strides)
    masks = [tape.new(x.shape, "bool", strides)] if probability else []
    tape.record("fused::bias_dropout_add", (x, bias, residual), (out, *masks))

    def backward(g: Value, *_: Value | None) -> tuple[Value, Value, Value]:
        found = elementwise("native_dropout_backward", g, masks[0], dtype=g.dtype) if masks else g
        return found, _summed(found), g

    return tape.differentiate((out, *masks), (x, bias, residual), backward)


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean cross entropy of (samples, classes), computed in fp32 and kept in the dtype of the logits."""
    tape = logits.tape
    loss, sums = tape.new((), "float32"), tape.new(logits.shape[:1], "float32")
    tape.record("fused::cross_entropy_loss", (logits, labels), (loss, sums), reduction=1)

    def backward(g: Value, _: Value | None) -> tuple[Value]:
        return (
            tape.result(
                "fused::cross_entropy_loss_backward", (g, logits, labels, sums), logits.shape, logits.dtype, reduction=1
            ),
        )

    return tape.differentiate((loss, sums), (logits,), backward)


def _summed(gradient: Value) -> Value:
    """The gradient of a bias: that of its result, summed over the rows."""
    dims = list(range(len(gradient.shape) - 1))
    return view(total(gradient, dims, keepdim=True), gradient.shape[-1:])
