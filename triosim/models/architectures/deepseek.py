"""DeepSeek-V3 (DeepSeek-AI 2024): latent attention and a mixture of many small experts, as transformers writes it.

Its extra module that predicts a second word is left out, as transformers leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.models.architectures.llama import gated, rotations
from triosim.models.architectures.model import tokens
from triosim.models.operators import fused
from triosim.models.operators.elementwise import add, mul, sub
from triosim.models.operators.layers import embedding, heads_of, many_headed, next_word, rms_norm
from triosim.models.operators.moe import mixture, sigmoid_router
from triosim.models.operators.products import linear
from triosim.models.operators.shaping import cat, expand, reshape, slice_of, split, transpose, unsqueeze, view
from triosim.models.operators.tape import Tape, Value
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek:
    """Sizes of a DeepSeek-V3. ``query_rank`` and ``kv_rank`` are those of the latent vectors, None where there is none.

    Of a head, ``plain`` features do not turn with the position and ``turned`` do; ``value`` are those of a value. The first
    ``dense`` layers have a feed-forward network of ``feed_forward``, the others experts of ``expert_width``, ``shared`` of
    which see every token.
    """

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    expert_width: int
    experts: int
    chosen: int
    groups: int = 1
    kept_groups: int = 1
    shared: int = 1
    dense: int = 0
    query_rank: int | None = 1536
    kv_rank: int = 512
    plain: int = 128
    turned: int = 64
    value: int = 128
    vocab: int = 129280
    sequence: int = 4096
    name: str = "deepseek"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Write the forward pass down; the loss is that of the next word."""
        norm = fused.rms_norm if choices.fused() else rms_norm
        words, labels = tokens(tape, batch, sequence), tokens(tape, batch, sequence)
        with tape.at("model"):
            with tape.at("embed_tokens"):
                found = embedding(words, self.vocab, self.hidden)
            angles = rotations(tape, sequence, self.turned, found.dtype)
            for number in range(self.layers):
                with tape.at(f"layers.{number}"):
                    found = self._layer(found, angles, choices, dense=number < self.dense)
            with tape.at("norm"):
                found = norm(found)
        with tape.at("lm_head"):
            logits = linear(found, self.vocab, bias=False)
        return next_word(logits, labels, fused=choices.fused())

    def _layer(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader, *, dense: bool) -> Value:
        tape = x.tape
        norm = fused.rms_norm if choices.fused() else rms_norm
        with tape.at("input_layernorm"):
            found = norm(x)
        with tape.at("self_attn"):
            found = self._attention(found, angles, choices)
        x = add(x, found)
        with tape.at("post_attention_layernorm"):
            found = norm(x)
        with tape.at("mlp"):
            found = gated(found, self.feed_forward, fused=choices.fused()) if dense else self._mixture(found, choices)
        return add(x, found)

    def _mixture(self, x: Value, choices: ChoiceReader) -> Value:
        flat = reshape(x, (-1, self.hidden))
        routed = sigmoid_router(flat, self.experts, self.chosen, self.groups, self.kept_groups)
        found = mixture(x, routed, self.experts, self.expert_width)
        if not self.shared:
            return found
        with x.tape.at("shared_experts"):
            return add(found, gated(x, self.expert_width * self.shared, fused=choices.fused()))

    def _attention(self, x: Value, angles: tuple[Value, Value], choices: ChoiceReader) -> Value:
        """Queries, keys and values are made of short latent vectors; one key part that turns is every head's."""
        tape, (batch, length, _) = x.tape, x.shape
        norm = fused.rms_norm if choices.fused() else rms_norm
        width = self.plain + self.turned
        if self.query_rank is None:
            with tape.at("q_proj"):
                query = linear(x, self.heads * width, bias=False)
        else:
            with tape.at("q_a_proj"):
                query = linear(x, self.query_rank, bias=False)
            with tape.at("q_a_layernorm"):
                query = norm(query)
            with tape.at("q_b_proj"):
                query = linear(query, self.heads * width, bias=False)
        still, moving = split(heads_of(query, self.heads), [self.plain, self.turned], -1)
        with tape.at("kv_a_proj_with_mqa"):
            latent = linear(x, self.kv_rank + self.turned, bias=False)
        latent, shared = split(latent, [self.kv_rank, self.turned], -1)
        with tape.at("kv_a_layernorm"):
            latent = norm(latent)
        latent = view(latent, (batch, 1, length, self.kv_rank))
        shared = view(shared, (batch, 1, length, self.turned))
        moving, shared = _rotated(moving, angles), _rotated(shared, angles)
        query = cat((still, moving), -1)
        with tape.at("kv_b_proj"):
            both = linear(latent, self.heads * (self.plain + self.value), bias=False)
        both = transpose(view(both, (batch, length, self.heads, self.plain + self.value)), 1, 2)
        key, value = split(both, [self.plain, self.value], -1)
        key = cat((key, expand(shared, (batch, self.heads, length, self.turned))), -1)
        found = many_headed(query, key, value, kernel=choices.attention_kernel(), probability=0.0, causal=True)
        with tape.at("o_proj"):
            return linear(found, self.hidden, bias=False)


def _rotated(x: Value, angles: tuple[Value, Value]) -> Value:
    """Return (batch, heads, length, features) turned by the angles of the positions, half by half."""
    half = x.shape[-1] // 2
    cosines, sines = (unsqueeze(slice_of(one, 2, 0, half), 1) for one in angles)
    first, second = slice_of(x, 3, 0, half), slice_of(x, 3, half, 2 * half)
    one = sub(mul(first, cosines), mul(second, sines))
    other = add(mul(second, cosines), mul(first, sines))
    return cat((one, other), -1)
