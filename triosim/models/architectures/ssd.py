"""SSD300 (Liu et al. 2016) with a ResNet-50, as NVIDIA's DeepLearningExamples write it: boxes of six maps of features.

The third stage of the ResNet keeps its size (38 x 38), and there is no fourth. Finding the boxes that match is no part of the
step here: every box has a class and four offsets in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.models.architectures.convnets import ResNet
from triosim.models.architectures.images import image_inputs
from triosim.models.operators.elementwise import add, relu_in_place
from triosim.models.operators.layers import batch_norm, cross_entropy, max_pool
from triosim.models.operators.products import convolution
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, reshape, transpose, view
from triosim.models.step_choices import ChoiceReader

#: Inner and outer channels, and the stride, of the blocks behind the ResNet; the last two have no padding.
_ADDED = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
#: Boxes at each place of the six maps.
_BOXES = (4, 6, 6, 6, 4, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SSD(ResNet):
    """``blocks`` are those of the ResNet's first three stages; ``classes`` count the background."""

    blocks: Sequence[int] = (3, 4, 6)
    image: int = 300
    classes: int = 81
    name: str = "ssd"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of classes and offsets of all boxes."""
        found, _ = image_inputs(tape, batch, self.image, channels_last=choices.channels_last())
        maps = [module("feature_extractor", self._features, found)]
        for number, (inner, outer, stride, padding) in enumerate(_ADDED):
            with tape.at(f"additional_blocks.{number}"):
                found = module("0", convolution, maps[-1], inner, 1)
                found = module("2", relu_in_place, module("1", batch_norm, found))
                found = module("3", convolution, found, outer, 3, stride=stride, padding=padding)
                maps.append(module("5", relu_in_place, module("4", batch_norm, found)))
        offsets = self._heads("loc", maps, batch, 4)
        scores = self._heads("conf", maps, batch, self.classes)
        with tape.at("loss"):
            boxes = scores.shape[2]
            labels = tape.new((batch * boxes,), "int64", category="input")
            of_classes = cross_entropy(reshape(transpose(scores, 1, 2), (-1, self.classes)), labels)
            return add(of_classes, _smooth_l1(offsets))

    def _features(self, x: Value) -> Value:
        found = module("conv1", convolution, x, 64, 7, stride=2, padding=3)
        found = module("relu", relu_in_place, module("bn1", batch_norm, found))
        found = module("maxpool", max_pool, found, 3, stride=2, padding=1)
        for stage, count in enumerate(self.blocks):
            for number in range(count):
                stride = 2 if stage == 1 and not number else 1
                found = module(f"layer{stage + 1}.{number}", self._block, found, 64 << stage, stride)
        return found

    def _heads(self, name: str, maps: Sequence[Value], batch: int, width: int) -> Value:
        """Return (batch, width, boxes) of a convolution of each map."""
        found = [
            module(f"{name}.{number}", convolution, one, boxes * width, 3, padding=1, bias=True)
            for number, (one, boxes) in enumerate(zip(maps, _BOXES, strict=True))
        ]
        return cat([view(one, (batch, width, -1)) for one in found], 2)


def _smooth_l1(x: Value) -> Value:
    """The mean of ``nn.SmoothL1Loss`` against targets of its own."""
    tape = x.tape
    target, loss = tape.new(x.shape, x.dtype, category="input"), tape.new((), x.dtype)
    given = x, target
    return tape.kernel("smooth_l1_loss", given, (loss,), of=(x,), saved=given, backward="smooth_l1_loss_backward")
