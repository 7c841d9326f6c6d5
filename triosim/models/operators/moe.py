"""Mixtures of experts: routers, and experts whose weights are one parameter for grouped matrix products (transformers).

Every token goes to ``chosen`` of the experts (Shazeer et al. 2017; Jiang et al. 2024); tokens are sorted by expert, multiplied
group by group (``_grouped_mm``), and put back. How many tokens each expert has does not change the shapes. Where libraries fuse
kernels, one sorts the rows and one puts them back with their weights, as Transformer Engine's do (``moe_permute``). GPT-OSS's
experts have biases and clamped gates, for which Megatron-Core runs operators of their own (``_apply_bias`` of its experts.py,
``weighted_bias_quick_geglu_impl``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triosim.models.operators import float8
from triosim.models.operators.elementwise import (
    add,
    add_number,
    clamp,
    div,
    elementwise,
    mul,
    mul_number,
    sigmoid,
    silu,
    to,
    total,
)
from triosim.models.operators.fused import gated_unit
from triosim.models.operators.layers import softmax
from triosim.models.operators.products import linear, lower_precision, mm
from triosim.models.operators.tape import Value, module
from triosim.models.operators.views import cat, reshape, split, t, transpose, unsqueeze, view


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer: how many, the ``features`` of each, and whether they are ``biased`` and clamp their gates.

    With ``fused_products`` kernels that were written for experts run their products with the biases and gates.
    """

    count: int
    features: int
    biased: bool = False
    fused_products: bool = False


def softmax_router(x: Value, experts: int, chosen: int) -> tuple[Value, Value]:
    """Mixtral's router: the experts with the largest scores of each token, with weights that add up to one."""
    tape = x.tape
    with tape.at("gate"):
        scores = softmax(linear(x, experts, bias=False), dtype="float32")
        weights, indices = topk(scores, chosen)
        return div(weights, total(weights, [-1], keepdim=True)), indices


