"""The vision transformer (Dosovitskiy et al. 2021), as transformers and torchvision write it.

torchvision's multiplies for queries, keys and values at once (``nn.MultiheadAttention``), transformers' one after another;
the sizes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.images import image_inputs, patch_embeddings
from triosim.models.operators.attention import features_of_head, multi_head_attention, self_attention
from triosim.models.operators.elementwise import add, dropout, gelu
from triosim.models.operators.layers import cross_entropy, layer_norm
from triosim.models.operators.products import linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import contiguous_of, reshape, select, squeeze, transpose, unsqueeze, view
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
        images, labels = image_inputs(tape, batch, self.image)
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
        name, shape = "patch_embeddings.projection", (1, 1, self.hidden)
        found = patch_embeddings(
            images, self.hidden, self.patch, name=name, token="cls_token", token_shape=shape, bias=True
        )
        positions = images.tape.parameter("position_embeddings", (1, *found.shape[1:]))
        return dropout(add(found, positions), dropped)

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
        names, kernel = ("q_proj", "k_proj", "v_proj"), choices.attention_kernel()
        found = self_attention(x, self.heads, names, kernel=kernel)
        return module("o_proj", linear, found, self.hidden)

    def _packed_attention(self, x: Value, choices: ChoiceReader) -> Value:
        """``nn.MultiheadAttention``: over (length, batch, features), with one product for queries, keys and values."""
        batch, length, hidden = x.shape
        width = features_of_head(hidden, self.heads)
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
