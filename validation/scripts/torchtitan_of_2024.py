"""Train with torchtitan, whose norms are those of its published rows of December 2024: products and means in single precision.

torchtitan takes ``torch.nn.RMSNorm`` since, one kernel in PyTorch 2.13. The arguments are torchtitan's own.
"""

import torch
import torchtitan.train
from torch import nn


class RMSNorm(nn.Module):
    """The norm of Zhang and Sennrich (2019), with an operator for each of its parts."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self) -> None:
        """Begin as PyTorch's norm does."""
        nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x over its root mean square, times the weight."""
        full = x.float()
        inverse = torch.rsqrt(full.square().mean(-1, keepdim=True) + self.eps)
        return (full * inverse).to(x.dtype) * self.weight


if __name__ == "__main__":
    nn.RMSNorm = RMSNorm  # type: ignore[assignment,misc]
    torchtitan.train.main(torchtitan.train.Trainer)
