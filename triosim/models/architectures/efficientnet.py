"""EfficientNet (Tan and Le 2019), as torchvision writes it.

Inverted residual blocks: channels are expanded by a 1 x 1 convolution, convolved each by itself, weighed by a small network of
their averages (squeeze and excitation), and projected back. NVIDIA's *wide* one squeezes the expanded channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triosim.models.architectures.images import class_loss, image_inputs
from triosim.models.operators.elementwise import add, dropout, mul, sigmoid, silu
from triosim.models.operators.layers import batch_norm, global_average_pool
from triosim.models.operators.products import convolution, linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import view
from triosim.models.step_choices import ChoiceReader

#: The stages of B0: expansion, kernel, stride, channels, blocks (table 1).
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_STEM = 32
_SQUEEZED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNet:
    """``width`` and ``depth`` are multiples of B0's channels and blocks."""

    width: float
    depth: float
    image: int
    dropout: float
    wide: bool = False
    classes: int = 1000
    sequence: int = 0
    name: str = "efficientnet"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = image_inputs(tape, batch, self.image, channels_last=choices.channels_last())
        found = silu(module("features.0", _convolved, found, self._channels(_STEM), 3, 2))
        for stage, (expansion, kernel, stride, channels, blocks) in enumerate(_STAGES, 1):
            for number in range(math.ceil(self.depth * blocks)):
                step, width = 1 if number else stride, self._channels(channels)
                found = module(f"features.{stage}.{number}", self._block, found, expansion, kernel, step, width)
        found = silu(module("features.8", _convolved, found, 4 * found.shape[1], 1, 1))
        found = view(module("avgpool", global_average_pool, found), (batch, -1))
        with tape.at("classifier.0"):
            found = dropout(found, choices.dropout(self.dropout))
        found = module("classifier.1", linear, found, self.classes)
        return class_loss(found, labels)

    def _channels(self, channels: int) -> int:
        """Return the multiple of 8 that is nearest to so many of B0's, and no tenth less."""
        wanted = self.width * channels
        found = max(8, int(wanted + 4) // 8 * 8)
        return found if found >= 0.9 * wanted else found + 8

    def _block(self, x: Value, expansion: int, kernel: int, stride: int, channels: int) -> Value:
        inner = x.shape[1] * expansion
        found = silu(module("expand", _convolved, x, inner, 1, 1)) if expansion > 1 else x
        found = silu(module("depthwise", _convolved, found, inner, kernel, stride, inner))
        squeezed = max(1, (inner if self.wide else x.shape[1]) // _SQUEEZED)
        found = mul(found, module("se", _weights, found, squeezed))
        found = module("project", _convolved, found, channels, 1, 1)
        return add(found, x) if found.shape == x.shape else found


def _convolved(x: Value, channels: int, kernel: int, stride: int, groups: int = 1) -> Value:
    """A convolution and its norm."""
    found = module("0", convolution, x, channels, kernel, stride=stride, padding=kernel // 2, groups=groups)
    return module("1", batch_norm, found)


def _weights(x: Value, squeezed: int) -> Value:
    """The weight of each channel of an image."""
    found = global_average_pool(x)
    found = silu(module("fc1", convolution, found, squeezed, 1, bias=True))
    return sigmoid(module("fc2", convolution, found, x.shape[1], 1, bias=True))
