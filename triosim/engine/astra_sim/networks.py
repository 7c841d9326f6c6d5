"""ASTRA-sim's two analytical networks: one on which messages do not meet, and one that stores and forwards whole messages.

A GB/s of ``network.yml`` is 2^30 bytes a second. Ranks are numbered along the first dimension first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from triosim.chakra.inputs.network_file import NetworkFile
from triosim.engine.astra_sim.clock import Clock
from triosim.engine.astra_sim.faults import Stopped

Arrived = Callable[[Any], None]


class AstraNetwork(Protocol):
    """What carries messages."""

    @property
    def dimension_bytes(self) -> Sequence[int]:
        """The bytes of all messages, by the dimension that they crossed."""

    def send(self, source: int, destination: int, size: int, arrived: Arrived, argument: Any) -> None:
        """Carry a message, and call a function with an argument when it is there."""


class UnawareNetwork:
    """Congestion-unaware: hops times latency and bytes over bandwidth, whatever else is on its way."""

    def __init__(self, clock: Clock, file: NetworkFile) -> None:
        self._clock, self._file = clock, file
        self._costs: dict[tuple[int, int], tuple[float, float, int]] = {}
        self.dimension_bytes = [0] * len(file.dimensions)

    def send(self, source: int, destination: int, size: int, arrived: Arrived, argument: Any) -> None:
        """Carry a message; only the first dimension in which the two ranks differ is paid."""
        cost = self._costs.get((source, destination))
        if cost is None:
            cost = self._costs[source, destination] = self.cost(source, destination)
        self.dimension_bytes[cost[2]] += size
        self._clock.at(self._clock.now + int(cost[0] + size / cost[1]), arrived, argument)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ranks of each dimension."""
        return tuple(one.npus for one in self._file.dimensions)

    def cost(self, source: int, destination: int) -> tuple[float, float, int]:
        """Return the latency in ns of all hops, bytes per ns, and the dimension."""
        _check(source, destination, self._file)
        for number, dimension in enumerate(self._file.dimensions):
            a, b = source % dimension.npus, destination % dimension.npus
            if a != b:
                around = min((a - b) % dimension.npus, (b - a) % dimension.npus)
                hops = {"Ring": around, "Switch": 2}.get(dimension.block, 1)
                return hops * dimension.latency, dimension.bytes_per_ns, number
            source, destination = source // dimension.npus, destination // dimension.npus
        raise AssertionError("two ranks differ in some dimension")


class AwareNetwork:
    """Congestion-aware: each link sends one whole message after another, first come first served."""

    def __init__(self, clock: Clock, file: NetworkFile) -> None:
        if len(file.dimensions) > 1:
            raise Stopped("the congestion-aware network takes one dimension")
        (self._dimension,) = file.dimensions
        if self._dimension.block == "Ring" and self._dimension.npus == 2:
            raise Stopped("the congestion-aware network takes no ring of two")
        self._clock, self._file = clock, file
        self._links: dict[tuple[int, int], _Link] = {}
        self.dimension_bytes = [0]

    def send(self, source: int, destination: int, size: int, arrived: Arrived, argument: Any) -> None:
        """Carry a message link by link."""
        _check(source, destination, self._file)
        self.dimension_bytes[0] += size
        self._forward((self._route(source, destination), 0, size, arrived, argument))

    def _forward(self, message: tuple[list[int], int, int, Arrived, Any]) -> None:
        """Put a message on its next link, or deliver it."""
        route, at, size, arrived, argument = message
        if at == len(route) - 1:
            arrived(argument)
            return
        ends = route[at], route[at + 1]
        link = self._links.get(ends)
        if link is None:
            link = self._links[ends] = _Link(self._clock, self._dimension.latency, self._dimension.bytes_per_ns)
        link.send(size, self._forward, (route, at + 1, size, arrived, argument))

    def _route(self, source: int, destination: int) -> list[int]:
        """Return the devices on the way; the switch has the number after the last rank's."""
        npus = self._dimension.npus
        if self._dimension.block == "Switch":
            return [source, npus, destination]
        if self._dimension.block != "Ring":
            return [source, destination]
        clockwise = (destination - source) % npus
        step = 1 if clockwise <= npus - clockwise else -1
        return [(source + step * hop) % npus for hop in range(min(clockwise, npus - clockwise) + 1)]


class _Link:
    """A link in one direction, with the messages that wait for it."""

    def __init__(self, clock: Clock, latency: float, bytes_per_ns: float) -> None:
        self._clock, self._latency, self._bytes_per_ns = clock, latency, bytes_per_ns
        self._busy = False
        self._waiting: deque[tuple[int, Arrived, Any]] = deque()

    def send(self, size: int, arrived: Arrived, argument: Any) -> None:
        if self._busy:
            self._waiting.append((size, arrived, argument))
            return
        self._busy = True
        now, serialization = self._clock.now, size / self._bytes_per_ns
        self._clock.at(now + int(self._latency + serialization), arrived, argument)
        self._clock.at(now + int(serialization), self._free, None)

    def _free(self, _: None) -> None:
        self._busy = False
        if self._waiting:
            self.send(*self._waiting.popleft())


def _check(source: int, destination: int, file: NetworkFile) -> None:
    if source == destination:
        raise Stopped(f"rank {source} sends to itself")
    if destination >= ranks_of(file):
        raise Stopped(f"rank {destination}, to which rank {source} sends, is not on the network")


def ranks_of(file: NetworkFile) -> int:
    """Return how many ranks a network has."""
    return prod(dimension.npus for dimension in file.dimensions)
