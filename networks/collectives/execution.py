"""Running a collective's transfers: its graph laid out once, then walked at each call with a few counters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import simpy

from triosim.errors import SimulationError
from triosim.networks.collectives.algorithm import Pipeline, Place, Transfer


class Send(Protocol):
    """Sends bytes from rank to rank and calls back on delivery; ``latency`` takes the place of the route's."""

    def __call__(
        self, source: Place, destination: Place, nbytes: float, done: Callable[[], object], latency: float | None = None
    ) -> None:
        """Send."""


class Chart:
    """The transfers of a collective and which of them wait for which, laid out in arrays.

    ``followers[first[i]:first[i + 1]]`` are the transfers that wait for transfer i, ``unmet[i]`` is for how many it
    waits itself.
    """

    __slots__ = ("ends", "first", "followers", "ready", "sizes", "unmet")

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self.ends: list[tuple[Place, Place]] = []
        self.sizes = array("d")
        self.unmet = array("i")
        pairs: dict[tuple[Place, Place], tuple[Place, Place]] = {}  # one object for each pair of ranks
        waits: list[tuple[int, ...]] = []
        for transfer in transfers:
            pair = (transfer.source, transfer.destination)
            self.ends.append(pairs.setdefault(pair, pair))
            self.sizes.append(transfer.nbytes)
            self.unmet.append(len(transfer.after))
            waits.append(transfer.after)
        self.ready = array("i", (number for number, unmet in enumerate(self.unmet) if not unmet))
        self._invert(waits)

    def _invert(self, waits: list[tuple[int, ...]]) -> None:
        counts = array("i", bytes(4 * (len(waits) + 1)))
        for after in waits:
            for earlier in after:
                counts[earlier + 1] += 1
        for number in range(len(waits)):
            counts[number + 1] += counts[number]
        self.first = array("i", counts)
        self.followers = array("i", bytes(4 * counts[-1]))
        for number, after in enumerate(waits):
            for earlier in after:
                self.followers[counts[earlier]] = number
                counts[earlier] += 1

    def __len__(self) -> int:
        return len(self.ends)


class Run:
    """One collective on its way through its chart; ``factor`` scales the sizes."""

    __slots__ = ("chart", "event", "factor", "left", "send", "unmet")

    def __init__(self, send: Send, chart: Chart, factor: float, event: simpy.Event) -> None:
        self.send = send
        self.chart = chart
        self.factor = factor
        self.event = event
        self.unmet = array("i", chart.unmet)
        self.left = len(chart)

    def start(self) -> None:
        """Send what waits for nothing."""
        if not self.left:
            raise SimulationError("the algorithm gives no transfers")
        for number in self.chart.ready:
            self._begin(number)

    def _begin(self, number: int) -> None:
        source, destination = self.chart.ends[number]
        self.send(source, destination, self.chart.sizes[number] * self.factor, partial(self._delivered, number))

    def _delivered(self, number: int) -> None:
        chart, unmet = self.chart, self.unmet
        for follower in chart.followers[chart.first[number] : chart.first[number + 1]]:
            unmet[follower] -= 1
            if not unmet[follower]:
                self._begin(follower)
        self.left -= 1
        if not self.left:
            self.event.succeed()


def run_pipeline(send: Send, pipeline: Pipeline, factor: float, event: simpy.Event) -> None:
    """Send over all edges at once; the collective is through when the last one is."""
    left = len(pipeline.edges)
    if not left:
        raise SimulationError("the algorithm gives no transfers")

    def delivered() -> None:
        nonlocal left
        left -= 1
        if not left:
            event.succeed()

    latency = pipeline.latency + pipeline.fill * factor
    for source, destination, nbytes in pipeline.edges:
        send(source, destination, nbytes * factor, delivered, latency)
