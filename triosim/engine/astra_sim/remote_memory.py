"""The remote memory: latency and bytes over bandwidth, one access at a time for a node or for all where it is shared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from triosim.chakra.inputs.remote_memory_file import MemoryType, RemoteMemoryFile
from triosim.engine.astra_sim.clock import Timers
from triosim.engine.astra_sim.faults import Stopped

_Access = tuple[Timers, int, Callable[[Any], None], Any]


class RemoteMemory:
    """Serves the accesses of all ranks, first come first served."""

    def __init__(self, file: RemoteMemoryFile) -> None:
        self._file = file
        self._waiting: dict[int, deque[_Access]] = {}
        self._busy: set[int] = set()

    def access(self, rank: int, access: _Access) -> None:
        """Begin an access of so many bytes by a rank, or let it wait."""
        if self._file.memory is MemoryType.NONE:
            raise Stopped("there is no remote memory: NO_MEMORY_EXPANSION")
        node = self._file.shared(rank)
        if node is None:
            timers, size, call, argument = access
            timers.after(self._file.time_of(size), call, argument)
        elif node in self._busy:
            self._waiting.setdefault(node, deque()).append(access)
        else:
            self._begin(node, access)

    def _begin(self, node: int, access: _Access) -> None:
        timers, size, call, argument = access
        self._busy.add(node)
        delay = self._file.time_of(size)
        timers.after(delay, call, argument)
        timers.after(delay, self._next, node)  # so what the rank accesses in the same tick waits behind the others

    def _next(self, node: int) -> None:
        self._busy.discard(node)
        if self._waiting.get(node):
            self._begin(node, self._waiting[node].popleft())
