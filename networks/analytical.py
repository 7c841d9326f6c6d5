"""The analytical network: closed forms, no contention, for sweeps over large systems.

A transfer takes the latency of its route and its bytes over the least bandwidth on it (Hockney 1994). A collective takes
the latency of its algorithm and what its busiest link needs for the bytes that the algorithm sends over it, with all its
chunks under way; along several dimensions that is the formula of ASTRA-sim 2.0 (IV-B). An access of a memory pool takes what
its pipeline takes when all GPUs access it at once (IV-D).
"""

from __future__ import annotations

from collections.abc import Iterable

import simpy

from triosim.networks.base import Network, loaded
from triosim.networks.calibration.calibrated_times import CalibratedNetwork, calibrated_collectives
from triosim.networks.calibration.deepep import DeepEPCollectives
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    Cost,
    Group,
    Ranks,
    Shares,
    check_size,
    checked_operation,
    ranks_of,
)
from triosim.networks.collectives.algorithms.auto import is_auto
from triosim.networks.collectives.algorithms.hierarchical import offset
from triosim.networks.extensions import ContentionFree, GatheringNetwork, TransportNetwork
from triosim.networks.topology import NodeRef, Topology
from triosim.tasks import CollectiveKind, DeepEP, ExpertLibrary, Tier


class AnalyticalNetwork(Network, ContentionFree, CalibratedNetwork, TransportNetwork, GatheringNetwork):
    """Closed-form times of transfers and collectives, each as if it were alone; the routes of a group are examined once.

    ``algorithm`` is a name or a ``CollectiveAlgorithm``; without one it is ``auto``, with which collectives on a calibrated
    topology take what was measured. There is one form of collectives, the pipelined one.
    """

    def __init__(
        self, env: simpy.Environment, topology: Topology, *, algorithm: str | CollectiveAlgorithm | None = None
    ) -> None:
        self._algorithm = loaded("auto" if algorithm is None else algorithm)
        super().__init__(env, topology, algorithm=self._algorithm)
        self.calibrated = calibrated_collectives(topology) if is_auto(algorithm) else None
        machine = None if self.calibrated is None else self.calibrated.measured_on
        self._deepep = DeepEPCollectives(topology, machine)
        self._known: dict[tuple[CollectiveKind, Ranks, int | None], list[Cost] | None] = {}

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """Send bytes between two nodes, given by rank or name; the event fires when the last byte is delivered."""
        check_size(nbytes, "transfer")
        latency, bandwidth = self.topology.latency_and_bandwidth(source, destination)
        pool = self.topology.pool_at(source) or self.topology.pool_at(destination)
        return self.env.timeout(latency + (nbytes / bandwidth if pool is None else pool.access_seconds(nbytes)))

    def gather_from(self, tier: Tier, ranks: tuple[int, ...], nbytes: float) -> simpy.Event:
        """Load a tensor to all ranks through switches that gather its shares; see ``GatheringNetwork``."""
        memory = self.topology.memory_of(ranks[0], tier)
        assert memory is not None, "checked before the run"
        pool = self.topology.pool_at(memory)
        assert pool is not None, "checked before the run"
        links = [link for rank in ranks for link in self.topology.route(memory, rank)]
        gpus = {self.topology.node(rank) for rank in ranks}
        nodes = {link.source for link in links if link.destination in gpus}
        latency, _ = self.topology.latency_and_bandwidth(memory, ranks[0])  # the same for all of a pool
        return self.env.timeout(latency + pool.gather_seconds(nbytes, len(ranks), len(nodes)))

    def collective(
        self, kind: CollectiveKind, group: Group, nbytes: float, *, root: int | None = None, shares: Shares = None
    ) -> simpy.Event:
        """Run a collective of the ranks of a group; see ``Network.collective``."""
        return self.env.timeout(self.seconds(kind, group, nbytes, root=root, shares=shares))

    def exchange(self, transport: DeepEP, ranks: tuple[int, ...]) -> simpy.Event:
        """Run an all-to-all of a group by its transport; see ``TransportNetwork``."""
        return self.env.timeout(self._deepep.seconds(ranks, transport))

    def transport_notes(self, library: ExpertLibrary) -> Iterable[str]:
        """Return what a reader should know of the times of transports; see ``TransportNetwork``."""
        return self._deepep.notes(library)

    def seconds(
        self, kind: CollectiveKind, group: Group, nbytes: float, *, root: int | None = None, shares: Shares = None
    ) -> float:
        """Return what a collective takes, without running it."""
        if self.calibrated is not None:
            measured = self._measured(kind, group, nbytes, root, shares)
            if measured is not None:
                return measured
        if shares is not None:
            operation = checked_operation(kind, group, nbytes, self.topology, root=root, shares=shares)
            return 0.0 if len(operation.ranks) == 1 else self._uncached(operation)
        check_size(nbytes, kind)
        key = (kind, ranks_of(group), root)
        if key not in self._known:
            self._known[key] = self._costs(checked_operation(kind, group, nbytes, self.topology, root=root))
        costs = self._known[key]
        if costs is None:
            return self._uncached(checked_operation(kind, group, nbytes, self.topology, root=root))
        return min(cost.latency + cost.seconds * nbytes for cost in costs)

    def _uncached(self, operation: CollectiveOperation) -> float:
        cost = self._algorithm.cost(operation, self.topology)
        return cost.latency + cost.seconds

    def _measured(
        self, kind: CollectiveKind, group: Group, nbytes: float, root: int | None, shares: Shares
    ) -> float | None:
        """Return what a collective takes by the topology's calibration, or None where that says nothing of it."""
        assert self.calibrated is not None
        check_size(nbytes, kind)
        ranks = ranks_of(group)
        if root is not None or shares is not None or self.calibrated.slowed or not self.calibrated.knows(ranks):
            root = checked_operation(kind, group, nbytes, self.topology, root=root, shares=shares).root
        return 0.0 if len(ranks) == 1 else self.calibrated.seconds(kind, ranks, nbytes, root)

    def _costs(self, operation: CollectiveOperation) -> list[Cost] | None:
        """Return the costs for one byte of the algorithms to choose from; None where they do not grow with the bytes."""
        kind, ranks, _, root, _ = operation
        if len(ranks) == 1:
            return [Cost(0.0, 0.0)]
        if self.topology.uniform and self.topology.dimensions:
            less = offset(ranks, self.topology.dimensions)
            if less:  # the same as a group nearer to rank 0
                near = tuple([rank - less for rank in ranks])
                key = (kind, near, None if root is None else root - less)
                if key not in self._known:
                    self._known[key] = self._costs(operation._replace(ranks=near, root=key[2]))
                return self._known[key]
        found = self._algorithm.alternatives(operation, self.topology)
        if not all(one.proportional or one.steady for one in found):
            return None
        return [one.cost(operation._replace(nbytes=1.0), self.topology) for one in found]
