"""CLIP (Radford et al. 2021), as transformers writes it: an image and a text transformer, and the similarity of their outputs.

The loss is contrastive: of the texts in the batch, each image must be most similar to its own, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.models.architectures.images import patch_embeddings
from triosim.models.architectures.model import check_length, token_inputs
from triosim.models.operators.attention import self_attention
from triosim.models.operators.elementwise import add, div, div_number, elementwise, mul, power, quick_gelu, total
from triosim.models.operators.layers import cross_entropy, embedding, layer_norm
from triosim.models.operators.products import linear, mm
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import select, t
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Sizes of one of the two transformers."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """``vision`` reads square images in square patches, ``text`` up to ``positions`` tokens; both are projected to
    ``projection_dim``."""

    vision: Tower
    text: Tower
    patch: int = 32
    image: int = 224
    vocab: int = 49408
    positions: int = 77
    projection_dim: int = 512
    sequence: int = 77
    name: str = "clip"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is contrastive, over the pairs of the batch."""
        check_length(sequence, self.positions, self.name)
        images = tape.new((batch, 3, self.image, self.image), tape.dtype, category="input")
        (token_ids,) = token_inputs(tape, batch, sequence, 1)
        image = module("vision_model", self._image_features, images, choices)
        image = module("visual_projection", linear, image, self.projection_dim, bias=False)
        text = module("text_model", self._text_features, token_ids, choices)
        text = module("text_projection", linear, text, self.projection_dim, bias=False)
        image, text = _normalised(image), _normalised(text)
        scale = _exponential(tape.parameter("logit_scale", ()))
        return _contrastive(mul(mm(text, t(image)), scale))

    def _image_features(self, images: Value, choices: ChoiceReader) -> Value:
        """Return the features of the class token."""
        tape, hidden = images.tape, self.vision.hidden
        with tape.at("embeddings"):
            found = patch_embeddings(
                images,
                hidden,
                self.patch,
                name="patch_embedding",
                token="class_embedding",
                token_shape=(hidden,),
                bias=False,
            )
            found = _placed(found, found.shape[1])
        found = module("pre_layrnorm", layer_norm, found)
        found = _encoded(found, self.vision, choices, causal=False)
        with tape.at("post_layernorm"):
            return layer_norm(select(found, 1, 0))

    def _text_features(self, token_ids: Value, choices: ChoiceReader) -> Value:
        """Return the features of the last token, which attends to all others."""
        tape = token_ids.tape
        with tape.at("embeddings"):
            found = module("token_embedding", embedding, token_ids, self.vocab, self.text.hidden)
            found = _placed(found, self.positions)
        found = _encoded(found, self.text, choices, causal=True)
        found = module("final_layer_norm", layer_norm, found)
        return _at_last_token(found, token_ids)


def _placed(x: Value, positions: int) -> Value:
    """Add position embeddings."""
    indices = x.tape.new((1, x.shape[1]), "int64", category="buffer")
    with x.tape.at("position_embedding"):
        return add(x, embedding(indices, positions, x.shape[-1]))


def _encoded(x: Value, sizes: Tower, choices: ChoiceReader, *, causal: bool) -> Value:
    for number in range(sizes.layers):
        x = module(f"encoder.layers.{number}", _layer, x, sizes, choices, causal)
    return x


def _layer(x: Value, sizes: Tower, choices: ChoiceReader, causal: bool) -> Value:
    tape = x.tape
    found = module("layer_norm1", layer_norm, x)
    found = module("self_attn", _attention, found, sizes, choices, causal)
    x = add(x, found)
    found = module("layer_norm2", layer_norm, x)
    with tape.at("mlp"):
        found = module("fc1", linear, found, sizes.feed_forward)
        found = module("activation_fn", quick_gelu, found)
        found = module("fc2", linear, found, sizes.hidden)
    return add(x, found)


def _attention(x: Value, sizes: Tower, choices: ChoiceReader, causal: bool) -> Value:
    names, kernel = ("q_proj", "k_proj", "v_proj"), choices.attention_kernel()
    found = self_attention(x, sizes.heads, names, kernel=kernel, causal=causal)
    return module("out_proj", linear, found, sizes.hidden)


def _at_last_token(x: Value, token_ids: Value) -> Value:
    """Return the features of one position of each sample, found from its tokens."""
    tape, (batch, length, features) = x.tape, x.shape
    rows, indices = tape.new((batch,), "int64"), tape.new((batch,), "int64")
    tape.record("arange", (), (rows,))
    tape.record("argmax", (token_ids,), (indices,), dim=-1)
    out = tape.result("index", (x, rows, indices), (batch, features), x.dtype)

    def backward(g: Value) -> tuple[Value]:
        whole = tape.result("zeros", (), (batch, length, features), x.dtype)
        tape.record("index_put_", (whole, rows, indices, g), (whole,))
        return (whole,)

    return tape.differentiate((out,), (x,), backward)


def _normalised(x: Value) -> Value:
    return div(x, power(total(power(x, 2), [-1], keepdim=True), 0.5))


def _exponential(x: Value) -> Value:
    out = elementwise("exp", x)
    return x.tape.differentiate((out,), (x,), lambda g: (elementwise("mul", g, out),))


def _contrastive(likeness: Value) -> Value:
    """The contrastive loss of (texts, images), whose diagonal holds the matching pairs."""
    tape = likeness.tape
    losses = []
    with tape.at("loss"):
        for logits in (likeness, t(likeness)):
            labels = tape.result("arange", (), (likeness.shape[0],), "int64")
            losses.append(cross_entropy(logits, labels))
        return div_number(add(*losses))
