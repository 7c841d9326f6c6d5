"""Convolutional networks as torchvision writes them: VGG, ResNet and DenseNet.

Simonyan and Zisserman 2015; He et al. 2016 (with the stride in the 3 x 3 convolution), Xie et al. 2017, and with squeeze and
excitation Hu et al. 2018; Huang et al. 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.models.architectures.images import class_loss, image_inputs
from triosim.models.operators.elementwise import add, dropout, mul, relu_in_place, sigmoid
from triosim.models.operators.layers import (
    adaptive_average_pool,
    average_pool_2x2,
    batch_norm,
    global_average_pool,
    max_pool,
)
from triosim.models.operators.products import convolution, linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, view
from triosim.models.step_choices import ChoiceReader

#: The channels of a VGG's convolutions, by stage.
_VGG_WIDTHS = (64, 128, 256, 512, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class VGG:
    """``convolutions`` is their number in each stage, between two poolings."""

    convolutions: Sequence[int]
    normalised: bool = False
    image: int = 224
    classes: int = 1000
    dropout: float = 0.5
    sequence: int = 0
    name: str = "vgg"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = image_inputs(tape, batch, self.image, channels_last=choices.channels_last())
        number = 0
        for width, count in zip(_VGG_WIDTHS, self.convolutions, strict=True):
            for _ in range(count):
                found = module(f"features.{number}", convolution, found, width, 3, padding=1, bias=True)
                if self.normalised:
                    number += 1
                    found = module(f"features.{number}", batch_norm, found)
                found = module(f"features.{number + 1}", relu_in_place, found)
                number += 2
            found = module(f"features.{number}", max_pool, found, 2, stride=2)
            number += 1
        found = module("avgpool", adaptive_average_pool, found, 7)
        found = view(found, (batch, -1))
        for number in (0, 3):
            found = module(f"classifier.{number}", linear, found, 4096)
            found = module(f"classifier.{number + 1}", relu_in_place, found)
            with tape.at(f"classifier.{number + 2}"):
                found = dropout(found, choices.dropout(self.dropout))
        found = module("classifier.6", linear, found, self.classes)
        return class_loss(found, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet:
    """``blocks`` is their number in each stage; ``bottleneck`` blocks have three convolutions, with groups of ``width``.

    With ``squeezed``, a small network weighs a block's channels by their averages, of which it makes so many times fewer.
    """

    blocks: Sequence[int]
    bottleneck: bool = True
    groups: int = 1
    width: int = 64
    squeezed: int = 0
    image: int = 224
    classes: int = 1000
    sequence: int = 0
    name: str = "resnet"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = image_inputs(tape, batch, self.image, channels_last=choices.channels_last())
        found = module("conv1", convolution, found, 64, 7, stride=2, padding=3)
        found = module("bn1", batch_norm, found)
        found = module("relu", relu_in_place, found)
        found = module("maxpool", max_pool, found, 3, stride=2, padding=1)
        for stage, count in enumerate(self.blocks):
            for number in range(count):
                found = module(
                    f"layer{stage + 1}.{number}", self._block, found, 64 << stage, 2 if stage and not number else 1
                )
        found = module("avgpool", global_average_pool, found)
        found = view(found, (batch, -1))
        found = module("fc", linear, found, self.classes)
        return class_loss(found, labels)

    def _block(self, x: Value, planes: int, stride: int) -> Value:
        inner = planes * self.width // 64 * self.groups
        convolutions = (
            ((inner, 1, 1, 1), (inner, 3, stride, self.groups), (4 * planes, 1, 1, 1))
            if self.bottleneck
            else ((planes, 3, stride, 1), (planes, 3, 1, 1))
        )
        found = x
        for number, (width, kernel, step, groups) in enumerate(convolutions, 1):
            if number > 1:
                found = module("relu", relu_in_place, found)
            found = module(
                f"conv{number}", convolution, found, width, kernel, stride=step, padding=kernel // 2, groups=groups
            )
            found = module(f"bn{number}", batch_norm, found)
        if self.squeezed:
            found = mul(found, module("squeeze", _channel_weights, found, found.shape[1] // self.squeezed))
        if found.shape != x.shape:
            x = module("downsample.0", convolution, x, found.shape[1], 1, stride=stride)
            x = module("downsample.1", batch_norm, x)
        found = add(found, x, in_place=True)
        return module("relu", relu_in_place, found)


def _channel_weights(x: Value, squeezed: int) -> Value:
    """Return the weight of each channel of an image, by two linear layers on the channels' averages."""
    found = view(global_average_pool(x), (x.shape[0], -1))
    found = module("relu", relu_in_place, module("squeeze", linear, found, squeezed))
    found = module("sigmoid", sigmoid, module("expand", linear, found, x.shape[1]))
    return view(found, (*x.shape[:2], 1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNet:
    """``blocks`` is the number of layers in each block; every layer adds ``growth`` channels to its input."""

    blocks: Sequence[int]
    growth: int = 32
    first: int = 64
    image: int = 224
    classes: int = 1000
    sequence: int = 0
    name: str = "densenet"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = image_inputs(tape, batch, self.image, channels_last=choices.channels_last())
        with tape.at("features"):
            found = module("conv0", convolution, found, self.first, 7, stride=2, padding=3)
            found = _active(found, "norm0", "relu0")
            found = module("pool0", max_pool, found, 3, stride=2, padding=1)
            for number, count in enumerate(self.blocks, 1):
                found = module(f"denseblock{number}", self._block, found, count)
                if number < len(self.blocks):
                    with tape.at(f"transition{number}"):
                        found = _active(found, "norm", "relu")
                        found = module("conv", convolution, found, found.shape[1] // 2, 1)
                        found = module("pool", average_pool_2x2, found)
            found = module("norm5", batch_norm, found)
        found = relu_in_place(found)
        found = view(global_average_pool(found), (batch, -1))
        found = module("classifier", linear, found, self.classes)
        return class_loss(found, labels)

    def _block(self, x: Value, count: int) -> Value:
        tape = x.tape
        parts = [x]
        for number in range(1, count + 1):
            with tape.at(f"denselayer{number}"):
                found = cat(parts, 1)
                found = _active(found, "norm1", "relu1")
                found = module("conv1", convolution, found, 4 * self.growth, 1)
                found = _active(found, "norm2", "relu2")
                with tape.at("conv2"):
                    parts.append(convolution(found, self.growth, 3, padding=1))
        return cat(parts, 1)


def _active(x: Value, norm: str, relu: str) -> Value:
    return module(relu, relu_in_place, module(norm, batch_norm, x))
