"""Writes data/: captures of tiny models, their shapes at another batch size and sequence length, and PyTorch's own FLOPs.

Run by hand, where PyTorch, torchvision and transformers are: python tests/sharding/capture_samples.py
The sizes are chosen to mislead: a batch that equals the sequence, the hidden size, the channels or the heads.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from triosim.trace import Trace
from triosim.trace.formats.native import trace_json as json_format
from triosim.tracer import capture_step

DATA = Path(__file__).parent / "data"
CLASSES, WORDS = 10, 96

#: Model, batch and sequence length of the sample, and the other batch and sequence length.
SAMPLES = (
    ("mlp", 16, 0, 24, 0),
    ("convnet", 16, 0, 4, 0),
    ("resnet18", 8, 0, 16, 0),
    ("bert", 12, 12, 16, 24),
    ("gpt2", 8, 12, 24, 24),
    ("gpt2_eager", 8, 12, 24, 24),
    ("t5", 8, 12, 16, 24),
    ("llama", 32, 12, 8, 24),
    ("vit", 4, 0, 16, 0),
    ("encoder_sequence_first", 4, 12, 16, 24),
)
Loss = Callable[[], torch.Tensor]


def classifier(model: nn.Module, *shape: int) -> tuple[nn.Module, Loss]:
    """A model of images or numbers with the cross entropy of made-up classes."""
    data, target = torch.randn(*shape), torch.randint(0, CLASSES, (shape[0],))
    return model, lambda: functional.cross_entropy(model(data), target)


def convnet() -> nn.Module:
    """Convolutions of all kinds: grouped, dilated, transposed."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, groups=2, dilation=2), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(16, 8, 2, 2), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, CLASSES)),
    )


class EncoderSequenceFirst(nn.Module):
    """PyTorch's own encoder in its default layout, (sequence, batch, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64), 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, data: torch.Tensor) -> Any:
        return self.head(self.encoder(data).mean(0))


def resnet18() -> nn.Module:
    """torchvision's, which on a CPU build of PyTorch misses two operators."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    model: nn.Module = torchvision.models.resnet18(weights=None, num_classes=CLASSES)
    return model


def language_model(name: str, batch: int, length: int) -> tuple[nn.Module, Loss]:
    """A tiny model of Hugging Face's, from a configuration."""
    import transformers as hf

    words = torch.randint(0, WORDS, (batch, length))
    kind, _, implementation = name.partition("_")
    more = {"attn_implementation": implementation} if implementation else {}
    if kind == "gpt2":
        config = hf.GPT2Config(n_layer=1, n_head=4, n_embd=32, vocab_size=WORDS, n_positions=64, **more)
        model = hf.GPT2LMHeadModel(config)
    elif kind == "t5":
        config = hf.T5Config(
            num_layers=1, num_heads=4, d_model=32, d_ff=64, d_kv=8, vocab_size=WORDS, decoder_start_token_id=0
        )
        model = hf.T5ForConditionalGeneration(config)
    else:
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
        sizes |= {"vocab_size": WORDS, "max_position_embeddings": 64, **more}
        if kind == "bert":
            model = hf.BertForMaskedLM(hf.BertConfig(**sizes))
        else:
            model = hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **sizes))
    return model, lambda: model(words, labels=words).loss


def vit(batch: int) -> tuple[nn.Module, Loss]:
    """A tiny vision transformer of Hugging Face's."""
    import transformers as hf

    config = hf.ViTConfig(
        num_hidden_layers=1, num_attention_heads=4, hidden_size=32, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=CLASSES,
    )  # fmt: skip
    model = hf.ViTForImageClassification(config)
    data, target = torch.randn(batch, 3, 32, 32), torch.randint(0, CLASSES, (batch,))
    return model, lambda: model(data, labels=target).loss


def made(name: str, batch: int, length: int) -> tuple[nn.Module, Loss]:
    """Return a model and what computes its loss."""
    torch.manual_seed(0)
    if name == "mlp":
        layers = nn.Sequential(
            nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
        )
        return classifier(layers, batch, 16)
    if name == "convnet":
        return classifier(convnet(), batch, 3, 32, 32)
    if name == "resnet18":
        return classifier(resnet18(), batch, 3, 32, 32)
    if name == "vit":
        return vit(batch)
    if name == "encoder_sequence_first":
        model = EncoderSequenceFirst()
        data, target = torch.randn(length, batch, 32), torch.randint(0, CLASSES, (batch,))
        return model, lambda: functional.cross_entropy(model(data), target)
    return language_model(name, batch, length)


def captured(name: str, batch: int, length: int) -> tuple[Trace, dict[str, int]]:
    """Return the trace of one step, without the optimizer's operators, and what PyTorch's counter says of it."""
    model, loss = made(name, batch, length)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    trace = capture_step(step, model, batch_size=batch, steps=0)
    with FlopCounterMode(display=False) as counter:
        step()
    counts = {str(key): int(value) for key, value in counter.get_flop_counts()["Global"].items()}
    kept = tuple(replace(op, seconds=1e-6) for op in trace.operators if op.phase != "optimizer")
    return replace(trace, operators=kept, software={}, source=""), counts


def shapes(trace: Trace) -> list[list[list[tuple[int, ...]]]]:
    """Return of each operator the shapes that it reads and makes, without single numbers."""
    return [[[t.shape for t in tensors if t.shape] for tensors in (op.inputs, op.outputs)] for op in trace.operators]


def main() -> None:
    """Write everything."""
    DATA.mkdir(exist_ok=True)
    expected: dict[str, Any] = {}
    for name, batch, length, other_batch, other_length in SAMPLES:
        trace, counts = captured(name, batch, length)
        json_format.write(trace, DATA / f"{name}.json.gz")
        expected[name] = {"flops": counts, "batch": [other_batch, shapes(captured(name, other_batch, length)[0])]}
        if length:
            expected[name]["sequence"] = [length, other_length, shapes(captured(name, batch, other_length)[0])]
    text = json.dumps(expected, separators=(",", ":"))
    (DATA / "expected.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
