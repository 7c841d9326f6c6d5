"""The base class of networks that call back on delivery, which is cheaper than a SimPy event for each transfer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import simpy

from triosim.networks.base import Network, loaded
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, check, check_size
from triosim.networks.collectives.lowering import CollectiveLowering, Form
from triosim.networks.topology import NodeRef, Topology
from triosim.tasks import CollectiveKind, Communicator


class SendingNetwork(Network):
    """A network whose transfers and collectives are calls of ``send``."""

    def __init__(
        self, env: simpy.Environment, topology: Topology, *, algorithm: str | CollectiveAlgorithm, form: Form
    ) -> None:
        self._lowering = CollectiveLowering(topology, loaded(algorithm), form)
        super().__init__(env, topology, algorithm=self._lowering.algorithm, form=form)

    @abstractmethod
    def send(
        self,
        source: NodeRef,
        destination: NodeRef,
        nbytes: float,
        done: Callable[[], object],
        latency: float | None = None,
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
        self,
        kind: CollectiveKind,
        group: Sequence[int] | Communicator,
        nbytes: float,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> simpy.Event:
        """Run a collective of the ranks of a group; see ``Network.collective``."""
        ranks = group.ranks if isinstance(group, Communicator) else tuple(group)
        root = check(kind, ranks, nbytes, self.topology, root=root, shares=shares)
        if len(ranks) == 1:
            return self.env.timeout(0)
        return self._run(kind, ranks, nbytes, root, shares)

    def _run(
        self,
        kind: CollectiveKind,
        ranks: tuple[int, ...],
        nbytes: float,
        root: int | None,
        shares: Sequence[float] | None,
    ) -> simpy.Event:
        """Run a collective that has been checked, of two ranks or more."""
        return self._lowering.layout(kind, ranks, nbytes, root=root, shares=shares).run(self.env, self.send)