def sigmoid_router(
    x: Value, experts: int, chosen: int, groups: int, kept: int, *, fused: bool = False
) -> tuple[Value, Value]:
    """DeepSeek-V3's router: the best experts of the ``kept`` best groups, with a bias that balances their loads.

    Its product is in fp32; where kernels are ``fused``, by tensor cores, as Transformer Engine multiplies (in TF32).
    """
    tape = x.tape
    with tape.at("gate"):
        weight = tape.parameter("weight", (experts, x.shape[-1]))
        scores = sigmoid(mm(to(x, "float32"), t(to(weight, "float32")), tf32=fused))
        balance = tape.new((experts,), "float32", category="buffer")
        # What follows chooses, and has no gradient: ``scores`` are detached.
        ranked = elementwise("add", scores.alias(), balance)
        if groups > 1:
            by_group = view(ranked, (-1, groups, experts // groups))
            best, _ = _largest(by_group, 2)
            _, of_groups = _largest(total(best, [-1]), kept)
            mask = elementwise("zeros_like", total(best, [-1]))
            tape.record("scatter_", (mask, of_groups), (mask,), dim=1)
            spread = tape.result("clone", (mask,), by_group.shape, mask.dtype)
            ranked = elementwise("masked_fill", ranked, to(view(spread, ranked.shape), "bool"), dtype=ranked.dtype)
        _, indices = _largest(ranked, chosen)
        weights = gather(scores, indices)
        weights = div(weights, add_number(total(weights, [-1], keepdim=True)))
        return mul_number(weights), indices


def _outputs(x: Value, routed: tuple[Value, Value], experts: Experts, *, fused: bool) -> Value:
    """Return the experts' outputs for (tokens, hidden), summed with the router's weights.

    What they do with biases is recorded where kernels are ``fused``.
    """
    count, feed_forward = experts.count, experts.features
    tape, (tokens, hidden) = x.tape, x.shape
    weights, indices = routed
    chosen = weights.shape[1]
    with tape.at("experts"):
        if fused:
            return _by_fused_kernels(x, weights, indices, experts)
        weights, indices = view(weights, (-1,)), view(indices, (-1,))
        ordered, order = tape.new(indices.shape, "int64"), tape.new(indices.shape, "int64")
        tape.record("sort", (indices,), (ordered, order), dim=-1)
        rows = elementwise("floor_divide", order)
        taken = index(x, rows)
        weights = index(weights, order)
        ordered = to(ordered, "int32")
        counts = tape.result("histc", (ordered,), (count,), "int32")
        ends = elementwise("cumsum", counts, dim=0)
        both = tape.parameter("gate_up_proj", (count, 2 * feed_forward, hidden))
        gate, up = split(_by_group(taken, both, ends), [feed_forward] * 2, -1)
        gate = module("act_fn", silu, gate)
        down = tape.parameter("down_proj", (count, hidden, feed_forward))
        found = _by_group(mul(gate, up), down, ends)
        found = mul(found, unsqueeze(weights, -1))
        back, numbers = (tape.new(order.shape, "int64") for _ in range(2))
        tape.record("arange", (), (numbers,))
        tape.record("index_put_", (back, order, numbers), (back,))
        found = view(index(found, back), (tokens, chosen, hidden))
        return to(total(found, [1]), x.dtype)


def _by_fused_kernels(x: Value, weights: Value, indices: Value, experts: Experts) -> Value:
    """The same: a kernel each sorts the rows, multiplies gates, and adds up the outputs of a token with their weights."""
    tape, count, feed_forward, hidden = x.tape, experts.count, experts.features, x.shape[1]
    own_biases = experts.biased and not experts.fused_products
    attributes = {"kernel": "fused"} if experts.fused_products else {}
    places = tape.result("argsort", (view(indices, (-1,)),), (indices.shape[0] * indices.shape[1],), "int32")
    ends = tape.result("histc", (places,), (count,), "int32")
    taken = tape.new((places.shape[0], hidden), x.dtype)
    tape.kernel("fused::permute_tokens", (x, places), (taken,), of=(x,), saved=(places,))
    both = tape.parameter("gate_up_proj", (count, 2 * feed_forward, hidden))
    down = tape.parameter("down_proj", (count, hidden, feed_forward))
    made = module("act_fn", _gated, _by_group(taken, both, ends, **attributes), clamped=own_biases)
    found = _by_group(made, down, ends, **attributes)
    if own_biases:
        found = _with_bias(found, weights)
    given, out = (found, weights, places), tape.new(x.shape, x.dtype)
    return tape.kernel("fused::unpermute_tokens", given, (out,), of=(found, weights), saved=given)


def _gated(both: Value, *, clamped: bool) -> Value:
    """Gates times what they multiply, of which large ones are clamped."""
    if clamped:
        gate, up = split(both, [both.shape[-1] // 2] * 2, -1)
        both = cat([clamp(gate), clamp(up, least=True)], -1)
    return gated_unit(both, "silu")


def _with_bias(found: Value, weights: Value) -> Value:
    """Outputs with the biases of their experts, times the router's weights, which are in fp32; one bias stands for all."""
    bias = found.tape.parameter("down_proj_bias", found.shape[1:])
    spread = mul(unsqueeze(view(weights, (-1,)), -1), bias)
    return to(cat([add(found, spread)], 0), found.dtype)  # of the pieces of all experts


def mixture(x: Value, routed: tuple[Value, Value], experts: Experts, *, fused: bool = False) -> Value:
    """The experts, over (batch, length, hidden)."""
    return view(_outputs(reshape(x, (-1, x.shape[-1])), routed, experts, fused=fused), x.shape)


def _by_group(x: Value, weight: Value, ends: Value, **attributes: Any) -> Value:
    """(rows, k) by the transposed parameter (groups, n, k)."""
    if float8.fits_experts(x, weight):
        return float8.grouped(x, weight, ends, **attributes)
    return grouped(x, transpose(lower_precision(weight), 1, 2), ends, **attributes)


def grouped(x: Value, weight: Value, ends: Value, **attributes: Any) -> Value:
    """(rows, k) by (groups, k, n): each row by the matrix of its group, which ends where ``ends`` says."""
    x = lower_precision(x)
    out = _grouped(x, weight, ends, (x.shape[0], weight.shape[2]), **attributes)

    def backward(g: Value) -> tuple[Value | None, Value | None]:
        g = to(g, x.dtype)
        turned = transpose(g, 0, 1)
        second = _grouped(turned, x, ends, (weight.shape[0], weight.shape[2], weight.shape[1]), **attributes)
        second = transpose(second, 1, 2)
        first = transpose(weight, 1, 2)
        return _grouped(g, first, ends, x.shape, **attributes) if x.node else None, second

    return x.tape.differentiate((out,), (x, weight), backward)


def _grouped(first: Value, second: Value, ends: Value, shape: tuple[int, ...], **attributes: Any) -> Value:
    return first.tape.result("_grouped_mm", (first, second, ends), shape, first.dtype, **attributes)


def index(x: Value, rows: Value) -> Value:
    """``index``: rows of a tensor by their indices."""
    out = x.tape.result("index", (x, rows), (*rows.shape, *x.shape[1:]), x.dtype)

    return x.tape.differentiate((out,), (x,), lambda g: (_into_zeros("index_put", g, x, rows),))


def topk(x: Value, count: int) -> tuple[Value, Value]:
    """``topk`` over the last dimension: values and indices."""
    values, indices = _largest(x, count)
    x.tape.differentiate((values, indices), (x,), lambda g, _: (_into_zeros("scatter", g, x, indices, dim=-1),))
    return values, indices


def gather(x: Value, indices: Value) -> Value:
    """``gather`` along the last dimension."""
    out = x.tape.result("gather", (x, indices), indices.shape, x.dtype, dim=1)
    return x.tape.differentiate((out,), (x,), lambda g: (_into_zeros("scatter", g, x, indices, dim=-1),))


def _largest(x: Value, count: int) -> tuple[Value, Value]:
    shape = (*x.shape[:-1], count)
    values, indices = x.tape.new(shape, x.dtype), x.tape.new(shape, "int64")
    x.tape.record("topk", (x,), (values, indices), dim=-1)
    return values, indices


def _into_zeros(name: str, g: Value, x: Value, indices: Value, **attributes: int) -> Value:
    """The gradient of ``x``, of which ``indices`` were read: zeros, but for the gradient of what was read."""
    tape = g.tape
    zeros, whole = tape.new(x.shape, g.dtype), tape.new(x.shape, g.dtype)
    tape.record("new_zeros", (g,), (zeros,))
    tape.record(name, (zeros, indices, g), (whole,), **attributes)
    return whole
