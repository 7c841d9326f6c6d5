"""Writes data/parts/: captures of tiny whole models, and the shapes in captures of one rank's part of each.

Run by hand, where PyTorch and transformers are: python tests/extrapolators/tensor/capture_parts.py
A part is the model itself with 1/N of the heads, of the inner features and of the vocabulary. The sizes are chosen to mislead:
batch, sequence, heads and features of a head are equal, and so are hidden size, inner features, vocabulary and tokens.
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

from triosim.trace import Trace
from triosim.trace.formats.native import trace_json as json_format
from triosim.tracer import capture

_LIBRARY = torch.library.Library("torchvision", "DEF")  # what a torchvision for another build of PyTorch misses
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import transformers as hf  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

DATA = Path(__file__).parent / "data" / "parts"
LENGTH, HIDDEN = 4, 16
Loss = Callable[[], torch.Tensor]

#: Model, batch size and ranks.
SAMPLES = (
    ("gpt2", 4, 2),
    ("gpt2_eager", 4, 2),
    ("gpt2_on_four", 4, 4),
    ("llama", 4, 2),
    ("qwen3", 4, 2),
    ("phi3", 4, 2),
    ("network", 8, 2),
    ("llama_on_eight", 4, 8),  # twice as many ranks as heads of keys and values
    ("gemma", 4, 2),  # one head of keys and values
    ("mixtral", 4, 2),
)


class Network(nn.Module):
    """Convolutions and linear layers in pairs, one of which a residual goes around, square ones among them."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        part = width // ranks
        self.first = nn.Conv2d(3, part, 3, padding=1)
        self.norm = nn.BatchNorm2d(part)
        self.second = nn.Conv2d(part, width, 3, padding=1)
        self.third = nn.Conv2d(width, part, 3, padding=1)
        self.flat = nn.Linear(part * 16, width)
        self.up, self.down = nn.Linear(width, part), nn.Linear(part, width)
        self.head = nn.Linear(width, part)

    def forward(self, data: torch.Tensor) -> Any:
        data = functional.relu(self.second(functional.relu(self.norm(self.first(data)))))
        data = functional.max_pool2d(functional.relu(self.third(data)), 2)
        data = functional.relu(self.flat(data.flatten(1)))
        return self.head(data + self.down(functional.relu(self.up(data))))


def gpt2(ranks: int, heads: int, implementation: str) -> nn.Module:
    """Return GPT-2, with 1/N of each layer's inner features."""
    hidden, part = heads * LENGTH, heads * LENGTH // ranks
    config = hf.GPT2Config(
        n_layer=1, n_head=heads, n_embd=hidden, vocab_size=part, n_positions=64, attn_implementation=implementation
    )
    model = hf.GPT2LMHeadModel(config)
    for block in model.transformer.h:
        attention, inner = block.attn, block.mlp
        attention.c_attn, attention.c_proj = Conv1D(3 * part, hidden), Conv1D(hidden, part)
        attention.split_size, attention.num_heads = part, heads // ranks
        inner.c_fc, inner.c_proj = Conv1D(4 * part, hidden), Conv1D(hidden, 4 * part)
    return model


def made(name: str, batch: int, ranks: int) -> tuple[nn.Module, Loss]:
    """Return a model and what computes its loss."""
    if name == "network":
        network = Network(8, ranks)
        images, target = torch.randn(batch, 3, 8, 8), torch.randint(0, 8 // ranks, (batch,))
        return network, lambda: functional.cross_entropy(network(images), target)
    if name.startswith("gpt2"):
        model = gpt2(ranks, 8 if name == "gpt2_on_four" else 4, "eager" if name == "gpt2_eager" else "sdpa")
    else:
        sizes = {"num_hidden_layers": 1, "hidden_size": HIDDEN, "max_position_embeddings": 64, "pad_token_id": 0}
        heads = 1 if name == "gemma" else max(4 // ranks, 1)
        queries = 16 if name == "llama_on_eight" else 8
        sizes |= {"num_attention_heads": queries // ranks, "num_key_value_heads": heads, "head_dim": LENGTH}
        sizes |= {"intermediate_size": HIDDEN // ranks, "vocab_size": HIDDEN // ranks}
        kind = {"qwen3": "Qwen3", "phi3": "Phi3", "gemma": "Gemma", "mixtral": "Mixtral"}.get(name, "Llama")
        sizes |= {"num_local_experts": 4} if name == "mixtral" else {}
        model = getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**sizes))
    words = torch.randint(0, model.config.vocab_size, (batch, LENGTH))
    return model, lambda: model(words, labels=words).loss


def captured(name: str, batch: int, ranks: int) -> Trace:
    """Return the trace of one step with Adam."""
    torch.manual_seed(0)
    model, loss = made(name, batch, ranks)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step()
    trace = capture(step, model, batch_size=batch)
    kept = tuple(replace(op, seconds=1e-6, host_seconds=None, busy_seconds=None) for op in trace.operators)
    return replace(trace, operators=kept, software={}, source="")


def main() -> None:
    """Write everything."""
    DATA.mkdir(parents=True, exist_ok=True)
    expected: dict[str, Any] = {}
    for name, batch, ranks in SAMPLES:
        json_format.write(captured(name, batch, 1), DATA / f"{name}.json.gz")
        part = captured(name, batch, ranks)
        shapes = [[[t.shape for t in some if t.shape] for some in (op.inputs, op.outputs)] for op in part.operators]
        expected[name] = {"ranks": ranks, "names": [op.name for op in part.operators], "shapes": shapes}
    text = json.dumps(expected, separators=(",", ":"))
    (DATA / "expected.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
