"""Inputs, patch embeddings and the class loss of models that read images."""

from __future__ import annotations

from triosim.models.operators.layers import cross_entropy
from triosim.models.operators.products import convolution
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, expand, transpose, view


def image_inputs(tape: Tape, batch: int, image: int, *, channels_last: bool = False) -> tuple[Value, Value]:
    """Return square images and their classes; ``channels_last`` is the memory format of all images from here on."""
    tape.channels_last = channels_last
    images = tape.new((batch, 3, image, image), tape.dtype, category="input")
    return images, tape.new((batch,), "int64", category="input")


def patch_embeddings(
    images: Value, hidden: int, patch: int, *, name: str, token: str, token_shape: tuple[int, ...], bias: bool
) -> Value:
    """Return (samples, 1 + patches, hidden): the parameter ``token``, and a linear map of each square patch.

    The linear map is the convolution ``name`` of the open module.
    """
    batch, side = images.shape[0], images.shape[-1]
    found = module(name, convolution, images, hidden, patch, stride=patch, bias=bias)
    found = transpose(view(found, (batch, hidden, (side // patch) ** 2)), 1, 2)
    first = expand(images.tape.parameter(token, token_shape), (batch, 1, hidden))
    return cat((first, found), 1)


def class_loss(logits: Value, labels: Value) -> Value:
    """Return the cross entropy of a classifier, in a layer of its own."""
    with logits.tape.within("CrossEntropyLoss"):
        return cross_entropy(logits, labels)
