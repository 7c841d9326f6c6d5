"""T5 (Raffel et al. 2020): encoder and decoder with relative positions, as transformers writes it.

In 2024 it had no fused attention: scores are in memory, and their softmax is computed in fp32 whatever their dtype. In fp16
each part of a block ends with infinities cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.model import token_inputs
from triosim.models.operators.attention import masked_bias, multi_head_attention, projected_heads
from triosim.models.operators.elementwise import (
    add,
    add_number,
    dropout,
    elementwise,
    mean,
    mul,
    mul_number,
    power,
    relu,
    rsqrt,
    to,
    unfused_gelu,
)
from triosim.models.operators.layers import cross_entropy, embedding, softmax
from triosim.models.operators.products import linear, matmul
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import contiguous_of, expand, permute, reshape, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class T5:
    """Sizes of a T5, with as many layers in the decoder as in the encoder; ``gated`` as in version 1.1.

    ``style`` is the code of transformers today, or of 2024.
    """

    layers: int
    hidden: int
    heads: int
    head_dim: int
    feed_forward: int
    vocab: int = 32128
    buckets: int = 32
    gated: bool = False
    tied_embeddings: bool = True
    sequence: int = 512
    dropout: float = 0.1
    style: Literal["transformers", "transformers-2024"] = "transformers"
    name: str = "t5"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass, with as many output tokens as input tokens."""
        token_ids, answers, labels = token_inputs(tape, batch, sequence, 3)
        step = _ForwardPass(self, tape, choices)
        with tape.at("encoder"):
            encoded = step.stack(token_ids, None)
        with tape.at("decoder"):
            found = step.stack(answers, encoded)
        if self.tied_embeddings:
            found = mul_number(found)
        with tape.at("lm_head"):
            logits = linear(found, self.vocab, bias=False, weight=step.table() if self.tied_embeddings else None)
        with tape.at("loss"):
            return cross_entropy(view(logits, (-1, self.vocab)), view(labels, (-1,)))


