"""Lowers collectives to transfers and sends them: as a graph of transfers that wait for each other, or as a steady state.

The transfers of an algorithm are laid out once, and kept for the next equal collective.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import simpy

from triosim.errors import OptionError, SimulationError, nearest
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    SteadyState,
    Transfer,
    checked_transfers,
)
from triosim.networks.topology import NodeRef, Topology
from triosim.units import format_ranks

Form = Literal["pipelined", "steps"]
_MOST_KEPT = 4_000_000  # transfers of all layouts together


Done: TypeAlias = Callable[[], object]  # called on delivery


class SendFunction(Protocol):
    """Sends bytes from node to node and calls back on delivery; ``latency`` replaces that of the route."""

    def __call__(
        self, source: NodeRef, destination: NodeRef, nbytes: float, done: Done, latency: float | None = None
    ) -> None:
        """Send."""


class TransferGraph:
    """The transfers of a collective and their dependencies, in arrays.

    ``followers[first[i]:first[i + 1]]`` wait for transfer i, which itself waits for ``unmet[i]`` others.
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


class Layout(NamedTuple):
    """The transfers of a collective in one of its two forms; their sizes are to be multiplied by ``factor``."""

    transfers: SteadyState | TransferGraph
    factor: float

    def edges(self) -> Iterable[tuple[NodeRef, NodeRef]]:
        """Return source and destination of each transfer."""
        if isinstance(self.transfers, SteadyState):
            return [edge[:2] for edge in self.transfers.edges]
        return self.transfers.ends

    @property
    def latency(self) -> float:
        """How long it takes until the bytes of a steady state flow."""
        assert isinstance(self.transfers, SteadyState)
        return self.transfers.latency + self.transfers.fill * self.factor

    def run(self, env: simpy.Environment, send: SendFunction) -> simpy.Event:
        """Send everything; the event fires when all of it is delivered."""
        event = env.event()
        if isinstance(self.transfers, SteadyState):
            run_steady_state(send, self.transfers, self.factor, event)
        else:
            GraphExecution(send, self.transfers, self.factor, event).start()
        return event


class CollectiveLowering:
    """Lays out collectives by an algorithm in a form: ``pipelined`` (its steady state) or ``steps`` (each transfer)."""

    def __init__(self, topology: Topology, algorithm: CollectiveAlgorithm, form: Form) -> None:
        if form not in get_args(Form):
            raise OptionError(f"unknown form of collectives '{form}'", fix=nearest(str(form), get_args(Form)))
        self.topology = topology
        self.algorithm = algorithm
        self.form = form
        self._layouts: dict[tuple[CollectiveAlgorithm, CollectiveOperation], SteadyState | TransferGraph] = {}
        self._kept = 0  # transfers in all layouts

    def layout(self, operation: CollectiveOperation) -> Layout:
        """Return the transfers of a collective that ``check`` has accepted."""
        algorithm = self.algorithm.choose(operation, self.topology)
        proportional = algorithm.proportional or (algorithm.steady and self.form == "pipelined")
        proportional = proportional and operation.shares is None
        key = operation._replace(nbytes=1.0) if proportional else operation
        found = self._layouts.get((algorithm, key))
        if found is None:
            if self.form == "pipelined":
                found = algorithm.steady_state(key, self.topology)
            else:
                found = TransferGraph(checked_transfers(algorithm, key, self.topology))
            if not _count(found):
                name = type(algorithm).__qualname__
                raise SimulationError(
                    f"{name}: gives no transfers for {key.kind} of ranks {format_ranks(key.ranks, most=3)}"
                )
            self._keep((algorithm, key), found)
        return Layout(found, operation.nbytes if proportional else 1.0)

    def _keep(self, key: tuple[CollectiveAlgorithm, CollectiveOperation], layout: SteadyState | TransferGraph) -> None:
        """Keep a layout, and drop the oldest ones where there are too many transfers."""
        count = _count(layout)
        while self._layouts and self._kept + count > _MOST_KEPT:
            self._kept -= _count(self._layouts.pop(next(iter(self._layouts))))
        self._layouts[key] = layout
        self._kept += count


def _count(layout: SteadyState | TransferGraph) -> int:
    return len(layout.edges) if isinstance(layout, SteadyState) else len(layout.ends)
