"""ConvNeXt (Liu et al. 2022) and ConvNeXt V2 (Woo et al. 2023), as transformers writes them.

Blocks of a depthwise convolution, a norm over the channels and two linear layers, which read the channels as the last
dimension. The first version scales what a block returns, the second divides channels by how strong they are in the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.models.architectures.images import class_loss, image_inputs
from triosim.models.operators.elementwise import add, add_number, div, elementwise, gelu, mean, mul, to
from triosim.models.operators.layers import layer_norm
from triosim.models.operators.products import convolution, linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import permute
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNext:
    """``blocks`` and ``widths`` of the stages; ``version`` is 1 or 2."""

    blocks: Sequence[int]
    widths: Sequence[int]
    version: int = 1
    patch: int = 4
    image: int = 224
    classes: int = 1000
    sequence: int = 0
    name: str = "convnext"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = image_inputs(tape, batch, self.image)
        with tape.at("convnext" if self.version == 1 else "convnextv2"):
            with tape.at("embeddings"):
                found = module(
                    "patch_embeddings", convolution, found, self.widths[0], self.patch, stride=self.patch, bias=True
                )
                found = _normed(found, "layernorm")
            for stage, count in enumerate(self.blocks):
                found = module(f"encoder.stages.{stage}", self._stage, found, stage, count)
            found = mean(found, [-2, -1])
            found = module("layernorm", layer_norm, found)
        found = module("classifier", linear, found, self.classes)
        return class_loss(found, labels)

    def _stage(self, x: Value, stage: int, count: int) -> Value:
        if stage:
            x = _normed(x, "downsampling_layer.0")
            x = module("downsampling_layer.1", convolution, x, self.widths[stage], 2, stride=2, bias=True)
        for number in range(count):
            x = module(f"layers.{number}", self._block, x)
        return x

    def _block(self, x: Value) -> Value:
        tape, width = x.tape, x.shape[1]
        found = module("dwconv", convolution, x, width, 7, padding=3, groups=width, bias=True)
        found = permute(found, (0, 2, 3, 1))
        found = module("layernorm", layer_norm, found)
        found = module("pwconv1", linear, found, 4 * width)
        found = module("act", gelu, found)
        if self.version == 2:
            found = module("grn", _responses, found)
        found = module("pwconv2", linear, found, width)
        if self.version == 1:
            found = mul(tape.parameter("layer_scale_parameter", (width,)), found)
        return add(x, permute(found, (0, 3, 1, 2)))


def _normed(x: Value, name: str) -> Value:
    """A norm over the channels of (samples, channels, height, width)."""
    with x.tape.at(name):
        return permute(layer_norm(permute(x, (0, 2, 3, 1))), (0, 3, 1, 2))


def _responses(x: Value) -> Value:
    """Global response normalisation of (samples, height, width, channels)."""
    shape = (1, 1, 1, x.shape[-1])
    weight, bias = x.tape.parameter("weight", shape), x.tape.parameter("bias", shape)
    strengths = _strengths(x)
    scaled = mul(x, div(strengths, add_number(mean(strengths, [-1], keepdim=True))))
    return add(add(mul(weight, scaled), bias), x)


def _strengths(x: Value) -> Value:
    """The norm of each channel over the pixels (``linalg.vector_norm``), which autocast computes in fp32."""
    tape, (batch, _, _, channels) = x.tape, x.shape
    dtype = x.dtype if tape.autocast is None else "float32"
    out = tape.result("linalg_vector_norm", (x,), (batch, 1, 1, channels), dtype, dim=[1, 2], keepdim=True)

    def backward(g: Value) -> tuple[Value]:
        ratio = elementwise(
            "masked_fill", elementwise("div", x, out), elementwise("eq", out, dtype="bool"), dtype=out.dtype
        )
        return (to(elementwise("mul", ratio, g), x.dtype),)

    return tape.differentiate((out,), (x,), backward)
