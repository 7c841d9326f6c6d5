"""The vision transformer (Dosovitskiy et al. 2021), as transformers and torchvision write it.

torchvision's multiplies for queries, keys and values at once (``nn.MultiheadAttention``), transformers' one after another;
the sizes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.model import check_heads
from triosim.models.operators.attention import multi_head_attention, split_heads
from triosim.models.operators.elementwise import add, dropout, gelu
from triosim.models.operators.layers import cross_entropy, layer_norm
from triosim.models.operators.products import convolution, linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import (
    cat,
    contiguous_of,
    expand,
    reshape,
    select,
    squeeze,
    transpose,
    unsqueeze,
    view,
)
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ViT:
    """Sizes of a vision transformer over square images in square patches."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    patch: int = 16
    image: int = 224
    classes: int = 1000
    dropout: float = 0.0
    style: Literal["huggingface", "torchvision"] = "huggingface"
    sequence: int = 0
    name: str = "vit"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        check_heads(self.hidden, self.heads)
        images = tape.new((batch, 3, self.image, self.image), tape.dtype, category="input")
        labels = tape.new((batch,), "int64", category="input")
        dropped = choices.dropout(self.dropout)
        with tape.at("vit"):
            found = module("embeddings", self._embedded, images, dropped)
            for number in range(self.layers):
                found = module(f"layers.{number}", self._layer, found, choices, dropped)
            found = module("layernorm", layer_norm, found)
        with tape.at("classifier"):
            logits = linear(select(found, 1, 0), self.classes)
        return module("loss", cross_entropy, logits, labels)

    def _embedded(self, images: Value, dropped: float) -> Value:
        tape, batch = images.tape, images.shape[0]
        found = module(
            "patch_embeddings.projection", convolution, images, self.hidden, self.patch, stride=self.patch, bias=True
        )
        count = (self.image // self.patch) ** 2
        found = transpose(view(found, (batch, self.hidden, count)), 1, 2)
        first = expand(tape.parameter("cls_token", (1, 1, self.hidden)), (batch, 1, self.hidden))
        found = add(cat((first, found), 1), tape.parameter("position_embeddings", (1, count + 1, self.hidden)))
        return dropout(found, dropped)

    def _layer(self, x: Value, choices: ChoiceReader, dropped: float) -> Value:
        tape = x.tape
        found = module("layernorm_before", layer_norm, x)
        with tape.at("attention"):
            attend = self._attention if self.style == "huggingface" else self._packed_attention
            found = dropout(attend(found, choices), dropped)
        x = add(found, x)
        found = module("layernorm_after", layer_norm, x)
        with tape.at("mlp"):
            found = module("fc1", linear, found, self.feed_forward)
            found = module("activation_fn", gelu, found)
            with tape.at("fc2"):
                found = dropout(linear(found, self.hidden), dropped)
        return add(found, x)

    def _attention(self, x: Value, choices: ChoiceReader) -> Value:
        parts = []
        for name in ("q_proj", "k_proj", "v_proj"):
            part = module(name, linear, x, self.hidden)
            parts.append(split_heads(part, self.heads))
        found = multi_head_attention(*parts, kernel=choices.attention_kernel(), probability=0.0)
        return module("o_proj", linear, found, self.hidden)

    def _packed_attention(self, x: Value, choices: ChoiceReader) -> Value:
        """``nn.MultiheadAttention``: over (length, batch, features), with one product for queries, keys and values."""
        batch, length, hidden = x.shape
        width = hidden // self.heads
        mixed = linear(transpose(x, 1, 0), 3 * hidden, names=("in_proj_weight", "in_proj_bias"))
        mixed = unsqueeze(view(mixed, (length, batch, 3, hidden)), 0)
        mixed = contiguous_of(squeeze(transpose(mixed, 0, 3), 3))
        parts = []
        for part in [select(mixed, 0, number) for number in range(3)]:
            turned = transpose(view(part, (length, batch * self.heads, width)), 0, 1)
            parts.append(view(turned, (batch, self.heads, length, width)))
        found = multi_head_attention(*parts, kernel=choices.attention_kernel(), probability=0.0)
        found = reshape(transpose(found, 0, 1), (length * batch, hidden))
        found = module("out_proj", linear, found, hidden)
        return transpose(view(found, (length, batch, hidden)), 1, 0)
