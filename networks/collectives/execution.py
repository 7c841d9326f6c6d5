"""Execution of a collective's transfers on a network: as a graph of dependent transfers, or as a steady state."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeAlias

import simpy

from triosim.errors import SimulationError
from triosim.networks.collectives.algorithm import SteadyState, Transfer
from triosim.networks.topology import NodeRef

Done: TypeAlias = Callable[[], object]  # called on delivery


class SendFunction(Protocol):
    """Sends bytes from node to node and calls back on delivery; ``latency`` replaces that of the route."""

    def __call__(
        self, source: NodeRef, destination: NodeRef, nbytes: float, done: Done, latency: float | None = None
    ) -> None:
        """Send."""


class TransferGraph:
    """The transfers of a collective and their dependencies, in arrays.

    ``followers[first[i]:first[i + 1]]`` are the transfers that wait for transfer i; ``unmet[i]`` is the number of those that
    transfer i itself waits for.
    """

    __slots__ = ("ends", "first", "followers", "ready", "sizes", "unmet")

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self.ends: list[tuple[NodeRef, NodeRef]] = []
        self.sizes = array("d")
        self.unmet = array("i")
        pairs: dict[tuple[NodeRef, NodeRef], tuple[NodeRef, NodeRef]] = {}  # one object for each pair of nodes
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
        """Turn "waits for" into "is waited for by"."""
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


class GraphExecution:
    """One collective that is being sent, transfer by transfer; ``factor`` scales the sizes of its graph."""

    __slots__ = ("event", "factor", "graph", "left", "send", "unmet")

    def __init__(self, send: SendFunction, graph: TransferGraph, factor: float, event: simpy.Event) -> None:
        self.send = send
        self.graph = graph
        self.factor = factor
        self.event = event
        self.unmet = array("i", graph.unmet)
        self.left = len(graph.ends)

    def start(self) -> None:
        """Send the transfers that wait for nothing."""
        if not self.left:
            raise SimulationError("the algorithm gives no transfers")
        for number in self.graph.ready:
            self._begin(number)

    def _begin(self, number: int) -> None:
        source, destination = self.graph.ends[number]
        self.send(source, destination, self.graph.sizes[number] * self.factor, partial(self._delivered, number))

    def _delivered(self, number: int) -> None:
        graph, unmet = self.graph, self.unmet
        for follower in graph.followers[graph.first[number] : graph.first[number + 1]]:
            unmet[follower] -= 1
            if not unmet[follower]:
                self._begin(follower)
        self.left -= 1
        if not self.left:
            self.event.succeed()


def run_steady_state(send: SendFunction, steady: SteadyState, factor: float, event: simpy.Event) -> None:
    """Send over all edges at once; the event fires when the last edge has delivered its bytes."""
    if not steady.edges:
        raise SimulationError("the algorithm gives no transfers")
    delivered = after_last(len(steady.edges), event)
    latency = steady.latency + steady.fill * factor
    for source, destination, nbytes in steady.edges:
        send(source, destination, nbytes * factor, delivered, latency)


def after_last(count: int, event: simpy.Event) -> Done:
    """Return what to call on each of so many deliveries; the event fires at the last."""
    left = count

    def delivered() -> None:
        nonlocal left
        left -= 1
        if not left:
            event.succeed()

    return delivered
