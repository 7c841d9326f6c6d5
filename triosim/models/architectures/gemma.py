"""Gemma 1 and 2 (Gemma Team 2024, arXiv 2403.08295 and 2408.00118), as transformers writes them.

Like Llama but for embeddings that are scaled, gates by GELU, norms that scale by one plus their weight, and tied embeddings.
Gemma 2 also norms what attention and the feed-forward network return, and caps scores and logits by ``tanh``. All its layers
are described with attention to the whole sequence; every second one looks back 4,096 tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from triosim.models.architectures.llama import Angles, Llama, gated_mlp
from triosim.models.operators import fused
from triosim.models.operators.attention import causal_mask, repeated
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
from triosim.models.operators.layers import embedding, softmax
from triosim.models.operators.products import matmul
from triosim.models.operators.tape import Value, module
from triosim.models.operators.views import reshape, transpose
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma(Llama):
    """Sizes of a Gemma; ``capped``: Gemma 2, with soft-capped logits and more norms."""

    head_dim: int | None = 256
    vocab: int = 256000
    sequence: int = 8192
    capped: bool = False
    tied_embeddings: bool = True
    name: str = "gemma"

    float8_logits: ClassVar[bool] = True

    def _norm(self, choices: ChoiceReader) -> Callable[[Value], Value]:
        return fused.rms_norm if choices.fused() else _rms_norm

    def _embedded(self, token_ids: Value) -> Value:
        return mul_number(embedding(token_ids, self.vocab, self.hidden))

    def _layer(self, x: Value, number: int, angles: Angles, choices: ChoiceReader) -> Value:
        if not self.capped:
            return Llama._layer(self, x, number, angles, choices)
        norm = self._norm(choices)
        found = module("input_layernorm", norm, x)
        found = module("self_attn", self._attention, found, angles, choices)
        x = add(x, module("post_attention_layernorm", norm, found))
        found = module("pre_feedforward_layernorm", norm, x)
        found = module("mlp", self._mlp, found, number, choices)
        return add(x, module("post_feedforward_layernorm", norm, found))

    def _mlp(self, x: Value, number: int, choices: ChoiceReader) -> Value:
        return gated_mlp(x, self.feed_forward, gelu, fused=choices.fused())

    def _logits(self, x: Value, choices: ChoiceReader) -> Value:
        logits = Llama._logits(self, x, choices)
        return _capped(logits, choices) if self.capped else logits

    def _attended(self, query: Value, key: Value, value: Value, choices: ChoiceReader) -> Value:
        """Attention; with capped scores by its two products (``eager_attention_forward`` of transformers)."""
        if not self.capped or choices.attention_kernel() != "math":
            return Llama._attended(self, query, key, value, choices)
        batch, heads, length, width = query.shape
        key, value = (repeated(one, heads // key.shape[1]) for one in (key, value))
        scores = _capped(mul_number(matmul(query, transpose(key, 2, 3))), choices)
        scores = masked_fill(scores, causal_mask(query.tape, length))
        found = matmul(to(softmax(scores, dtype="float32"), query.dtype), value)
        return reshape(transpose(found, 1, 2), (batch, length, heads * width))


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
