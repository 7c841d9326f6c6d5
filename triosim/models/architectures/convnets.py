"""Convolutional networks as torchvision writes them: VGG, ResNet and DenseNet.

Simonyan and Zisserman 2015; He et al. 2016 (with the stride in the 3 x 3 convolution) and Xie et al. 2017; Huang et al. 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.models.operators.elementwise import add_in_place, dropout, relu_in_place
from triosim.models.operators.layers import batch_norm, cross_entropy
from triosim.models.operators.pooling import adaptive_average_pool, average_pool_2x2, global_average_pool, max_pool
from triosim.models.operators.products import convolution, linear
from triosim.models.operators.tape import Tape, Value
from triosim.models.operators.views import cat, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class VGG:
    """``stages`` are the widths of the convolutions between two poolings."""

    stages: Sequence[Sequence[int]]
    normalised: bool = False
    image: int = 224
    classes: int = 1000
    dropout: float = 0.5
    sequence: int = 0
    name: str = "vgg"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = fed(tape, batch, self.image)
        number = 0
        for widths in self.stages:
            for width in widths:
                with tape.at(f"features.{number}"):
                    found = convolution(found, width, 3, padding=1, bias=True)
                if self.normalised:
                    number += 1
                    with tape.at(f"features.{number}"):
                        found = batch_norm(found)
                with tape.at(f"features.{number + 1}"):
                    found = relu_in_place(found)
                number += 2
            with tape.at(f"features.{number}"):
                found = max_pool(found, 2, stride=2)
            number += 1
        with tape.at("avgpool"):
            found = adaptive_average_pool(found, 7)
        found = view(found, (batch, -1))
        for number, width in ((0, 4096), (3, 4096)):
            with tape.at(f"classifier.{number}"):
                found = linear(found, width)
            with tape.at(f"classifier.{number + 1}"):
                found = relu_in_place(found)
            with tape.at(f"classifier.{number + 2}"):
                found = dropout(found, choices.dropout(self.dropout))
        with tape.at("classifier.6"):
            found = linear(found, self.classes)
        return classified(found, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet:
    """``blocks`` counts those of each stage; ``bottleneck`` are blocks of three convolutions, ``width`` that of a group."""

    blocks: Sequence[int]
    bottleneck: bool = True
    groups: int = 1
    width: int = 64
    image: int = 224
    classes: int = 1000
    sequence: int = 0
    name: str = "resnet"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = fed(tape, batch, self.image)
        with tape.at("conv1"):
            found = convolution(found, 64, 7, stride=2, padding=3)
        found = _normalised(found, "bn1")
        with tape.at("relu"):
            found = relu_in_place(found)
        with tape.at("maxpool"):
            found = max_pool(found, 3, stride=2, padding=1)
        for stage, count in enumerate(self.blocks):
            for number in range(count):
                with tape.at(f"layer{stage + 1}.{number}"):
                    found = self._block(found, 64 << stage, 2 if stage and not number else 1)
        with tape.at("avgpool"):
            found = global_average_pool(found)
        found = view(found, (batch, -1))
        with tape.at("fc"):
            found = linear(found, self.classes)
        return classified(found, labels)

    def _block(self, x: Value, planes: int, stride: int) -> Value:
        tape = x.tape
        inner = planes * self.width // 64 * self.groups
        convolutions = (
            ((inner, 1, 1, 1), (inner, 3, stride, self.groups), (4 * planes, 1, 1, 1))
            if self.bottleneck
            else ((planes, 3, stride, 1), (planes, 3, 1, 1))
        )
        found = x
        for number, (width, kernel, step, groups) in enumerate(convolutions, 1):
            if number > 1:
                with tape.at("relu"):
                    found = relu_in_place(found)
            with tape.at(f"conv{number}"):
                found = convolution(found, width, kernel, stride=step, padding=kernel // 2, groups=groups)
            found = _normalised(found, f"bn{number}")
        if found.shape != x.shape:
            with tape.at("downsample.0"):
                x = convolution(x, found.shape[1], 1, stride=stride)
            x = _normalised(x, "downsample.1")
        found = add_in_place(found, x)
        with tape.at("relu"):
            return relu_in_place(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseNet:
    """``blocks`` counts the layers of each block; every layer adds ``growth`` channels to its input."""

    blocks: Sequence[int]
    growth: int = 32
    first: int = 64
    image: int = 224
    classes: int = 1000
    sequence: int = 0
    name: str = "densenet"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the images' classes."""
        found, labels = fed(tape, batch, self.image)
        with tape.at("features"):
            with tape.at("conv0"):
                found = convolution(found, self.first, 7, stride=2, padding=3)
            found = _active(found, "norm0", "relu0")
            with tape.at("pool0"):
                found = max_pool(found, 3, stride=2, padding=1)
            for number, count in enumerate(self.blocks, 1):
                with tape.at(f"denseblock{number}"):
                    found = self._block(found, count)
                if number < len(self.blocks):
                    with tape.at(f"transition{number}"):
                        found = _active(found, "norm", "relu")
                        with tape.at("conv"):
                            found = convolution(found, found.shape[1] // 2, 1)
                        with tape.at("pool"):
                            found = average_pool_2x2(found)
            found = _normalised(found, "norm5")
        found = relu_in_place(found)
        found = view(global_average_pool(found), (batch, -1))
        with tape.at("classifier"):
            found = linear(found, self.classes)
        return classified(found, labels)

    def _block(self, x: Value, count: int) -> Value:
        tape = x.tape
        parts = [x]
        for number in range(1, count + 1):
            with tape.at(f"denselayer{number}"):
                found = cat(parts, 1)
                found = _active(found, "norm1", "relu1")
                with tape.at("conv1"):
                    found = convolution(found, 4 * self.growth, 1)
                found = _active(found, "norm2", "relu2")
                with tape.at("conv2"):
                    parts.append(convolution(found, self.growth, 3, padding=1))
        return cat(parts, 1)


def fed(tape: Tape, batch: int, image: int) -> tuple[Value, Value]:
    """Return images and their classes."""
    images = tape.new((batch, 3, image, image), tape.dtype, category="input")
    return images, tape.new((batch,), "int64", category="input")


def classified(logits: Value, labels: Value) -> Value:
    """Return the loss of a classifier."""
    with logits.tape.within("CrossEntropyLoss"):
        return cross_entropy(logits, labels)


def _normalised(x: Value, name: str) -> Value:
    with x.tape.at(name):
        return batch_norm(x)


def _active(x: Value, norm: str, relu: str) -> Value:
    found = _normalised(x, norm)
    with x.tape.at(relu):
        return relu_in_place(found)
