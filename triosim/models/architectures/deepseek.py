"""DeepSeek-V3 (DeepSeek-AI 2024): latent attention and a mixture of many small experts, as transformers writes it.

Its multi-token prediction module is left out, as transformers leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triosim.models.architectures.llama import Angles, Llama, gated_mlp, rotary_angles
from triosim.models.operators.attention import multi_head_attention, split_heads
from triosim.models.operators.elementwise import add, mul, sub
from triosim.models.operators.fused import rotary_embedding
from triosim.models.operators.moe import Experts, mixture, sigmoid_router
from triosim.models.operators.products import linear
from triosim.models.operators.tape import Value, module
from triosim.models.operators.views import cat, expand, reshape, slice_of, split, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeek(Llama):
    """Sizes of a DeepSeek-V3. ``query_rank`` and ``kv_rank`` are the sizes of the latent vectors; None stands for no such
    vector.

    A head of a query or key has ``nope_dim`` features without and ``rope_dim`` with rotary position embedding, a head of a
    value ``value_dim``. The first ``dense_layers`` have a feed-forward network of ``feed_forward``, the others experts of
    ``expert_width``: ``experts_per_token`` from ``groups_per_token`` of the ``groups``, and ``shared_experts`` for every token.
    """

    expert_width: int
    experts: int
    experts_per_token: int
    groups: int = 1
    groups_per_token: int = 1
    shared_experts: int = 1
    dense_layers: int = 0
    query_rank: int | None = 1536
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int = 128
    vocab: int = 129280
    sequence: int = 4096
    name: str = "deepseek"

    float8_logits: ClassVar[bool] = True

    def _angles(self, x: Value) -> Angles:
        return rotary_angles(x.tape, x.shape[1], self.rope_dim, x.dtype)

    def _mlp(self, x: Value, number: int, choices: ChoiceReader) -> Value:
        if number < self.dense_layers:
            return gated_mlp(x, self.feed_forward, fused=choices.fused())
        flat = reshape(x, (-1, self.hidden))
        fused = choices.fused()
        groups = self.groups, self.groups_per_token
        routed = sigmoid_router(flat, self.experts, self.experts_per_token, *groups, fused=fused)
        experts = Experts(self.experts, self.expert_width, fused_products=self.fused_experts)
        found = mixture(x, routed, experts, fused=fused)
        if not self.shared_experts:
            return found
        with x.tape.at("shared_experts"):
            return add(found, gated_mlp(x, self.expert_width * self.shared_experts, fused=fused))

    def _attention(self, x: Value, angles: Angles, choices: ChoiceReader) -> Value:
        """Multi-head latent attention: projections of latent vectors; all heads share one rotary key."""
        batch, length, _ = x.shape
        norm = self._norm(choices)
        width = self.nope_dim + self.rope_dim
        if self.query_rank is None:
            query = module("q_proj", linear, x, self.heads * width, bias=False)
        else:
            query = module("q_a_proj", linear, x, self.query_rank, bias=False)
            query = module("q_a_layernorm", norm, query)
            query = module("q_b_proj", linear, query, self.heads * width, bias=False)
        still, moving = split(split_heads(query, self.heads), [self.nope_dim, self.rope_dim], -1)
        latent = module("kv_a_proj_with_mqa", linear, x, self.kv_rank + self.rope_dim, bias=False)
        latent, shared = split(latent, [self.kv_rank, self.rope_dim], -1)
        latent = module("kv_a_layernorm", norm, latent)
        latent = view(latent, (batch, 1, length, self.kv_rank))
        shared = view(shared, (batch, 1, length, self.rope_dim))
        rotate = _rotated_by_one_kernel if choices.fused() else _rotary_embedding
        moving, shared = rotate(moving, angles), rotate(shared, angles)
        query = cat((still, moving), -1)
        both = module("kv_b_proj", linear, latent, self.heads * (self.nope_dim + self.value_dim), bias=False)
        both = transpose(view(both, (batch, length, self.heads, self.nope_dim + self.value_dim)), 1, 2)
        key, value = split(both, [self.nope_dim, self.value_dim], -1)
        key = cat((key, expand(shared, (batch, self.heads, length, self.rope_dim))), -1)
        found = multi_head_attention(query, key, value, kernel=choices.attention_kernel(), probability=0.0, causal=True)
        return module("o_proj", linear, found, self.hidden, bias=False)


def _rotary_embedding(x: Value, angles: Angles) -> Value:
    """Return (batch, heads, length, features) with rotary position embedding, half by half."""
    half = x.shape[-1] // 2
    cosines, sines = (unsqueeze(slice_of(one, 2, 0, half), 1) for one in angles)
    first, second = slice_of(x, 3, 0, half), slice_of(x, 3, half, 2 * half)
    one = sub(mul(first, cosines), mul(second, sines))
    other = add(mul(second, cosines), mul(first, sines))
    return cat((one, other), -1)


def _rotated_by_one_kernel(x: Value, angles: Angles) -> Value:
    """The same by one kernel."""
    return rotary_embedding(x, (unsqueeze(angles[0], 1), unsqueeze(angles[1], 1)))
