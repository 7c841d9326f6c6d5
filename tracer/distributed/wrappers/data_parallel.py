"""Lets ``DataParallel`` split a batch over fake GPUs: in PyTorch its copies between GPUs are C++, built with CUDA alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import _functions

from triosim.tracer.patches import Patch, Patches


def install(patches: Patches) -> None:
    """Replace these copies until the patches are undone."""
    patches.make(_patches())


def _patches() -> Iterator[Patch]:
    yield Patch(torch._C, "_scatter", _scatter, "add")
    yield Patch(torch._C, "_gather", _gather, "add")
    yield Patch(torch._C, "_broadcast", _broadcast, "add")
    yield Patch(torch._C, "_broadcast_coalesced", _broadcast_coalesced, "add")
    yield Patch(_functions, "_get_stream", lambda device: None)  # copies run where the batch is computed


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Any
) -> list[torch.Tensor]:
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [part.to(f"cuda:{device}", non_blocking=True) for part, device in zip(parts, devices, strict=False)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    device = "cpu" if destination == -1 else f"cuda:{destination or 0}"
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(f"cuda:{device}") for device in devices]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices]
