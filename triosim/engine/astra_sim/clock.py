"""The clock of whole nanoseconds, and the timers of a rank on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from triosim.engine.astra_sim.faults import Stopped, Thrown


class Clock:
    """Calls functions at their ticks; those of one tick in the order in which they were put in."""

    def __init__(self) -> None:
        self.now = 0
        self._ticks: list[int] = []
        self._events: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}

    def at(self, tick: int, call: Callable[[Any], None], argument: Any) -> None:
        """Call a function with an argument at a tick; at the current one, after all that is already there."""
        events = self._events.get(tick)
        if events is None:
            self._events[tick] = [(call, argument)]
            heapq.heappush(self._ticks, tick)
        else:
            events.append((call, argument))

    def run(self) -> None:
        """Go from tick to tick until there is none. Raises ``Stopped`` where ASTRA-sim's process ends."""
        if self._ticks and self._ticks[0] == 0:
            raise Stopped(
                "something takes no time at tick 0, as with an endpoint-delay of 0, which ASTRA-sim's queue refuses"
            )
        while self._ticks:
            self.now = heapq.heappop(self._ticks)
            for call, argument in self._events[self.now]:  # may grow meanwhile
                call(argument)
            del self._events[self.now]


class Timers:
    """The timers of one rank: all of a tick happen together, at the place of the first that was set."""

    def __init__(self, clock: Clock, thrown: Callable[[Thrown], None]) -> None:
        self.clock = clock
        self._thrown = thrown
        self._events: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}

    def after(self, delay: int, call: Callable[[Any], None], argument: Any) -> None:
        """Call a function with an argument after a delay in ns."""
        tick = self.clock.now + delay
        events = self._events.get(tick)
        if events is None:
            self._events[tick] = [(call, argument)]
            self.clock.at(tick, self._run, tick)
        else:
            events.append((call, argument))

    def _run(self, tick: int) -> None:
        for call, argument in self._events[tick]:
            try:
                call(argument)
            except Thrown as error:  # ASTRA-sim prints "a callable is removed before call", and goes on
                self._thrown(error)
        del self._events[tick]
