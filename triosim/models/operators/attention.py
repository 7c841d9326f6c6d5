"""Attention by one kernel or by its products, as ``scaled_dot_product_attention`` chooses on a GPU, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.config.stacks import AttentionKind
from triosim.errors import OptionError
from triosim.models.operators.elementwise import add, dropout, elementwise, masked_fill, mul_number, to
from triosim.models.operators.layers import softmax
from triosim.models.operators.products import bmm, linear, lower_precision, matmul, scaled_bmm
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import expand, reshape, transpose, unsqueeze, view

#: The largest head dimension that FlashAttention takes.
_WIDEST = 256
#: The memory-efficient kernel keeps one sum a query, rounded up to multiples of this.
_ROWS = 32


def features_of_head(features: int, heads: int) -> int:
    """Return the features of a head. Raises ``OptionError`` where heads do not share features evenly."""
    if features % heads:
        raise OptionError(f"{features} features are not divisible by {heads} heads", fix="change one of them")
    return features // heads


def split_heads(x: Value, heads: int) -> Value:
    """Return (batch, length, features) as (batch, heads, length, features of a head)."""
    batch, length, features = x.shape
    return transpose(view(x, (batch, length, heads, features // heads)), 1, 2)


def projected_heads(x: Value, name: str, heads: int, width: int, *, bias: bool = True) -> Value:
    """Return the output of the linear layer ``name``, (batch, heads, length, width), for (batch, length, features)."""
    return split_heads(module(name, linear, x, heads * width, bias=bias), heads)


def self_attention(
    x: Value, heads: int, names: Sequence[str], *, kernel: AttentionKind, probability: float = 0.0, causal: bool = False
) -> Value:
    """Attention of (batch, length, features) to itself; ``names`` are the layers that make queries, keys and values."""
    width = features_of_head(x.shape[-1], heads)
    parts = [projected_heads(x, name, heads, width) for name in names]
    return multi_head_attention(*parts, kernel=kernel, probability=probability, causal=causal)


def multi_head_attention(
    query: Value,
    key: Value,
    value: Value,
    *,
    kernel: AttentionKind,
    probability: float,
    causal: bool = False,
    bias: Value | None = None,
) -> Value:
    """Attention of (batch, heads, length, features); returns (batch, length, heads * features).

    Keys and values may have fewer heads than queries. ``bias`` is added to the scores, and may have a gradient.
    """
    batch, heads, length, _ = query.shape
    if kernel != "math":
        found = attention(query, key, value, kernel=kernel, causal=causal, probability=probability, bias=bias)
    else:
        times = heads // key.shape[1]
        parts = query, repeated(key, times), repeated(value, times)
        rows = [reshape(part, (batch * heads, *part.shape[2:])) for part in parts]
        mask = causal_mask(query.tape, length) if causal else None
        found = unfused_attention(*rows, heads=heads, mask=mask, probability=probability, bias=bias)
        found = view(found, (batch, heads, length, value.shape[-1]))
    return reshape(transpose(found, 1, 2), (batch, length, heads * value.shape[-1]))


def attention(
    query: Value,
    key: Value,
    value: Value,
    *,
    kernel: AttentionKind = "flash",
    causal: bool,
    probability: float = 0.0,
    bias: Value | None = None,
) -> Value:
    """``scaled_dot_product_attention`` of (batch, heads, length, features), by a kernel if it serves them on a GPU.

    FlashAttention and cuDNN's serve half precision without a bias, the memory-efficient kernel as many heads of keys as of
    queries. FlashAttention in Triton is FlashAttention with the attribute ``kernel``.
    """
    query, key, value = lower_precision(query), lower_precision(key), lower_precision(value)
    half = query.dtype in ("float16", "bfloat16")
    if half and bias is None and query.shape[-1] == value.shape[-1] <= _WIDEST:
        return _fused(kernel, query, key, value, None, causal, probability)
    if key.shape[1] == query.shape[1]:
        return _fused(
            "efficient", query, key, value, None if bias is None else lower_precision(bias), causal, probability
        )
    return _written_out(query, key, value, causal, probability)


def _fused(
    kernel: str, query: Value, key: Value, value: Value, bias: Value | None, causal: bool, probability: float
) -> Value:
    tape, (batch, heads, length, width) = query.tape, query.shape
    named = "flash" if kernel == "triton" else kernel
    out = tape.new((batch, heads, length, value.shape[-1]), query.dtype, _laid(heads, length, value.shape[-1]))
    if kernel != "efficient":
        sums = tape.new((batch, heads, length), "float32")
        state = [tape.new((2,), "uint64"), tape.new((), "uint64")]
    else:
        sums = tape.new((batch, heads, -(-length // _ROWS) * _ROWS), "float32")
        state = [tape.new((), "int64"), tape.new((), "int64")]
    name = f"_scaled_dot_product_{named}_attention"
    given = (query, key, value) if bias is None else (query, key, value, bias)
    attributes = {"dropout_p": probability, "is_causal": causal, "scale": width**-0.5}
    attributes |= {"kernel": kernel} if kernel == "triton" else {}
    tape.record(name, given, (out, sums, *state), **attributes)

    def backward(g: Value, *_: Value | None) -> list[Value | None]:
        made: list[Value | None] = [
            tape.new(one.shape, one.dtype, _laid(one.shape[1], one.shape[2], one.shape[3])) for one in given[:3]
        ]
        if bias is not None:
            made.append(tape.new(bias.shape, bias.dtype) if bias.node else None)
        tape.record(
            f"{name}_backward", (g, *given, out, sums, *state), [one for one in made if one is not None], **attributes
        )
        return made

    return tape.differentiate((out, sums, *state), given, backward)


def _laid(heads: int, length: int, width: int) -> tuple[int, ...]:
    """The strides of (batch, heads, length, features) that lie as (batch, length, heads, features), as the kernels write."""
    return (length * heads * width, width, heads * width, 1)


def _written_out(query: Value, key: Value, value: Value, causal: bool, probability: float) -> Value:
    """``_scaled_dot_product_attention_math``, for inputs that no fused kernel takes."""
    times = query.shape[1] // key.shape[1]
    query = mul_number(query)
    mask = causal_mask(query.tape, query.shape[2]) if causal else None
    key, value = repeated(key, times), repeated(value, times)
    scores = matmul(query, mul_number(transpose(key, 2, 3)))
    if mask is not None:
        scores = masked_fill(scores, mask)
    return matmul(dropout(softmax(scores), probability), value)


def causal_mask(tape: Tape, length: int) -> Value:
    """Return a mask that is true where a token may not attend, at later tokens: (1, 1, length, length)."""
    ones, mask = (tape.new((1, 1, length, length), "bool") for _ in range(2))
    tape.record("ones", (), (ones,))
    tape.record("triu", (ones,), (mask,))
    return mask


def masked_bias(bias: Value) -> Value:
    """Return a bias of the scores that keeps tokens from attending to later ones."""
    tape = bias.tape
    mask = causal_mask(tape, bias.shape[-1])
    out = elementwise("where", mask, bias, dtype=bias.dtype)
    return tape.differentiate((out,), (bias,), lambda g: (elementwise("where", mask, g, dtype=g.dtype),))


def repeated(x: Value, times: int) -> Value:
    """Repeat each head of (batch, heads, length, features), as grouped-query attention needs."""
    if times == 1:
        return x
    batch, heads, length, width = x.shape
    shown = expand(unsqueeze(x, 2), (batch, heads, times, length, width))
    return reshape(shown, (batch, heads * times, length, width))


def unfused_attention(
    query: Value,
    key: Value,
    value: Value,
    *,
    heads: int,
    mask: Value | None,
    probability: float,
    bias: Value | None = None,
    rescaled: bool = False,
) -> Value:
    """Attention by its two products, with the scores in memory (Megatron-LM before FlashAttention).

    Takes and returns (batch * heads, length, features); ``mask`` is true where a query may not attend, ``bias`` is added to
    the scores. ``rescaled``: scores are cast to fp32 and scaled before the softmax, and probabilities cast back.
    """
    rows = (*query.shape[:2], key.shape[1])
    scores = view(scaled_bmm(query, transpose(key, 1, 2)), (rows[0] // heads, heads, *rows[1:]))
    if bias is not None:
        scores = add(scores, bias)
    if rescaled:
        scores = mul_number(to(scores, "float32"))
    if mask is not None:
        scores = masked_fill(scores, mask, in_place=True)
    found = softmax(scores)
    found = dropout(to(found, query.dtype) if rescaled else found, probability)
    return bmm(reshape(lower_precision(found), rows), value)
