"""The base class of networks, which deliver bytes between the nodes of a topology.

A plug-in writes ``transfer`` and has collectives too, because the default ``collective`` lowers them to transfers. Whatever
else a network can do is an extension (:mod:`triosim.networks.extensions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import simpy

from triosim import plugins
from triosim.config import Option
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    Group,
    Shares,
    check_size,
    checked_operation,
    latency_of,
)
from triosim.networks.collectives.lowering import CollectiveLowering, Done, Form
from triosim.networks.events import when
from triosim.networks.topology import NodeRef, Topology
from triosim.tasks import CollectiveKind, Communicator

#: How many different collectives a network remembers.
MOST_REMEMBERED = 4096


class Network(ABC):
    """Delivers bytes between the nodes of a topology, on the clock of a SimPy environment.

    ``algorithm`` lowers collectives to transfers: the name of a plug-in, or a ``CollectiveAlgorithm``. ``form`` is ``steps``
    (every transfer of the algorithm by itself; a rank goes on when its data has arrived) or ``pipelined`` (the steady state
    of an algorithm that cuts its data into many chunks: all edges at once, after the latency of filling the pipeline).

    A subclass may use any attribute and method name except ``env``, ``topology``, ``options``, ``transfer`` and ``collective``:
    the rest of what this class keeps is name-mangled.
    """

    #: The options that the constructor reads as keywords, which are checked before.
    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        algorithm: str | CollectiveAlgorithm = "ring",
        form: Form = "pipelined",
    ) -> None:
        self.env = env
        self.topology = topology
        self.__lowering = CollectiveLowering(topology, loaded(algorithm), form)

    @abstractmethod
    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two nodes, given by rank or name; the event fires when the last byte is delivered."""

    def collective(
        self, kind: CollectiveKind, group: Group, nbytes: float, *, root: int | None = None, shares: Shares = None
    ) -> simpy.Event:
        """Run a collective of the ranks of a group; the event fires when all of them are through.

        ``nbytes`` is the tensor for all-reduce, broadcast and reduce, and all ranks' shares together for the others.
        ``shares`` divide it unequally, in the group's order. In an all-to-all they are what every rank sends to each rank, or
        N x N sizes by sender, and ``nbytes`` is the mean of what a rank sends. ``root`` is a rank of the group, by default the
        first. Raises ``TriosimError`` for an unknown or repeated rank, a negative size, or a root outside the group.
        """
        operation = checked_operation(kind, group, nbytes, self.topology, root=root, shares=shares)
        if len(operation.ranks) == 1:
            return self.env.timeout(0)
        return self.__lowering.layout(operation).run(self.env, self.__send)

    def __send(
        self, source: NodeRef, destination: NodeRef, nbytes: float, done: Done, latency: float | None = None
    ) -> None:
        """Send bytes by ``transfer`` and call back on delivery, after ``latency`` where it is longer than the route's."""
        early = 0.0 if latency is None else latency - latency_of(self.topology, source, destination)
        if early > 0:
            self.env.timeout(early).callbacks.append(lambda _: self.__send(source, destination, nbytes, done))
            return
        event = self.transfer(source, destination, nbytes)
        if isinstance(event, simpy.Event) and event.callbacks is None:  # a plug-in that delivers at once
            event = self.env.timeout(0)
        when(event, lambda _: done(), self)


def initialised(network: Network) -> bool:
    """Return whether a network's constructor has called that of ``Network``."""
    return hasattr(network, "_Network__lowering")


class SendingNetwork(Network):
    """The base of our own networks: its transfers and collectives call back on delivery, without a SimPy event for each."""

    def __init__(
        self, env: simpy.Environment, topology: Topology, *, algorithm: str | CollectiveAlgorithm, form: Form
    ) -> None:
        self._lowering = CollectiveLowering(topology, loaded(algorithm), form)
        self._checked: dict[tuple[CollectiveKind, Group, float, int | None], CollectiveOperation] = {}
        super().__init__(env, topology, algorithm=self._lowering.algorithm, form=form)

    @abstractmethod
    def send(
        self, source: NodeRef, destination: NodeRef, nbytes: float, done: Done, latency: float | None = None
    ) -> None:
        """Send bytes between two nodes and call back on delivery; ``latency`` replaces that of the route."""

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two nodes, given by rank or name; the event fires when the last byte is delivered.

        No bytes take the latency alone, and a transfer from a node to itself takes no time. Raises ``SimulationError`` for
        what is no size, ``TopologyError`` for an unknown node or one that cannot be reached.
        """
        check_size(nbytes, "transfer")
        event = self.env.event()
        self.send(source, destination, nbytes, event.succeed)
        return event

    def collective(
        self, kind: CollectiveKind, group: Group, nbytes: float, *, root: int | None = None, shares: Shares = None
    ) -> simpy.Event:
        """Run a collective of the ranks of a group; see ``Network.collective``."""
        operation = self._operation(kind, group, nbytes, root, shares)
        return self.env.timeout(0) if len(operation.ranks) == 1 else self._run(operation)

    def _operation(
        self, kind: CollectiveKind, group: Group, nbytes: float, root: int | None, shares: Shares
    ) -> CollectiveOperation:
        """Return a collective as one value; it is checked once, as most of a step's collectives repeat themselves."""
        if shares is not None or not isinstance(group, (tuple, Communicator)):
            return checked_operation(kind, group, nbytes, self.topology, root=root, shares=shares)
        key = kind, group, nbytes, root
        found = self._checked.get(key)
        if found is None:
            if len(self._checked) >= MOST_REMEMBERED:
                self._checked.clear()
            found = self._checked[key] = checked_operation(kind, group, nbytes, self.topology, root=root)
        return found

    def _run(self, operation: CollectiveOperation) -> simpy.Event:
        return self._lowering.layout(operation).run(self.env, self.send)


def loaded(algorithm: str | CollectiveAlgorithm) -> CollectiveAlgorithm:
    """Return a collective algorithm, given that or its name."""
    if isinstance(algorithm, CollectiveAlgorithm):
        return algorithm
    found: CollectiveAlgorithm = plugins.load("collective_algorithms", algorithm)()
    return found
