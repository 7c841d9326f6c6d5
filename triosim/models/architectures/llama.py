"""Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024) and models built like them, as transformers writes them.

Mistral has its sizes, Qwen 2 biases of queries, keys and values, Qwen 3 norms of queries and keys, Mixtral (Jiang et al.
2024) experts instead of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.model import check_heads, check_shared, token_inputs
from triosim.models.operators import fused
from triosim.models.operators.attention import multi_head_attention, repeated
from triosim.models.operators.elementwise import add, elementwise, mul, mul_number, neg, silu, to
from triosim.models.operators.fused import gated_unit
from triosim.models.operators.layers import embedding, next_token_loss, rms_norm
from triosim.models.operators.moe import mixture, softmax_router
from triosim.models.operators.products import linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, reshape, slice_of, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama:
    """Sizes of a Llama. ``sequence`` is the usual length of a sample; ``kv_heads`` are shared by groups of heads.

    With ``experts``, each token goes to ``experts_per_token`` of so many feed-forward networks. In the style of torchtitan
    (Liang et al.
    2024), rotary embedding multiplies complex numbers in fp32, and keys and values are repeated for the heads that share them;
    transformers of 2024 repeats them too, and its loss copies the logits that have a next token.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int = 128256
    sequence: int = 8192
    head_dim: int | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 2
    style: Literal["transformers", "transformers-2024", "torchtitan"] = "transformers"
    name: str = "llama"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the next token."""
        check_shared(self.heads, self.kv_heads)
        if self.head_dim is None:
            check_heads(self.hidden, self.heads)
        norm = fused.rms_norm if choices.fused() else rms_norm
        token_ids, labels = token_inputs(tape, batch, sequence), token_inputs(tape, batch, sequence)
        with tape.at("model"):
            found = module("embed_tokens", embedding, token_ids, self.vocab, self.hidden)
            angles = rotary_angles(tape, sequence, self.width, "float32" if self._is_titan else found.dtype)
            for number in range(self.layers):
                found = module(f"layers.{number}", self._layer, found, angles, choices)
            found = module("norm", norm, found)
        with tape.at("lm_head"):
            table = tape.parameters["model.embed_tokens.weight"] if self.tied_embeddings else None
            logits = linear(found, self.vocab, bias=False, weight=table, whole=True)
        return next_token_loss(logits, labels, fused=choices.fused(), shifted=self.style == "transformers-2024")

    @property
    def width(self) -> int:
        """Features of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def _is_titan(self) -> bool:
        return self.style == "torchtitan"

    def _layer(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader) -> Value:
        tape = x.tape
        norm = fused.rms_norm if choices.fused() else rms_norm
        found = module("input_layernorm", norm, x)
        found = module("self_attn", self._attention, found, angles, choices)
        x = add(x, found)
        found = module("post_attention_layernorm", norm, x)
        with tape.at("mlp"):
            if self.experts:
                routed = softmax_router(reshape(found, (-1, self.hidden)), self.experts, self.experts_per_token)
                found = mixture(found, routed, self.experts, self.feed_forward)
            else:
                found = gated_mlp(found, self.feed_forward, fused=choices.fused())
        return add(x, found)

    def _attention(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader) -> Value:
        """Causal attention in which groups of heads share keys and values (Ainslie et al. 2023)."""
        norm, turn = (fused.rms_norm, fused.rotary_embedding) if choices.fused() else (rms_norm, rotary_embedding)
        if self._is_titan and not choices.fused():
            turn = complex_rotary_embedding
        query = self._projected(x, "q", self.heads, norm)
        key = self._projected(x, "k", self.kv_heads, norm)
        value = self._projected(x, "v", self.kv_heads, None)
        turned = unsqueeze(angles[0], 1), unsqueeze(angles[1], 1)
        query, key = turn(query, turned), turn(key, turned)
        if self.style != "transformers":
            key, value = (repeated(one, self.heads // self.kv_heads) for one in (key, value))
        found = multi_head_attention(query, key, value, kernel=choices.attention_kernel(), probability=0.0, causal=True)
        return module("o_proj", linear, found, self.hidden, bias=False)

    def _projected(self, x: Value, name: str, heads: int, norm: Callable[[Value], Value] | None) -> Value:
        batch, length, _ = x.shape
        found = module(f"{name}_proj", linear, x, heads * self.width, bias=self.qkv_bias)
        found = view(found, (batch, length, heads, self.width))
        if self.qk_norm and norm is not None:
            found = module(f"{name}_norm", norm, found)
        return transpose(found, 1, 2)


def rotary_angles(tape: Tape, sequence: int, width: int, dtype: str) -> tuple[Value, Value]:
    """Return the cosines and sines of rotary position embedding (Su et al. 2021), (1, sequence, width)."""
    positions = tape.result("arange", (), (sequence,), "int64")
    positions = unsqueeze(positions, 0)
    with tape.at("rotary_emb"):
        frequencies = tape.new((width // 2,), "float32", category="buffer")
        columns = to(unsqueeze(positions, 2), "float32")
        angles = mul(columns, frequencies)
        angles = cat((angles, angles), -1)
        cosines, sines = (to(mul_number(elementwise(name, angles)), dtype) for name in ("cos", "sin"))
        return cosines, sines


def rotary_embedding(x: Value, angles: tuple[Value, Value]) -> Value:
    """Return queries or keys (batch, heads, sequence, width) with rotary position embedding."""
    half = x.shape[-1] // 2
    scaled = mul(x, angles[0])
    first, second = slice_of(x, 3, 0, half), slice_of(x, 3, half, 2 * half)
    return add(scaled, mul(cat((neg(second), first), -1), angles[1]))


def complex_rotary_embedding(x: Value, angles: tuple[Value, Value]) -> Value:
    """Rotary embedding by products of complex numbers in fp32; here, each complex number is two elements."""
    return to(mul(to(x, "float32"), angles[0]), x.dtype)


def gated_mlp(
    x: Value, feed_forward: int, activation: Callable[[Value], Value] = silu, *, fused: bool = False
) -> Value:
    """The gated feed-forward network (Shazeer 2020): ``down(activation(gate(x)) * up(x))``."""
    hidden = x.shape[-1]
    gate = module("gate_proj", linear, x, feed_forward, bias=False)
    if not fused:
        gate = module("act_fn", activation, gate)
    found = module("up_proj", linear, x, feed_forward, bias=False)
    found = gated_unit(gate, found, activation.__name__) if fused else mul(gate, found)
    return module("down_proj", linear, found, hidden, bias=False)
