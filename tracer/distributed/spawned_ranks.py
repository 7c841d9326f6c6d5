"""Stands in for scripts that start their ranks themselves, by ``torch.multiprocessing``: this process is one of them.

Such a script runs once on each machine, and starts a process for each GPU of it. Each process that captures a rank of a world
runs the script, and of the processes that it starts only its own rank, in place. A process is a rank where its first argument,
or the one called ``rank`` or ``local_rank``, is how many were started before it; others are started as they are.
"""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.process
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed
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


class _Processes:
    """The ranks that a script starts as processes of their own; each is over when ``start`` returns."""

    def __init__(self, local_rank: int, local_ranks: int) -> None:
        self._local_rank = local_rank
        self._local_ranks = local_ranks
        self._started = 0

    def patches(self) -> Iterator[Patch]:
        """Yield patches of what a script does with a process."""
        owner = multiprocessing.process.BaseProcess
        start, join, is_alive = owner.start, owner.join, owner.is_alive
        exitcode: Any = owner.exitcode

        def run_or_start(process: Any) -> None:
            if not self._is_next_rank(process):
                start(process)
                return
            number, self._started = self._started, self._started + 1
            process._ran_in_place = True
            if number >= self._local_ranks:
                raise _other_ranks(number + 1, self._local_ranks)
            if number == self._local_rank:
                process.run()

        yield Patch(owner, "start", run_or_start)
        yield Patch(owner, "join", lambda one, timeout=None: None if _is_over(one) else join(one, timeout))
        yield Patch(owner, "is_alive", lambda one: not _is_over(one) and is_alive(one))
        yield Patch(owner, "exitcode", property(lambda one: 0 if _is_over(one) else exitcode.fget(one)))

    def _is_next_rank(self, process: Any) -> bool:
        named = [process._kwargs[name] for name in ("rank", "local_rank") if name in process._kwargs]
        given = [*process._args[:1], *named]
        is_next = any(type(one) is int and one == self._started for one in given)
        if self._started == 0 and torch.distributed.is_initialized():
            return False  # this process is a rank already
        return is_next and self._local_ranks > 1


def install(patches: Patches, local_rank: int, local_ranks: int) -> None:
    """Run one of the processes that a script starts, and no other, until the patches are undone."""
    patches.make(_patches(local_rank, local_ranks))
    patches.make(_Processes(local_rank, local_ranks).patches())


def _patches(local_rank: int, local_ranks: int) -> Iterator[Patch]:
    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        if nprocs != local_ranks:
            raise _other_ranks(nprocs, local_ranks)
        fn(local_rank, *args)
        return None if join else _Over()

    # The process of a rank may be a fork itself, for which that is chosen; a script chooses for its own processes.
    yield Patch(multiprocessing.context._default_context, "_actual_context", None)  # type: ignore[attr-defined]
    module = torch.multiprocessing
    for name in ("spawn", "start_processes"):
        yield Patch(module, name, spawn)


def _is_over(process: Any) -> bool:
    return getattr(process, "_ran_in_place", False)


def _other_ranks(started: int, local_ranks: int) -> CaptureError:
    what = f"the script starts {started} ranks on a machine, where {local_ranks} are captured"
    return CaptureError(what, fix=f"capture {started} ranks, or machines of as many: --world {started}")