class _ForwardPass:
    """One forward pass."""

    def __init__(self, model: T5, tape: Tape, choices: ChoiceReader) -> None:
        self.model = model
        self.tape = tape
        self.fused = None if model.style == "transformers-2024" else choices.attention_kernel()
        self.dropped = choices.dropout(model.dropout)

    def table(self) -> Value:
        """Return the embedding table, which encoder and decoder share."""
        return self.tape.shared_parameter("shared.weight", (self.model.vocab, self.model.hidden))

    def stack(self, token_ids: Value, encoded: Value | None) -> Value:
        """Return the encoder's output for tokens, or, given that, the decoder's."""
        model, tape = self.model, self.tape
        with tape.at("embed_tokens"):
            found = embedding(token_ids, model.vocab, model.hidden, weight=self.table())
        found = module("dropout", dropout, found, self.dropped)
        bias: Value | None = None
        zero_bias: Value | None = None
        for number in range(model.layers):
            with tape.at(f"block.{number}"):
                found, bias = module("layer.0", self._self_attention, found, bias, causal=encoded is not None)
                found = _within_range(found)
                if encoded is not None:
                    found, zero_bias = module("layer.1", self._cross_attention, found, encoded, zero_bias)
                    found = _within_range(found)
                found = module("layer.1" if encoded is None else "layer.2", self._feed_forward, found)
                found = _within_range(found)
        found = module("final_layer_norm", _norm, found)
        return module("dropout", dropout, found, self.dropped)

    def _self_attention(self, x: Value, bias: Value | None, *, causal: bool) -> tuple[Value, Value]:
        tape = self.tape
        found = module("layer_norm", _norm, x)
        with tape.at("SelfAttention"):
            parts = self._projected(found, found)
            if bias is None:
                bias = self._positions(x.shape[1])
                if self.fused is None:
                    bias = add(bias, self._mask(*x.shape[:2], causal=causal))
            found = self._attended(parts, bias, causal=causal)
            found = module("o", linear, found, self.model.hidden, bias=False)
        found = module("dropout", dropout, found, self.dropped)
        return add(x, found), bias

    def _cross_attention(self, x: Value, encoded: Value, zero_bias: Value | None) -> tuple[Value, Value]:
        """Cross-attention of the decoder to the encoder's output, without position bias."""
        tape = self.tape
        found = module("layer_norm", _norm, x)
        with tape.at("EncDecAttention"):
            parts = self._projected(found, encoded)
            if zero_bias is None:
                lengths = (x.shape[1], encoded.shape[1])
                zeros = tape.result("zeros", (), (1, self.model.heads, *lengths), tape.dtype)
                if self.fused is None:
                    zero_bias = add(zeros, self._mask(x.shape[0], encoded.shape[1], causal=False))
                else:
                    zero_bias = expand(zeros, (x.shape[0], self.model.heads, *lengths))
            found = self._attended(parts, zero_bias, causal=False)
            found = module("o", linear, found, self.model.hidden, bias=False)
        found = module("dropout", dropout, found, self.dropped)
        return add(x, found), zero_bias

    def _attended(self, parts: list[Value], bias: Value, *, causal: bool) -> Value:
        """Return (batch, length, features) of queries, keys and values; a bias for each sample is masked already."""
        query, key, value = parts
        batch, _, length, _ = query.shape
        if self.fused is not None:
            if bias.shape[0] != batch or causal:
                shown = masked_bias(bias) if causal else bias
                bias = expand(contiguous_of(shown), (batch, *bias.shape[1:]))
            return multi_head_attention(query, key, value, kernel=self.fused, probability=self.dropped, bias=bias)
        scores = add(matmul(query, transpose(key, 2, 3)), bias, in_place=True)
        weights = dropout(to(softmax(scores, dtype="float32"), scores.dtype), self.dropped)
        return reshape(transpose(matmul(weights, value), 1, 2), (batch, length, -1))

    def _mask(self, batch: int, length: int, *, causal: bool) -> Value:
        """Return the mask that is added to the scores, one for each sample."""
        tape = self.tape
        if causal:
            mask = tape.result("triu", (), (length, length), tape.dtype)
            return contiguous_of(expand(unsqueeze(unsqueeze(mask, 0), 0), (batch, 1, length, length)))
        ones = tape.result("ones", (), (batch, 1, 1, length), "float32")
        return elementwise("mul", elementwise("rsub", to(ones, tape.dtype)))

    def _projected(self, x: Value, other: Value) -> list[Value]:
        heads, width = self.model.heads, self.model.head_dim
        given = (("q", x), ("k", other), ("v", other))
        return [projected_heads(one, name, heads, width, bias=False) for name, one in given]

    def _positions(self, length: int) -> Value:
        """Relative position bias of each head and pair of tokens: (1, heads, length, length)."""
        tape = self.tape
        rows, columns = (tape.new((length,), "int64") for _ in range(2))
        for made in (rows, columns):
            tape.record("arange", (), (made,))
        distances = elementwise("sub", unsqueeze(columns, 0), unsqueeze(rows, 1))
        for name in ("abs", "log", "minimum"):  # to buckets: near distances each, far ones by their logarithm
            distances = elementwise(name, distances)
        found = module("relative_attention_bias", embedding, distances, self.model.buckets, self.model.heads)
        return unsqueeze(permute(found, (2, 0, 1)), 0)

    def _feed_forward(self, x: Value) -> Value:
        model, tape = self.model, self.tape
        found = module("layer_norm", _norm, x)
        with tape.at("DenseReluDense"):
            inner = module("wi_0" if model.gated else "wi", linear, found, model.feed_forward, bias=False)
            with tape.at("act"):
                inner = unfused_gelu(inner) if model.gated else relu(inner)
            if model.gated:
                found = module("wi_1", linear, found, model.feed_forward, bias=False)
                inner = mul(inner, found)
            inner = module("dropout", dropout, inner, self.dropped)
            found = module("wo", linear, inner, model.hidden, bias=False)
        found = module("dropout", dropout, found, self.dropped)
        return add(x, found)


def _norm(x: Value) -> Value:
    """``T5LayerNorm``: the root mean square is taken in fp32, and divides the numbers as they are."""
    weight = x.tape.parameter("weight", (x.shape[-1],))
    found = mul(x, rsqrt(add_number(mean(power(to(x, "float32"), 2), [-1], keepdim=True))))
    return mul(weight, to(found, weight.dtype) if weight.dtype != "float32" else found)


def _within_range(x: Value) -> Value:
    """Return fp16 numbers with the largest one instead of infinities; any others as they are."""
    if x.dtype != "float16":
        return x
    tape = x.tape
    overflown, bound = tape.new((), "bool"), tape.new((), "float32")
    tape.record("any", (elementwise("isinf", x, dtype="bool"),), (overflown,))
    tape.record("where", (overflown,), (bound,))
    least = elementwise("neg", bound)
    out = elementwise("clamp", x, least, bound, dtype=x.dtype)

    def backward(g: Value) -> tuple[Value]:
        above, below = (elementwise(name, x, end, dtype="bool") for name, end in (("ge", least), ("le", bound)))
        return (elementwise("where", elementwise("logical_and", above, below), g, dtype=g.dtype),)

    return tape.differentiate((out,), (x,), backward)
