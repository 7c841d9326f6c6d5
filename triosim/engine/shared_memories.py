"""Memories that ranks share: the accesses of all of them run one at a time, in the order in which they became ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import simpy

from triosim.tasks import Compute, Handle

if TYPE_CHECKING:
    from triosim.engine.rank_state import RankState


class _Access(NamedTuple):
    rank: RankState
    handle: Handle
    task: Compute


class SharedMemories:
    """Runs the tasks of streams that are called after a shared memory; ``finish`` is called for each that is over."""

    def __init__(self, env: simpy.Environment, finish: Callable[[RankState, Handle], None]) -> None:
        self._env, self._finish = env, finish
        self._queues: dict[str | None, deque[_Access]] = {}

    def begin(self, rank: RankState, handle: Handle, task: Compute) -> None:
        """Take an access that is ready; it starts when those before it, of whatever rank, are over."""
        queue = self._queues.setdefault(task.stream, deque())
        queue.append(_Access(rank, handle, task))
        if len(queue) == 1:
            self._start(queue[0])

    def _start(self, access: _Access) -> None:
        access.handle.started = self._env.now
        self._env.timeout(access.task.seconds, access.task.stream).callbacks.append(self._over)

    def _over(self, event: simpy.Event) -> None:
        """End an access; what its rank accesses next waits behind the others."""
        stream: str = event.value  # type: ignore[assignment]  # the value of our timeout
        queue = self._queues[stream]
        ended = queue.popleft()
        if queue:
            self._start(queue[0])
        self._finish(ended.rank, ended.handle)
