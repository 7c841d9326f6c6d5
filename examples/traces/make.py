"""Makes the traces of this folder: known networks, shapes and dataflow as PyTorch has them, times from a roofline.

    python examples/traces/make.py [FOLDER]

ResNet-50 (He et al., CVPR 2016) and VGG-13 (Simonyan and Zisserman, ICLR 2015) as torchvision has them, and GPT-2 small
(Radford et al., 2019), each one fp32 training step on an A100. Nothing here was measured; each trace says so in ``times``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import layers
from builder import A100, Roofline, Step

from triosim import Tensor, Trace, save_trace


def resnet50(batch: int = 128, roofline: Roofline = A100) -> Trace:
    """ResNet-50 at 224 x 224, SGD with momentum."""
    step = Step(roofline)
    images, target = step.tensor((batch, 3, 224, 224), "input"), step.tensor((batch,), "input", dtype="int64")
    x = layers.convolution(step, "conv1", images, 64, 7, stride=2)
    x = layers.relu_(step, "relu", layers.batch_norm(step, "bn1", x))
    x = layers.max_pool(step, "maxpool", x, 3)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            x = _bottleneck(step, f"layer{stage}.{block}", x, width, 2 if stage > 1 and block == 0 else 1)
    x = layers.view(step, "flatten", "flatten", layers.average_pool(step, "avgpool", x, 1), batch, 2048)
    logits = layers.linear(step, "fc", x, 1000, category="output")
    step.backward(layers.cross_entropy(step, "loss", logits, target))
    step.sgd()
    return step.trace("resnet50", batch)


def _bottleneck(step: Step, path: str, x: Tensor, width: int, stride: int) -> Tensor:
    """Three convolutions around a shortcut, which is a convolution itself where the shape changes."""
    y = layers.relu_(step, f"{path}.relu", _normed(step, path, "1", x, width, 1))
    y = layers.relu_(step, f"{path}.relu", _normed(step, path, "2", y, width, 3, stride))
    y = _normed(step, path, "3", y, 4 * width, 1)
    if y.shape != x.shape:
        shortcut = layers.convolution(step, f"{path}.downsample.0", x, 4 * width, 1, stride=stride)
        x = layers.batch_norm(step, f"{path}.downsample.1", shortcut)
    return layers.relu_(step, f"{path}.relu", layers.add_(step, path, y, x))


def _normed(step: Step, path: str, number: str, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    y = layers.convolution(step, f"{path}.conv{number}", x, channels, kernel, stride=stride)
    return layers.batch_norm(step, f"{path}.bn{number}", y)


def vgg13(batch: int = 128, roofline: Roofline = A100) -> Trace:
    """VGG-13 at 224 x 224, SGD with momentum."""
    step = Step(roofline)
    x, target = step.tensor((batch, 3, 224, 224), "input"), step.tensor((batch,), "input", dtype="int64")
    number = 0
    for channels in (64, 128, 256, 512, 512):
        for _ in range(2):
            x = layers.convolution(step, f"features.{number}", x, channels, 3, bias=True)
            x = layers.relu_(step, f"features.{number + 1}", x)
            number += 2
        x = layers.max_pool(step, f"features.{number}", x, 2)
        number += 1
    x = layers.view(step, "flatten", "flatten", layers.average_pool(step, "avgpool", x, 7), batch, 25088)
    for number in (0, 3):
        x = layers.relu_(step, f"classifier.{number + 1}", layers.linear(step, f"classifier.{number}", x, 4096))
        x = layers.dropout(step, f"classifier.{number + 2}", x)
    logits = layers.linear(step, "classifier.6", x, 1000, category="output")
    step.backward(layers.cross_entropy(step, "loss", logits, target))
    step.sgd()
    return step.trace("vgg13", batch)


def gpt2(batch: int = 8, length: int = 1024, roofline: Roofline = A100) -> Trace:
    """GPT-2 small: 12 layers of width 768, the token table shared with the output, AdamW, no dropout."""
    step = Step(roofline)
    width, heads, vocabulary = 768, 12, 50257
    tokens = step.tensor((batch, length), "input", dtype="int64")
    target = step.tensor((batch, length), "input", dtype="int64")
    positions = step.tensor((length,), "buffer", dtype="int64")
    table, places = step.parameter(vocabulary, width), step.parameter(1024, width)
    x = layers.embedding(step, "transformer.wte", tokens, table)
    y = layers.embedding(step, "transformer.wpe", positions, places)
    x = layers.position_sum(step, "transformer", x, y)
    for block in range(12):
        path = f"transformer.h.{block}"
        y = layers.layer_norm(step, f"{path}.ln_1", x)
        y = layers.linear(step, f"{path}.attn.c_attn", y, 3 * width)
        y = layers.attention(step, f"{path}.attn", y, heads)
        x = layers.add(step, path, x, layers.linear(step, f"{path}.attn.c_proj", y, width))
        y = layers.layer_norm(step, f"{path}.ln_2", x)
        y = layers.gelu(step, f"{path}.mlp.act", layers.linear(step, f"{path}.mlp.c_fc", y, 4 * width))
        x = layers.add(step, path, x, layers.linear(step, f"{path}.mlp.c_proj", y, width))
    x = layers.layer_norm(step, "transformer.ln_f", x)
    logits = layers.linear(step, "lm_head", x, vocabulary, bias=False, weight=table, category="output")
    rows = layers.view(step, "view", "loss", logits, batch * length, vocabulary)
    flat = layers.view(step, "view", "loss", target, batch * length)
    step.backward(layers.cross_entropy(step, "loss", rows, flat))
    step.adamw()
    return step.trace("gpt2", batch)


def main(folder: Path) -> None:
    """Write every trace into ``folder``."""
    for network in (resnet50, vgg13, gpt2):
        trace = network()
        path = folder / f"{network.__name__}_a100_roofline.json.gz"
        save_trace(trace, path)
        elements = sum(parameter.numel for parameter in trace.parameters.values())
        print(f"{path}: {len(trace.operators)} operators, {elements:,} parameters, {trace.seconds * 1e3:.1f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
