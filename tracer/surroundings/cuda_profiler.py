"""Calls by which a script steers NVIDIA's own profilers (``torch.cuda.profiler``, NVTX): they do nothing, as without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.cuda import nvtx
from torch.cuda import profiler as cuda_profiler

from triosim.tracer.patches import Patch, Patches


def install(patches: Patches) -> None:
    """Let these calls do nothing until the patches are undone."""
    patches.make(_patches())


class _Succeeds:
    """A library whose functions all return 0: success, or the depth of a range."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def _patches() -> Iterator[Patch]:
    library = _Succeeds()
    yield Patch(nvtx, "_nvtx", library)
    for owner in (torch.cuda, cuda_profiler):
        yield Patch(owner, "cudart", lambda: library)
        yield Patch(owner, "check_error", lambda result: None)
