"""Normalisation, softmax, embeddings, attention and the loss: operators of one kernel each, with their gradients."""

from __future__ import annotations

from triosim.models.operators.elementwise import (
    add,
    add_number,
    dropout,
    elementwise,
    full,
    masked_fill,
    masked_fill_in_place,
    mean,
    mul,
    mul_number,
    power,
    rsqrt,
    to,
)
from triosim.models.operators.fused import cross_entropy as fused_cross_entropy
from triosim.models.operators.products import bmm, low, matmul, scaled_bmm
from triosim.models.operators.shaping import contiguous_of, expand, reshape, slice_of, transpose, unsqueeze, view
from triosim.models.operators.tape import Tape, Value
from triosim.models.step_choices import AttentionKind

#: The widest head that FlashAttention takes.
_WIDEST = 256
#: The memory-efficient kernel keeps sums for multiples of so many queries.
_ROWS = 32


def embedding(indices: Value, entries: int, width: int, *, weight: Value | None = None) -> Value:
    """``nn.Embedding`` of the open module; ``weight`` where it is another's."""
    tape = indices.tape
    table = tape.parameter("weight", (entries, width)) if weight is None else weight
    out = tape.new((*indices.shape, width), table.dtype)
    tape.record("embedding", (table, indices), (out,))

    def backward(g: Value) -> tuple[Value]:
        found = tape.new(table.shape, g.dtype)
        tape.record("embedding_dense_backward", (g, indices), (found,))
        return (found,)

    tape.differentiate((out,), (table,), backward)
    return out


def layer_norm(x: Value, *, bias: bool = True) -> Value:
    """``nn.LayerNorm`` of the open module over the last dimension; the statistics are fp32."""
    tape, width = x.tape, x.shape[-1]
    x = full(x)
    weights = [full(tape.parameter(name, (width,))) for name in (("weight", "bias") if bias else ("weight",))]
    out = tape.new(x.shape, x.dtype)
    statistics = [tape.new((*x.shape[:-1], 1), "float32") for _ in range(2)]
    tape.record("native_layer_norm", (x, *weights), (out, *statistics), normalized_shape=[width])

    def backward(g: Value, *_: Value | None) -> list[Value]:
        made = [tape.new(value.shape, value.dtype) for value in (x, *weights)]
        tape.record("native_layer_norm_backward", (g, x, *statistics, *weights), made, normalized_shape=[width])
        return made

    tape.differentiate((out, *statistics), (x, *weights), backward)
    return out


def rms_norm(x: Value) -> Value:
    """The root mean square norm as transformers writes it: in fp32, an operator at a time."""
    tape, dtype = x.tape, x.dtype
    weight = tape.parameter("weight", (x.shape[-1],))
    x = to(x, "float32")
    found = mul(x, rsqrt(add_number(mean(power(x, 2), [-1], keepdim=True))))
    return mul(weight, to(found, dtype))


def softmax(x: Value, *, dtype: str | None = None) -> Value:
    """``softmax`` over the last dimension, computed in ``dtype`` where that is given."""
    return _soft("_softmax", to(full(x), dtype) if dtype else full(x), -1)


def log_softmax(x: Value) -> Value:
    """``log_softmax`` over the second dimension."""
    return _soft("_log_softmax", full(x), 1)


