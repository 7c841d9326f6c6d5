"""Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024) and models built like them, as transformers writes them.

Mistral has its sizes, Qwen 2 biases of queries, keys and values, Qwen 3 norms of queries and keys, Mixtral (Jiang et al.
2024) experts instead of the feed-forward network. Gemma and DeepSeek override the parts in which they differ, as in
transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from triosim.models.architectures.model import check_shared, token_inputs
from triosim.models.operators import fused
from triosim.models.operators.attention import features_of_head, multi_head_attention, repeated
from triosim.models.operators.elementwise import add, elementwise, mul, mul_number, neg, silu, to
from triosim.models.operators.fused import gated_unit
from triosim.models.operators.layers import embedding, next_token_loss, rms_norm
from triosim.models.operators.moe import Experts, mixture, softmax_router
from triosim.models.operators.products import linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, reshape, slice_of, split, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader

#: Cosines and sines of rotary position embedding, (1, sequence, width).
Angles = tuple[Value, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama:
    """Sizes of a Llama. ``sequence`` is the usual length of a sample; groups of heads share one of the ``kv_heads`` (Ainslie
    et al. 2023), by default each has its own keys and values.

    With ``experts``, each token goes to ``experts_per_token`` of so many feed-forward networks, which have biases and clamp
    their gates with ``expert_bias``: by operators of their own. With ``fused_experts`` kernels that were written for experts
    run products, biases and gates (Transformer Engine's op fuser, Megatron-Core's ``use_transformer_engine_op_fuser``). The
    angles of ``yarn`` have a factor (Peng et al. 2023), which Transformer Engine's fused kernel does not take (Megatron-Core's
    ``apply_rotary_pos_emb``). In the style of torchtitan (Liang et al. 2024), rotary embedding multiplies complex numbers in
    fp32, and keys and values are repeated for the heads that share them; transformers of 2024 repeats them too, and its loss
    copies the logits that have a next token.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    feed_forward: int
    vocab: int = 128256
    sequence: int = 8192
    head_dim: int | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 2
    expert_bias: bool = False
    fused_experts: bool = False
    yarn: bool = False
    style: Literal["transformers", "transformers-2024", "torchtitan"] = "transformers"
    name: str = "llama"

    #: Whether fp8 training computes the logits in fp8 too.
    float8_logits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shared(self.heads, self.kv_heads or self.heads)

    @property
    def width(self) -> int:
        """Features of a head. Raises ``OptionError`` where heads do not share the hidden features evenly."""
        return self.head_dim or features_of_head(self.hidden, self.heads)

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the next token."""
        token_ids, labels = token_inputs(tape, batch, sequence)
        with tape.at("model"):
            found = module("embed_tokens", self._embedded, token_ids)
            angles = self._angles(found)
            for number in range(self.layers):
                found = module(f"layers.{number}", self._layer, found, number, angles, choices)
            found = module("norm", self._norm(choices), found)
        logits = self._logits(found, choices)
        return next_token_loss(logits, labels, fused=choices.fused(), shifted=self.style == "transformers-2024")

    def _norm(self, choices: ChoiceReader) -> Callable[[Value], Value]:
        return fused.rms_norm if choices.fused() else rms_norm

    def _embedded(self, token_ids: Value) -> Value:
        return embedding(token_ids, self.vocab, self.hidden)

    def _angles(self, x: Value) -> Angles:
        return rotary_angles(x.tape, x.shape[1], self.width, "float32" if self.style == "torchtitan" else x.dtype)

    def _layer(self, x: Value, number: int, angles: Angles, choices: ChoiceReader) -> Value:
        norm = self._norm(choices)
        found = module("input_layernorm", norm, x)
        x = add(x, module("self_attn", self._attention, found, angles, choices))
        found = module("post_attention_layernorm", norm, x)
        return add(x, module("mlp", self._mlp, found, number, choices))

    def _attention(self, x: Value, angles: Angles, choices: ChoiceReader) -> Value:
        rotate = fused.rotary_embedding if choices.fused() and not self.yarn else rotary_embedding
        if self.style == "torchtitan" and not choices.fused():
            rotate = complex_rotary_embedding
        kv_heads = self.kv_heads or self.heads
        query, key, value = self._packed(x, choices) if choices.fused() else self._projected(x, choices)
        turned = unsqueeze(angles[0], 1), unsqueeze(angles[1], 1)
        query, key = rotate(query, turned), rotate(key, turned)
        if self.style != "transformers":
            key, value = (repeated(one, self.heads // kv_heads) for one in (key, value))
        found = self._attended(query, key, value, choices)
        return module("o_proj", linear, found, self.hidden, bias=False)

    def _projected(self, x: Value, choices: ChoiceReader) -> list[Value]:
        """Return queries, keys and values, (batch, heads, sequence, width), each by a product of its own."""
        shared, found = self.kv_heads or self.heads, []
        for name, heads in (("q", self.heads), ("k", shared), ("v", shared)):
            made = module(f"{name}_proj", linear, x, heads * self.width, bias=self.qkv_bias)
            found.append(self._by_heads(view(made, (*x.shape[:2], heads, self.width)), name, choices))
        return found

    def _packed(self, x: Value, choices: ChoiceReader) -> list[Value]:
        """Return the same by one product, as Megatron-Core has it: each group of heads has its keys and values beside it."""
        shared, width = self.kv_heads or self.heads, self.width
        own = self.heads // shared * width
        mixed = module("qkv_proj", linear, x, shared * (own + 2 * width), bias=self.qkv_bias)
        mixed = view(mixed, (*x.shape[:2], shared, own + 2 * width))
        query, key, value = split(mixed, [own, width, width], -1)
        query = reshape(query, (*x.shape[:2], self.heads, width))
        return [self._by_heads(one, name, choices) for one, name in zip((query, key, value), "qkv", strict=True)]

    def _by_heads(self, x: Value, name: str, choices: ChoiceReader) -> Value:
        if self.qk_norm and name != "v":
            x = module(f"{name}_norm", self._norm(choices), x)
        return transpose(x, 1, 2)

    def _attended(self, query: Value, key: Value, value: Value, choices: ChoiceReader) -> Value:
        return multi_head_attention(query, key, value, kernel=choices.attention_kernel(), probability=0.0, causal=True)

    def _mlp(self, x: Value, number: int, choices: ChoiceReader) -> Value:
        if not self.experts:
            return gated_mlp(x, self.feed_forward, fused=choices.fused())
        routed = softmax_router(reshape(x, (-1, self.hidden)), self.experts, self.experts_per_token)
        experts = Experts(self.experts, self.feed_forward, self.expert_bias, self.fused_experts)
        return mixture(x, routed, experts, fused=choices.fused())

    def _logits(self, x: Value, choices: ChoiceReader) -> Value:
        with x.tape.at("lm_head"):
            table = x.tape.parameters["model.embed_tokens.weight"] if self.tied_embeddings else None
            return linear(x, self.vocab, bias=False, weight=table, whole=not self.float8_logits)


def rotary_angles(tape: Tape, sequence: int, width: int, dtype: str) -> Angles:
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


def rotary_embedding(x: Value, angles: Angles) -> Value:
    """Return queries or keys (batch, heads, sequence, width) with rotary position embedding."""
    half = x.shape[-1] // 2
    scaled = mul(x, angles[0])
    first, second = slice_of(x, 3, 0, half), slice_of(x, 3, half, 2 * half)
    return add(scaled, mul(cat((neg(second), first), -1), angles[1]))


def complex_rotary_embedding(x: Value, angles: Angles) -> Value:
    """Rotary embedding by products of complex numbers in fp32; here, each complex number is two elements."""
    return to(mul(to(x, "float32"), angles[0]), x.dtype)


def gated_mlp(
    x: Value, feed_forward: int, activation: Callable[[Value], Value] = silu, *, fused: bool = False
) -> Value:
    """The gated feed-forward network (Shazeer 2020), ``down(activation(gate(x)) * up(x))``; ``fused``: one product for both."""
    hidden = x.shape[-1]
    if fused:
        both = module("gate_up_proj", linear, x, 2 * feed_forward, bias=False)
        return module("down_proj", linear, gated_unit(both, activation.__name__), hidden, bias=False)
    gate = module("act_fn", activation, module("gate_proj", linear, x, feed_forward, bias=False))
    up = module("up_proj", linear, x, feed_forward, bias=False)
    return module("down_proj", linear, mul(gate, up), hidden, bias=False)
