"""Stands in for scripts that start their ranks themselves by ``torch.multiprocessing.spawn``: this process is one of them.

Such a script runs once on each machine, and starts a process for each GPU of it. Each process that captures a rank of a world
runs the script, and of the processes that it starts only its own rank, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.multiprocessing

from triosim.errors import CaptureError
from triosim.tracer.patches import Patch, Patches


class _Over:
    """The processes that ``spawn`` has started, all over."""

    processes: tuple[Any, ...] = ()

    def join(self, *_: Any, **__: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def install(patches: Patches, local_rank: int, local_ranks: int) -> None:
    """Run one of the processes that a script starts, and no other, until the patches are undone."""
    patches.make(_patches(local_rank, local_ranks))


def _patches(local_rank: int, local_ranks: int) -> Iterator[Patch]:
    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        if nprocs != local_ranks:
            what = f"the script starts {nprocs} ranks on a machine, where {local_ranks} are captured"
            raise CaptureError(what, fix=f"capture {nprocs} ranks, or machines of as many: --world {nprocs}")
        fn(local_rank, *args)
        return None if join else _Over()

    module = torch.multiprocessing
    for name in ("spawn", "start_processes"):
        yield Patch(module, name, spawn)
