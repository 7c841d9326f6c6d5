"""Gemma 1 and 2 (Gemma Team 2024, arXiv 2403.08295 and 2408.00118), as transformers writes them.

Like Llama but for embeddings that are scaled, gates by GELU, norms that scale by one plus their weight, and tied embeddings.
Gemma 2 also norms what attention and the feed-forward network return, and caps scores and logits by ``tanh``. All its layers
are described with attention to the whole sequence; every second one looks back 4,096 tokens at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.llama import gated_mlp, rotary_angles, rotary_embedding
from triosim.models.architectures.model import check_shared, token_inputs
from triosim.models.operators import fused
from triosim.models.operators.attention import causal_mask, multi_head_attention, repeated
from triosim.models.operators.elementwise import (
    add,
    add_number,
    div_number,
    gelu,
    masked_fill,
    mul,
    mul_number,
    over_root_mean_square,
    tanh,
    to,
)
from triosim.models.operators.layers import embedding, next_token_loss, softmax
from triosim.models.operators.products import linear, matmul
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import reshape, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma:
    """Sizes of a Gemma; ``kv_heads`` are shared by groups of heads, ``capped``: Gemma 2, with soft-capped logits and more
    norms.

    In the style of transformers of 2024, keys and values are repeated for the heads that share them, and the loss copies the
    logits that have a next word.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    head_dim: int = 256
    vocab: int = 256000
    sequence: int = 8192
    capped: bool = False
    tied_embeddings: bool = True
    style: Literal["transformers", "transformers-2024"] = "transformers"
    name: str = "gemma"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the next token."""
        check_shared(self.heads, self.kv_heads)
        token_ids, labels = token_inputs(tape, batch, sequence), token_inputs(tape, batch, sequence)
        with tape.at("model"):
            with tape.at("embed_tokens"):
                found = mul_number(embedding(token_ids, self.vocab, self.hidden))
            angles = rotary_angles(tape, sequence, self.head_dim, found.dtype)
            for number in range(self.layers):
                found = module(f"layers.{number}", self._layer, found, angles, choices)
            found = _normed(found, "norm", choices)
        with tape.at("lm_head"):
            table = tape.parameters["model.embed_tokens.weight"] if self.tied_embeddings else None
            logits = linear(found, self.vocab, bias=False, weight=table)
        if self.capped:
            logits = _capped(logits, choices)
        return next_token_loss(logits, labels, fused=choices.fused(), shifted=self.style == "transformers-2024")

    def _layer(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader) -> Value:
        tape = x.tape
        found = _normed(x, "input_layernorm", choices)
        found = module("self_attn", self._attention, found, angles, choices)
        if self.capped:
            found = _normed(found, "post_attention_layernorm", choices)
        x = add(x, found)
        found = _normed(x, "pre_feedforward_layernorm" if self.capped else "post_attention_layernorm", choices)
        with tape.at("mlp"):
            found = gated_mlp(found, self.feed_forward, gelu, fused=choices.fused())
        if self.capped:
            found = _normed(found, "post_feedforward_layernorm", choices)
        return add(x, found)

    def _attention(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader) -> Value:
        batch, length, _ = x.shape
        turn = fused.rotary_embedding if choices.fused() else rotary_embedding
        parts = []
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            part = module(f"{name}_proj", linear, x, heads * self.head_dim, bias=False)
            parts.append(transpose(view(part, (batch, length, heads, self.head_dim)), 1, 2))
        turned = unsqueeze(angles[0], 1), unsqueeze(angles[1], 1)
        query, key, value = turn(parts[0], turned), turn(parts[1], turned), parts[2]
        if self.style == "transformers-2024":
            key, value = (repeated(one, self.heads // self.kv_heads) for one in (key, value))
        kernel = choices.attention_kernel()
        if self.capped and kernel == "math":
            found = self._capped_attention(query, key, value, choices)
        else:
            found = multi_head_attention(query, key, value, kernel=kernel, probability=0.0, causal=True)
        return module("o_proj", linear, found, self.hidden, bias=False)

    def _capped_attention(self, query: Value, key: Value, value: Value, choices: ChoiceReader) -> Value:
        """Attention by its two products, with capped scores (``eager_attention_forward`` of transformers)."""
        batch, _, length, _ = query.shape
        times = self.heads // key.shape[1]
        key, value = repeated(key, times), repeated(value, times)
        scores = _capped(mul_number(matmul(query, transpose(key, 2, 3))), choices)
        scores = masked_fill(scores, causal_mask(query.tape, length))
        found = matmul(to(softmax(scores, dtype="float32"), query.dtype), value)
        return reshape(transpose(found, 1, 2), (batch, length, self.heads * self.head_dim))


def _normed(x: Value, name: str, choices: ChoiceReader) -> Value:
    with x.tape.at(name):
        return fused.rms_norm(x) if choices.fused() else _rms_norm(x)


def _rms_norm(x: Value) -> Value:
    """A root mean square norm that is in fp32 until it is scaled, an operator at a time."""
    tape, dtype = x.tape, x.dtype
    weight = tape.parameter("weight", (x.shape[-1],))
    x = to(x, "float32")
    found = over_root_mean_square(x)
    return to(mul(found, add_number(to(weight, "float32"))), dtype)


def _capped(x: Value, choices: ChoiceReader) -> Value:
    """``cap * tanh(x / cap)``."""
    if choices.fused():
        return fused.soft_capped(x)
    return mul_number(tanh(div_number(x)))
