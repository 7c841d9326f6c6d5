"""Small networks that are captured without a GPU, and what a step of each is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from triosim.tracer.device.script_patches import complete_torchvision

BATCH, LENGTH, WORDS, CLASSES = 4, 16, 96, 10

#: A network on a device, and its loss.
Made = tuple[nn.Module, Callable[[], torch.Tensor]]


def convolutional(device: str) -> Made:
    """Convolutions, normalisation, a residual and a classifier."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

        def forward(self, data: torch.Tensor) -> Any:
            return data + self.body(data)

    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(True), Residual(), nn.Conv2d(8, 16, 3, groups=2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
    ).to(device)
    data, target = torch.randn(BATCH, 3, 16, 16), torch.randint(0, CLASSES, (BATCH,))
    return model, lambda: nn.functional.cross_entropy(model(data.to(device)), target.to(device))


def resnet(device: str) -> Made:
    """torchvision's smallest ResNet; its 50 layers differ in number only."""
    complete_torchvision()
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18(weights=None, num_classes=CLASSES).to(device)
    data, target = torch.randn(BATCH, 3, 64, 64), torch.randint(0, CLASSES, (BATCH,))
    return model, lambda: nn.functional.cross_entropy(model(data.to(device)), target.to(device))


def language(kind: str, device: str, attention: str = "eager") -> Made:
    """A tiny language model of Hugging Face's."""
    complete_torchvision()  # which transformers imports where it is there
    hf = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"vocab_size": WORDS, "max_position_embeddings": 64, "attn_implementation": attention}
    if kind == "gpt2":
        config = hf.GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=WORDS, attn_implementation=attention)
        model = hf.GPT2LMHeadModel(config)
    elif kind == "bert":
        model = hf.BertForMaskedLM(hf.BertConfig(**sizes))
    elif kind == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **sizes))
    else:
        sizes = {"num_layers": 2, "num_heads": 4, "d_model": 32, "d_ff": 64, "d_kv": 8, "vocab_size": WORDS}
        config = hf.T5Config(decoder_start_token_id=0, attn_implementation=attention, **sizes)
        model = hf.T5ForConditionalGeneration(config)
    model = model.to(device)
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    return model, lambda: model(words.to(device), labels=words.to(device)).loss


def train(made: Made, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    """Run training steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        made[1]().backward()
        optimizer.step()


NETWORKS: dict[str, Callable[[str], Made]] = {
    "convolutional": convolutional,
    "resnet": resnet,
    "gpt2": lambda device: language("gpt2", device),
    "bert": lambda device: language("bert", device),
    "t5": lambda device: language("t5", device),
    "llama": lambda device: language("llama", device),
}
