"""Embeddings, normalisation, softmax, pooling of images and the loss, with their gradients."""

from __future__ import annotations

from typing import Any

from triosim.models.operators.elementwise import elementwise, full_precision, mean, mul, over_root_mean_square, to
from triosim.models.operators.fused import cross_entropy as fused_cross_entropy
from triosim.models.operators.tape import Value
from triosim.models.operators.views import contiguous_of, reshape, slice_of, view


def embedding(indices: Value, entries: int, width: int, *, weight: Value | None = None) -> Value:
    """``nn.Embedding`` of the open module; ``weight`` where it is shared with another module."""
    tape = indices.tape
    table = tape.parameter("weight", (entries, width)) if weight is None else weight
    out = tape.new((*indices.shape, width), table.dtype)
    return tape.kernel(
        "embedding", (table, indices), (out,), of=(table,), saved=(indices,), backward="embedding_dense_backward"
    )


#: FBGEMM's operators of tables that are looked up together, whose backward kernel updates them by row-wise Adagrad.
_LOOK_UP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
_UPDATE = "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_unweighted_exact_cuda"


def pooled_embeddings(indices: Value, rows: int, width: int) -> Value:
    """FBGEMM's ``SplitTableBatchedEmbeddingBags`` of the open module: sums of rows, (samples, tables, width).

    ``indices`` are (samples, tables, rows that are added). The optimizer's state, one number a row, is in fp32.
    """
    tape = indices.tape
    samples, tables, _ = indices.shape
    weight = tape.parameter("weight", (tables, rows, width))
    out = tape.new((samples, tables, width), weight.dtype)
    tape.record(_LOOK_UP, (weight, indices), (out,))

    def backward(g: Value) -> list[Value | None]:
        state = tape.new((tables, rows), "float32", category="optimizer_state")
        tape.record(_UPDATE, (g, weight, state, indices), (weight, state))
        return [None]

    return tape.differentiate((out,), (weight,), backward)


def layer_norm(x: Value, *, bias: bool = True) -> Value:
    """``nn.LayerNorm`` of the open module over the last dimension; the statistics are fp32."""
    tape, width = x.tape, x.shape[-1]
    x = full_precision(x)
    weights = [full_precision(tape.parameter(name, (width,))) for name in (("weight", "bias") if bias else ("weight",))]
    out = tape.new(x.shape, x.dtype)
    statistics = [tape.new((*x.shape[:-1], 1), "float32") for _ in range(2)]
    given, saved = (x, *weights), (x, *statistics, *weights)
    return tape.kernel("native_layer_norm", given, (out, *statistics), of=given, saved=saved, normalized_shape=[width])


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

    return tape.differentiate((out, *statistics), (x, weight, bias), backward)


def rms_norm(x: Value) -> Value:
    """The root mean square norm as transformers writes it: in fp32, an operator at a time."""
    weight = x.tape.parameter("weight", (x.shape[-1],))
    return mul(weight, to(over_root_mean_square(to(x, "float32")), x.dtype))


def softmax(x: Value, *, dtype: str | None = None) -> Value:
    """``softmax`` over the last dimension, computed in ``dtype`` where that is given."""
    return _soft("_softmax", to(full_precision(x), dtype) if dtype else full_precision(x), -1)


def log_softmax(x: Value) -> Value:
    """``log_softmax`` over the second dimension."""
    return _soft("_log_softmax", full_precision(x), 1)


def _soft(name: str, x: Value, dim: int) -> Value:
    x = contiguous_of(x)
    out = x.tape.result(name, (x,), x.shape, x.dtype, dim=dim)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise(f"{name}_backward_data", g, out, dim=dim),))


def max_pool(x: Value, kernel: int, *, stride: int, padding: int = 0) -> Value:
    """``max_pool2d``: the largest element of each window, and its index."""
    tape = x.tape
    shape = (*x.shape[:2], *[(length + 2 * padding - kernel) // stride + 1 for length in x.shape[2:]])
    out, indices = tape.new(shape, x.dtype), tape.new(shape, "int64")
    sizes = {"kernel_size": [kernel, kernel], "stride": [stride, stride], "padding": [padding, padding]}
    attributes: dict[str, Any] = {**sizes, "dilation": [1, 1], "ceil_mode": False}
    return tape.kernel("max_pool2d_with_indices", (x,), (out, indices), of=(x,), saved=(x, indices), **attributes)


def adaptive_average_pool(x: Value, size: int) -> Value:
    """``adaptive_avg_pool2d``: averages that make the image ``size`` high and wide."""
    out = x.tape.new((*x.shape[:2], size, size), x.dtype)
    return x.tape.kernel("_adaptive_avg_pool2d", (x,), (out,), of=(x,), saved=(x,))


def average_pool_2x2(x: Value) -> Value:
    """``avg_pool2d`` over windows of two by two."""
    out = x.tape.new((*x.shape[:2], *[length // 2 for length in x.shape[2:]]), x.dtype)
    attributes: dict[str, Any] = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    return x.tape.kernel("avg_pool2d", (x,), (out,), of=(x,), saved=(x,), **attributes)


def global_average_pool(x: Value) -> Value:
    """The average of each channel."""
    return mean(x, [-1, -2], keepdim=True)


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean cross entropy of (samples, classes) and the classes of (samples)."""
    tape = logits.tape
    logarithms = log_softmax(logits)
    loss, weight = tape.new((), logarithms.dtype), tape.new((), logarithms.dtype)
    saved, backward = (logarithms, labels, weight), "nll_loss_backward"
    return tape.kernel(
        "nll_loss_forward", saved[:2], (loss, weight), of=saved[:1], saved=saved, backward=backward, reduction=1
    )


def next_token_loss(logits: Value, labels: Value, *, fused: bool, shifted: bool = False) -> Value:
    """Return the next-token loss of (batch, tokens, vocabulary) in fp32; ``fused`` keeps the dtype of the logits.

    ``shifted``: the logits of the last token, which has no label, are left out by a copy of the others.
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
