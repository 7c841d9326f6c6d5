"""The ring algorithm, and the direct one, in which each rank sends to every other, so many at a time.

Every message moves over the bus before it is sent; what has come in moves over it too, and is reduced where the collective
reduces.
"""

from __future__ import annotations

from collections import deque

from triosim.chakra.nodes import CollectiveType
from triosim.engine.astra_sim.bus import Way
from triosim.engine.astra_sim.collectives.algorithm import AlgorithmRun
from triosim.engine.astra_sim.collectives.lines import Line

_AR, _AG, _RS, _A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)


class RingRun(AlgorithmRun):
    """A ring: each rank sends to the next what it got from the one before."""

    def __init__(self, kind: CollectiveType, line: Line, size: int, *, clockwise: bool) -> None:
        n = len(line)
        self._kind, self._line = kind, line
        self._step = 1 if clockwise else -1
        self._destination, self._source = line.beside(line.rank, self._step), line.beside(line.rank, -self._step)
        self._to_send = {_AR: 2 * (n - 1), _A2A: n * (n - 1) // 2}.get(kind, n - 1)
        self._window = 1
        self._reducing_messages = n - 1
        self._packets: deque[tuple[int, int, int]] = deque()
        self._free = self._plain = self._reducible = self._came = 0
        self._reducing = False
        self._size = size if kind is _AG else size // n
        self.final_size = {_AG: size * n, _RS: size // n}.get(kind, size)

    def start(self) -> None:
        """Move the first messages to the network."""
        for _ in range(self._window):
            self._move()

    def received(self) -> None:
        """Move what has come in."""
        self._came += 1
        self._move()

    def moved(self) -> None:
        """Send the next message, and await one."""
        self._free += 1
        self._exchange()
        self._finish_if_done()

    def _move(self) -> None:
        """Move a message over the bus. They go in rounds: so many that are only sent, then so many that are reduced."""
        if not self._plain and not self._reducible:
            self._plain, self._reducible = self._window, self._reducing_messages
            self._reducing = not self._reducing
        if self._plain:
            self._plain -= 1
            way, reduced = Way.OUT, False
        else:
            way = Way.IN if self._reducible <= self._window else Way.RETURNED
            self._reducible -= 1
            reduced = self._kind is _RS or (self._kind is _AR and self._reducing)
        self._packets.append((self._destination, self._source, self._size))
        self.stage.move(self._size, way, reduced=reduced, fast=self._line.local)
        self._to_the_next()

    def _to_the_next(self) -> None:
        """Choose whom the next message goes to, and from whom one is awaited; in a ring always the same."""

    def _exchange(self) -> None:
        if self._packets and self._to_send and self._free:
            destination, source, size = self._packets.popleft()
            self.stage.send(destination, size)
            self.stage.receive(source, size)
            self._to_send -= 1
            self._free -= 1

    def _finish_if_done(self) -> None:
        if not self._to_send and self._free == self._window:
            self.stage.finish()


class DirectRun(RingRun):
    """Each rank sends to all others, ``window`` of them at a time."""

    def __init__(self, kind: CollectiveType, line: Line, size: int, *, window: int | None) -> None:
        super().__init__(kind, line, size, clockwise=True)
        others = len(line) - 1
        self._window = others if window is None else min(window, others)
        self._reducing_messages = others * self._window if line.local else self._window
        if kind is _A2A:
            self._to_send = others
        self._others = others

    def moved(self) -> None:
        """Send the next message; the second half of an all-reduce begins when all of the first have come in."""
        if self._kind is not _AR or self._to_send > self._others:
            super().moved()
            return
        self._free += 1
        if self._came >= self._others:
            for _ in range(self._window):
                self._exchange()
            self._finish_if_done()

    def _to_the_next(self) -> None:
        self._destination = self._another(self._destination, self._step)
        self._source = self._another(self._source, -self._step)

    def _another(self, rank: int, step: int) -> int:
        """Return the next rank in a direction, but for this one."""
        found = self._line.beside(rank, step)
        return self._line.beside(found, step) if found == self._line.rank else found
