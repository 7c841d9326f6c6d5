"""Collectives on a calibrated topology: alone they take the measured time, with other traffic they share the links.

The bytes go over the links that NCCL's ring (inside a node) or its rings by network card (between nodes) would use. They
flow after the measured latency, and each counts ``stretch`` times on its links, so that on an idle machine the collective takes
the measured time. Other flows on the links get their max-min fair share.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

from triosim.errors import OptionError
from triosim.networks.calibration.lookup import calibration_of, measured_on
from triosim.networks.calibration.model import Calibration
from triosim.networks.collectives.algorithm import CollectiveAlgorithm, CollectiveOperation, SteadyState, busiest
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

_MOST_EDGES = 1_000_000


@dataclass(frozen=True, slots=True)
class CalibratedCollective:
    """The edges of a collective and its latency; bytes are multiplied by ``factor``, and count ``stretch`` times on links."""

    steady: SteadyState
    factor: float
    stretch: float


class CalibratedCollectives:
    """The measured times of collectives on a topology, and the edges over which their bytes go."""

    def __init__(self, topology: Topology, calibration: Calibration) -> None:
        self.topology = topology
        self.measured_on = measured_on(topology)
        self.calibration = calibration
        self._ring, self._by_card = Ring(), Hierarchical()
        self._known: dict[CollectiveOperation, tuple[SteadyState, float]] = {}
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
        steady, idle = self._unit(CollectiveOperation(kind, tuple(ranks), 1.0, root))
        return parts.latency + parts.moving * (busiest(steady.edges, self.topology) / idle if idle else 1.0)

    def plan(self, operation: CollectiveOperation) -> CalibratedCollective | None:
        """Return how a collective runs, or None if uncalibrated; unequal shares are stretched as equal ones would be."""
        kind, ranks, nbytes, _, shares = operation
        parts = self.calibration.parts(kind, len(ranks), nbytes, self.nodes(ranks))
        if parts is None:
            return None
        steady, idle = self._unit(operation)
        stretch = parts.moving / (idle * nbytes) if idle * nbytes > 0.0 else 1.0
        if shares is not None:
            edges = self._algorithm(ranks).steady_state(operation, self.topology).edges
            return CalibratedCollective(SteadyState(edges, parts.latency), 1.0, stretch)
        return CalibratedCollective(SteadyState(steady.edges, parts.latency), nbytes, stretch)

    def _unit(self, operation: CollectiveOperation) -> tuple[SteadyState, float]:
        """Return the edges of one byte, and the seconds that they need on the idle links of the machine that was measured."""
        key = operation._replace(nbytes=1.0, shares=None)
        found = self._known.get(key)
        if found is None:
            steady = self._algorithm(key.ranks).steady_state(key, self.topology)
            self._edges += len(steady.edges)
            if self._edges > _MOST_EDGES:
                self._known.clear()
                self._edges = len(steady.edges)
            found = self._known[key] = steady, busiest(steady.edges, self.measured_on)
        return found

    def _algorithm(self, ranks: Sequence[int]) -> CollectiveAlgorithm:
        if self.nodes(ranks) == 1:
            return self._ring
        try:
            self._by_card.grid(ranks, self.topology)
        except OptionError:
            return self._ring
        return self._by_card


class CalibratedNetwork(ABC):
    """An extension of networks: collectives take their measured times.

    ``calibrated`` is None where the topology has no calibration, or where a run asked for an algorithm or for steps.
    """

    calibrated: CalibratedCollectives | None


def calibrated_collectives(topology: Topology) -> CalibratedCollectives | None:
    """Return the calibrated collectives of a topology, or None where it has no calibration."""
    calibration = calibration_of(topology)
    return None if calibration is None else CalibratedCollectives(topology, calibration)
