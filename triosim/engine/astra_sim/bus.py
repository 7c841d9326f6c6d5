"""A rank's own bus between NPU and NIC: a fixed delay per message, and the time that local memory takes to reduce one."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from triosim.chakra.inputs.system_file import SharedBus
from triosim.engine.astra_sim.clock import Timers
from triosim.engine.astra_sim.shared_bus import BusPair, Request

_FAST = 10  # ns, in the rings of communicator groups


class Way(IntEnum):
    """Which way a message moves: out to the NIC, in from it, or in and back out again to be sent on."""

    OUT = 0
    IN = 1
    RETURNED = 2


class Bus:
    """Moves messages; one that is reduced is then written once and read twice."""

    def __init__(self, timers: Timers, delay: int, memory_bandwidth: float, shared: SharedBus | None) -> None:
        self._timers, self._delay, self._bandwidth = timers, delay, memory_bandwidth
        self._shared = None if shared is None else BusPair.of_npu(timers, shared)

    def move(self, size: int, way: Way, moved: Callable[[Any], None], *, reduced: bool, fast: bool) -> None:
        """Move a message, and call a function when it is moved and, if it is to be, reduced."""
        done: tuple[Callable[[Any], None], Any] = (self._reduce, (size, moved)) if reduced else (moved, None)
        if fast or self._shared is None:
            self._timers.after(_FAST if fast else self._delay, *done)
            return
        side = self._shared.npu if way is Way.OUT else self._shared.nic
        side.request(Request(size, *done, processed=reduced, sent_back=way is Way.RETURNED))

    def _reduce(self, what: tuple[int, Callable[[Any], None]]) -> None:
        size, moved = what
        once = int(size / self._bandwidth * 1e9) if self._bandwidth else 0
        self._timers.after(3 * once, moved, None)
