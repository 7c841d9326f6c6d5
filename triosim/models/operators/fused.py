"""Fused operators: what compilers and training libraries run as one kernel, which reads and writes memory once.

Megatron-LM fuses a bias with what follows it (Narayanan et al. 2021, section 4.2); ``torch.compile``, Liger and Transformer
Engine do the same to norms, rotary embeddings, gates and the loss.
"""

from __future__ import annotations

from triosim.models.operators.elementwise import elementwise, one_kernel, total
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
    given, saved = (x, weight), (x, root, weight)
    return tape.kernel("_fused_rms_norm", given, (out, root), of=given, saved=saved, normalized_shape=[width])


def gated_unit(both: Value, activation: str) -> Value:
    """``activation(gate) * up`` of one tensor that holds both: of ``silu`` a SwiGLU, of ``gelu`` a GeGLU (Shazeer 2020)."""
    out = both.tape.new((*both.shape[:-1], both.shape[-1] // 2), both.dtype)
    return both.tape.kernel(f"fused::{_UNITS[activation]}", (both,), (out,), of=(both,), saved=(both,))


#: ``cap * tanh(x / cap)``.
soft_capped = one_kernel("fused::softcap", "fused::softcap_backward", saves_output=True)


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
    given, name = (logits, labels), "fused::cross_entropy_loss"
    return tape.kernel(name, given, (loss, sums), of=(logits,), saved=(*given, sums), reduction=1)


def _summed(gradient: Value) -> Value:
    """The gradient of a bias: that of its result, summed over the rows."""
    dims = list(range(len(gradient.shape) - 1))
    return view(total(gradient, dims, keepdim=True), gradient.shape[-1:])