def _soft(name: str, x: Value, dim: int) -> Value:
    x = contiguous_of(x)
    out = x.tape.new(x.shape, x.dtype)
    x.tape.record(name, (x,), (out,), dim=dim)
    x.tape.differentiate((out,), (x,), lambda g: (elementwise(f"{name}_backward_data", g, out, dim=dim),))
    return out


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean cross entropy of (samples, classes) and the classes of (samples)."""
    tape = logits.tape
    logarithms = log_softmax(logits)
    loss, weight = tape.new((), logarithms.dtype), tape.new((), logarithms.dtype)
    tape.record("nll_loss_forward", (logarithms, labels), (loss, weight), reduction=1)

    def backward(g: Value, _: Value | None) -> tuple[Value]:
        found = tape.new(logarithms.shape, logarithms.dtype)
        tape.record("nll_loss_backward", (g, logarithms, labels, weight), (found,), reduction=1)
        return (found,)

    tape.differentiate((loss, weight), (logarithms,), backward)
    return loss


def next_word(logits: Value, labels: Value, *, fused: bool, shifted: bool = False) -> Value:
    """Return the loss of (batch, words, vocabulary) in fp32; ``fused`` keeps the logits as they are.

    ``shifted``: the last word's logits, of which nothing follows, are left out by a copy of the others.
    """
    with logits.tape.at("loss"):
        if not fused:
            logits = to(logits, "float32")
        if shifted:
            last = logits.shape[1] - 1
            logits = contiguous_of(slice_of(logits, 1, 0, last))
            labels = contiguous_of(slice_of(labels, 1, 1, last + 1))
        rows, labels = view(logits, (-1, logits.shape[-1])), reshape(labels, (-1,))
        return fused_cross_entropy(rows, labels) if fused else cross_entropy(rows, labels)


def heads_of(x: Value, heads: int) -> Value:
    """Return (batch, length, features) as (batch, heads, length, features of a head)."""
    batch, length, features = x.shape
    return transpose(view(x, (batch, length, heads, features // heads)), 1, 2)


def many_headed(
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
    if kernel == "flash":
        found = attention(query, key, value, causal=causal, probability=probability, bias=bias)
    else:
        times = heads // key.shape[1]
        parts = query, repeated(key, times), repeated(value, times)
        rows = [reshape(part, (batch * heads, *part.shape[2:])) for part in parts]
        mask = causal_mask(query.tape, length) if causal else None
        found = unfused_attention(*rows, heads=heads, mask=mask, probability=probability, bias=bias)
        found = view(found, (batch, heads, length, value.shape[-1]))
    return reshape(transpose(found, 1, 2), (batch, length, heads * value.shape[-1]))


def attention(
    query: Value, key: Value, value: Value, *, causal: bool, probability: float = 0.0, bias: Value | None = None
) -> Value:
    """``scaled_dot_product_attention`` of (batch, heads, length, features), by the kernel that PyTorch chooses on a GPU.

    FlashAttention serves half precision without a bias, the memory-efficient kernel as many heads of keys as of queries.
    """
    query, key, value = low(query), low(key), low(value)
    half = query.dtype in ("float16", "bfloat16")
    if half and bias is None and query.shape[-1] == value.shape[-1] <= _WIDEST:
        return _fused("flash", query, key, value, None, causal, probability)
    if key.shape[1] == query.shape[1]:
        return _fused("efficient", query, key, value, None if bias is None else low(bias), causal, probability)
    return _written_out(query, key, value, causal, probability)


def _fused(
    kernel: str, query: Value, key: Value, value: Value, bias: Value | None, causal: bool, probability: float
) -> Value:
    tape, (batch, heads, length, width) = query.tape, query.shape
    out = tape.new((batch, heads, length, value.shape[-1]), query.dtype, _laid(heads, length, value.shape[-1]))
    if kernel == "flash":
        sums = tape.new((batch, heads, length), "float32")
        state = [tape.new((2,), "uint64"), tape.new((), "uint64")]
    else:
        sums = tape.new((batch, heads, -(-length // _ROWS) * _ROWS), "float32")
        state = [tape.new((), "int64"), tape.new((), "int64")]
    name = f"_scaled_dot_product_{kernel}_attention"
    given = (query, key, value) if bias is None else (query, key, value, bias)
    attributes = {"dropout_p": probability, "is_causal": causal, "scale": width**-0.5}
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

    tape.differentiate((out, sums, *state), given, backward)
    return out


def _laid(heads: int, length: int, width: int) -> tuple[int, ...]:
    """The strides of (batch, heads, length, features) that lie as (batch, length, heads, features), as the kernels write."""
    return (length * heads * width, width, heads * width, 1)


def _written_out(query: Value, key: Value, value: Value, causal: bool, probability: float) -> Value:
    """``_scaled_dot_product_attention_math``, which serves what no kernel takes."""
    times = query.shape[1] // key.shape[1]
    query = mul_number(query)
    mask = causal_mask(query.tape, query.shape[2]) if causal else None
    key, value = repeated(key, times), repeated(value, times)
    scores = matmul(query, mul_number(transpose(key, 2, 3)))
    if mask is not None:
        scores = masked_fill(scores, mask)
    return matmul(dropout(softmax(scores), probability), value)


def causal_mask(tape: Tape, length: int) -> Value:
    """Return where a word may not look: at the words after it, (1, 1, length, length)."""
    ones, mask = (tape.new((1, 1, length, length), "bool") for _ in range(2))
    tape.record("ones", (), (ones,))
    tape.record("triu", (ones,), (mask,))
    return mask


def masked_bias(bias: Value) -> Value:
    """Return a bias of the scores that keeps words from looking at those after them."""
    tape = bias.tape
    mask = causal_mask(tape, bias.shape[-1])
    out = elementwise("where", mask, bias, dtype=bias.dtype)
    tape.differentiate((out,), (bias,), lambda g: (elementwise("where", mask, g, dtype=g.dtype),))
    return out


def repeated(x: Value, times: int) -> Value:
    """Return each head of (batch, heads, length, features) several times."""
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
) -> Value:
    """Attention by its two products, with the scores in memory (Megatron-LM before FlashAttention).

    Takes and returns (batch * heads, length, features); ``mask`` is true where a query may not look, ``bias`` is added.
    """
    rows = (*query.shape[:2], key.shape[1])
    scores = view(scaled_bmm(query, transpose(key, 1, 2)), (rows[0] // heads, heads, *rows[1:]))
    if bias is not None:
        scores = add(scores, bias)
    if mask is not None:
        scores = masked_fill_in_place(scores, mask)
    found = dropout(softmax(scores), probability)
    return bmm(reshape(low(found), rows), value)
