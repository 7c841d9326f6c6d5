"""Notes over which groups samples are split: ``context_parallel`` of PyTorch gives each rank a part of every sample."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from torch.distributed.tensor.experimental._context_parallel import _attention

from triosim.tracer.distributed.process_groups import ProcessGroups
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required


def install(patches: Patches, groups: ProcessGroups) -> None:
    """Note these groups until the patches are undone."""
    patches.make(_patches(groups))


def _patches(groups: ProcessGroups) -> Iterator[Patch]:
    split = required(_attention, "_context_parallel_buffers")

    @wraps(split)
    def _context_parallel_buffers(mesh: Any, *args: Any, **options: Any) -> Any:
        groups.shares_samples(mesh.get_group().group_name)
        return split(mesh, *args, **options)

    yield Patch(_attention, "_context_parallel_buffers", _context_parallel_buffers)
