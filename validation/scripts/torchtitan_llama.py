"""Train a Llama by a script of ``examples/train``, but with the operators that torchtitan's Llama had in October 2024.

Norms are made of single operators, keys and values are repeated for each of the heads that share them, and positions turn
complex numbers. What is kept for the backward pass depends on it.

torchrun --nproc-per-node 4 torchtitan_llama.py fsdp2.py --model 70b --sequence 8192 --checkpoint
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "train"))
import transformer


class Norm(nn.Module):
    """A root-mean-square norm that goes back to the input's type before it is scaled."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight

    def reset_parameters(self) -> None:
        """Begin with a weight of one."""
        nn.init.ones_(self.weight)


class Attention(transformer.Attention):
    """Causal attention in which every head has keys and values of its own."""

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Attend; ``x`` has the shape (batch, length, width), ``turn`` is what ``rotation`` returns."""
        query, key, value = (made(x).unflatten(-1, (-1, self.width)) for made in (self.query, self.key, self.value))
        query, key = rotated(query, turn), rotated(key, turn)
        times = query.shape[2] // key.shape[2]
        key, value = (one[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3) for one in (key, value))
        seen = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        return self.output(seen.transpose(1, 2).flatten(-2))


def rotation(config: transformer.Config, length: int, device: torch.device | None = None) -> Tensor:
    """Return the turns of positions as complex numbers: (length, width of a head / 2)."""
    return torch.view_as_complex(angles(config, length, device))


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of ``x``, of the shape (batch, length, heads, size)."""
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turn[None, :, None]
    return torch.view_as_real(turned).flatten(-2).type_as(x)


angles = transformer.rotation
transformer.Attention, transformer.rotation = Attention, rotation
nn.RMSNorm = Norm

if __name__ == "__main__":
    script = sys.argv.pop(1)
    importlib.import_module(Path(script).stem).main()
