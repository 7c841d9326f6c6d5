"""Lets ``DataParallel`` run on a fake GPU: in PyTorch its copies between GPUs are C++, built with CUDA alone.

Over several GPUs it would run threads of one process on them, which is not simulated.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import _functions

from triosim.errors import CaptureError
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.script_lines import script_line


def install(patches: Patches) -> None:
    """Replace these copies until the patches are undone."""
    patches.make(_patches())


def _patches() -> Iterator[Patch]:
    yield Patch(importlib.import_module("torch.nn.parallel.data_parallel"), "replicate", _refuse_replicas)
    yield Patch(torch._C, "_scatter", _scatter, "add")
    yield Patch(torch._C, "_gather", _gather, "add")
    yield Patch(torch._C, "_broadcast", _broadcast, "add")
    yield Patch(torch._C, "_broadcast_coalesced", _broadcast_coalesced, "add")
    yield Patch(_functions, "_get_stream", lambda device: None)  # copies run where the batch is computed


def _refuse_replicas(module: Any, devices: Sequence[Any], *_: Any, **__: Any) -> None:
    raise CaptureError(
        f"DataParallel runs on {len(devices)} GPUs in threads of one process, which is not simulated",
        where=script_line(),
        fix="use DistributedDataParallel, or one GPU: no --world",
    )


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
