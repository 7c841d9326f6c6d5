"""Collectives on a calibrated topology: alone they take the calibrated time, with other traffic they share the links.

The bytes go over the links that NCCL uses: inside a node as many as a ring, the switch's reduction (NVLS) or direct sends need;
between nodes every GPU's own network card, which sends what the chosen algorithm, ring or tree, sends over it. They flow after
the latency, and each counts ``stretch`` times on its links, so that on an idle machine the collective takes the calibrated
time. Other flows on the links get their max-min fair share.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

from triosim.errors import OptionError
from triosim.networks.calibration.curves import TimeParts
from triosim.networks.calibration.internode import Algorithm, card_share
from triosim.networks.calibration.lookup import calibration_of, measured_on
from triosim.networks.calibration.model import Calibration
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation, Edge, SteadyState, busiest
from triosim.networks.collectives.algorithms.direct import Direct
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.topology import NodeRef, Topology
from triosim.tasks import CollectiveKind

_MOST_EDGES = 1_000_000


@dataclass(frozen=True, slots=True)
class CalibratedCollective:
    """The edges of a collective and its latency; bytes are multiplied by ``factor``, and count ``stretch`` times on links."""

    steady: SteadyState
    factor: float
    stretch: float


class CalibratedCollectives:
    """The calibrated times of collectives on a topology, and the edges over which their bytes go."""

    def __init__(self, topology: Topology, calibration: Calibration) -> None:
        self.topology = topology
        self.measured_on = measured_on(topology)
        self.calibration = calibration
        self._ring, self._direct, self._by_card = Ring(), Direct(), Hierarchical()
        self._known: dict[tuple[CollectiveOperation, Algorithm | None], tuple[SteadyState, float]] = {}
        self._edges = 0

    @property
    def slowed(self) -> bool:
        """Whether links differ from those of the machine that was measured."""
        return self.measured_on is not self.topology

    def nodes(self, ranks: Sequence[int]) -> int:
        """Return over how many nodes the ranks are spread."""
        per_node = self.calibration.gpus_per_node
        if isinstance(ranks, range) and ranks.step == 1:
            return ranks[-1] // per_node - ranks[0] // per_node + 1
        return len({rank // per_node for rank in ranks})

    def seconds(
        self, kind: CollectiveKind, ranks: Sequence[int], nbytes: float, nodes: int, root: int | None
    ) -> float | None:
        """Return the seconds of a collective alone, scaled where links are slower than measured; None if uncalibrated."""
        parts = self.calibration.parts(kind, len(ranks), nbytes, nodes)
        if parts is None:
            return None
        if not self.slowed:
            return parts.total
        operation = CollectiveOperation(kind, tuple(ranks), nbytes, root)
        steady, idle = self._unit(operation, self._between(operation, nodes))
        return parts.latency + parts.moving * (busiest(steady.edges, self.topology) / idle if idle else 1.0)

    def plan(self, operation: CollectiveOperation) -> CalibratedCollective | None:
        """Return how a collective runs, or None if uncalibrated; unequal shares are stretched as equal ones would be."""
        kind, ranks, nbytes, _, shares = operation
        nodes = self.nodes(ranks)
        parts = self.calibration.parts(kind, len(ranks), nbytes, nodes)
        if parts is None:
            return None
        algorithm = self._between(operation, nodes)
        steady, idle = self._unit(operation, algorithm)
        stretch = parts.moving / (idle * nbytes) if idle * nbytes > 0.0 else 1.0
        if shares is not None:
            edges = self._steady_edges(operation, algorithm)
            return CalibratedCollective(SteadyState(edges, parts.latency), 1.0, stretch)
        return CalibratedCollective(SteadyState(steady.edges, parts.latency), nbytes, stretch)

    def _between(self, operation: CollectiveOperation, nodes: int) -> Algorithm | None:
        """Return NCCL's algorithm between nodes; None inside a node, and where the cluster's own curves were fitted."""
        model = self.calibration.internode
        kind, gpus = operation.kind, len(operation.ranks)
        if nodes == 1 or model is None or self.calibration.measured_between(kind) is not None:
            return None
        inside = self.calibration.inside(kind, -(-gpus // nodes), operation.nbytes) if gpus > nodes else None
        inside = inside or TimeParts(0.0, 0.0)
        return model.algorithm(kind, nodes, gpus, operation.nbytes, inside)

    def _unit(self, operation: CollectiveOperation, algorithm: Algorithm | None) -> tuple[SteadyState, float]:
        """Return the edges of one byte, and the seconds that they need on the idle links of the machine that was measured."""
        one = operation._replace(nbytes=1.0, shares=None)
        found = self._known.get((one, algorithm))
        if found is None:
            edges = self._steady_edges(one, algorithm)
            self._edges += len(edges)
            if self._edges > _MOST_EDGES:
                self._known.clear()
                self._edges = len(edges)
            found = self._known[one, algorithm] = SteadyState(edges, 0.0), busiest(edges, self.measured_on)
        return found

    def _steady_edges(self, operation: CollectiveOperation, between: Algorithm | None) -> tuple[Edge, ...]:
        """Return who sends how much to whom: edges that are the same for all ranks, with the bytes of NCCL's algorithm."""
        nodes = self.nodes(operation.ranks)
        edges = self._algorithm(operation, nodes).steady_state(operation, self.topology).edges
        if operation.shares is not None:
            return edges
        if nodes == 1:
            share = self._reduced_share(operation)
            return edges if share == 1.0 else tuple([edge._replace(nbytes=edge.nbytes * share) for edge in edges])
        if between is None:
            return edges
        crossing: dict[NodeRef, float] = {}
        for source, destination, nbytes in edges:
            if self._cross(source, destination):
                crossing[source] = crossing.get(source, 0.0) + nbytes
        share = card_share(operation.kind, between, nodes, len(operation.ranks)) * operation.nbytes
        factor = share / max(crossing.values(), default=share)
        return tuple(
            [
                edge._replace(nbytes=edge.nbytes * factor) if self._cross(edge.source, edge.destination) else edge
                for edge in edges
            ]
        )

    def _reduced_share(self, operation: CollectiveOperation) -> float:
        """Return the bytes of an all-reduce on each link by those of a ring: fewer where the switch adds up (NVLS)."""
        outline, n = self.topology.outline, len(operation.ranks)
        if operation.kind != "all_reduce" or outline is None or not outline.spec.in_switch_reduction:
            return 1.0
        return min(1.0, (n + 1) / (2.0 * (n - 1)))

    def _cross(self, source: NodeRef, destination: NodeRef) -> bool:
        """Return whether an edge leaves a node; switches are inside one."""
        if not (isinstance(source, int) and isinstance(destination, int)):
            return False
        return source // self.calibration.gpus_per_node != destination // self.calibration.gpus_per_node

    def _algorithm(self, operation: CollectiveOperation, nodes: int) -> CollectiveAlgorithm:
        """Return the algorithm over whose edges the bytes go."""
        ranks = operation.ranks
        if nodes > 1:
            try:
                self._by_card.grid(ranks, self.topology)
            except OptionError:
                return self._ring
            return self._by_card
        outline = self.topology.outline
        if outline is not None and outline.spec.topology in ("fully_connected", "hybrid_cube_mesh"):
            return self._direct
        return self._ring


class CalibratedNetwork(ABC):
    """An extension of networks: collectives take their measured times.

    ``calibrated`` is None where the topology has no calibration, or where a run asked for an algorithm or for steps.
    """

    calibrated: CalibratedCollectives | None


def calibrated_collectives(topology: Topology) -> CalibratedCollectives | None:
    """Return the calibrated collectives of a topology, or None where it has no calibration."""
    calibration = calibration_of(topology)
    return None if calibration is None else CalibratedCollectives(topology, calibration)
