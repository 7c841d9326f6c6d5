"""Collectives on a calibrated topology: alone they take the calibrated time, with other traffic they share the links.

The bytes go over the links that NCCL uses (:mod:`~triosim.networks.calibration.byte_layout`). They flow after the latency, and
each counts ``stretch`` times on its links, so that on an idle machine the collective takes the calibrated time. Other flows on
the links get their max-min fair share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from triosim.networks.calibration.byte_layout import ByteLayout
from triosim.networks.calibration.curves import Algorithm, TimeParts
from triosim.networks.calibration.doubt import ErrorEstimator, relative_error
from triosim.networks.calibration.lookup import calibration_of, measured_on
from triosim.networks.calibration.model import Calibration
from triosim.networks.calibration.stored import KINDS
from triosim.networks.collectives.algorithm import CollectiveOperation, Edge, Ranks, SteadyState, busiest
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

_MOST_EDGES = 1_000_000
_MOST_TIMES = 100_000


@dataclass(frozen=True, slots=True)
class CalibratedCollective:
    """The edges of a collective and its latency; bytes are multiplied by ``factor``, and count ``stretch`` times on links."""

    steady: SteadyState
    factor: float
    stretch: float


class _UnitEdges(NamedTuple):
    """The edges of a collective of one byte, and the seconds that they need on the idle links that were measured."""

    edges: tuple[Edge, ...]
    idle: float


@dataclass(slots=True)
class _Group:
    """Some ranks: over how many nodes they are spread, and their collectives.

    ``edges`` are those of equal shares, by kind, root and algorithm; ``unequal`` are exchanges as they were planned.
    """

    nodes: int
    edges: dict[tuple[CollectiveKind, int | None, Algorithm | None], _UnitEdges] = field(default_factory=dict)
    unequal: dict[CollectiveOperation, CalibratedCollective] = field(default_factory=dict)


class CalibratedCollectives:
    """The calibrated times of collectives on a topology, and the edges over which their bytes go."""

    def __init__(self, topology: Topology, calibration: Calibration) -> None:
        self.topology = topology
        self.measured_on = measured_on(topology)
        self.calibration = calibration
        self._layout = ByteLayout(topology, calibration.gpus_per_node)
        self._groups: dict[Ranks, _Group] = {}
        self._spread: dict[int, set[int]] = {}  # over how many nodes groups of some number of ranks were spread
        self._times: dict[tuple[CollectiveKind, int, float, int], TimeParts | None] = {}
        self._kept = 0  # edges of all groups

    @property
    def slowed(self) -> bool:
        """Whether links differ from those of the machine that was measured."""
        return self.measured_on is not self.topology

    def knows(self, ranks: Ranks) -> bool:
        """Return whether these ranks had a collective before, so that they need no check."""
        return ranks in self._groups

    def seconds(self, kind: CollectiveKind, ranks: Ranks, nbytes: float, root: int | None) -> float | None:
        """Return the seconds of a collective alone, scaled where links are slower than measured; None if uncalibrated."""
        group = self._group(ranks)
        parts = self._parts(kind, len(ranks), nbytes, group.nodes)
        if parts is None:
            return None
        if not self.slowed:
            return parts.total
        edges, idle = self._unit(group, CollectiveOperation(kind, ranks, nbytes, root), parts.algorithm)
        return parts.latency + parts.moving * (busiest(edges, self.topology) / idle if idle else 1.0)

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return how far off a transfer that was run is expected to be (0.1 is 10%); 0 for what is not calibrated, as sends.

        Of groups of one size, that which is spread over most nodes counts.
        """
        nodes = max(self._spread.get(gpus, ()), default=0)
        if kind not in KINDS or not nodes:
            return 0.0
        return relative_error(self.calibration, kind, gpus, nbytes, nodes) or 0.0

    def plan(self, operation: CollectiveOperation) -> CalibratedCollective | None:
        """Return how a collective runs, or None if uncalibrated.

        Unequal shares are stretched as equal ones would be. In an all-gather or reduce-scatter all GPUs pass on all shares, so
        that it is their sum that counts.
        """
        group, nbytes = self._group(operation.ranks), operation.nbytes
        if operation in group.unequal:
            return group.unequal[operation]
        parts = self._parts(operation.kind, len(operation.ranks), nbytes, group.nodes)
        if parts is None:
            return None
        edges, idle = self._unit(group, operation, parts.algorithm)
        stretch = parts.moving / (idle * nbytes) if idle * nbytes > 0.0 else 1.0
        if operation.shares is not None and operation.kind in ("all_to_all", "gather", "scatter"):
            edges = self._layout.algorithm(operation.ranks).steady_state(operation, self.topology).edges
            self._keep(len(edges))
            planned = CalibratedCollective(SteadyState(edges, parts.latency), 1.0, stretch)
            return group.unequal.setdefault(operation, planned)
        return CalibratedCollective(SteadyState(edges, parts.latency), nbytes, stretch)

    def _group(self, ranks: Ranks) -> _Group:
        found = self._groups.get(ranks)
        if found is None:
            found = self._groups[ranks] = _Group(len(self._layout.by_node(ranks)))
            self._spread.setdefault(len(ranks), set()).add(found.nodes)
        return found

    def _parts(self, kind: CollectiveKind, gpus: int, nbytes: float, nodes: int) -> TimeParts | None:
        key = (kind, gpus, nbytes, nodes)
        if key not in self._times:
            if len(self._times) >= _MOST_TIMES:
                self._times.clear()
            self._times[key] = self.calibration.parts(kind, gpus, nbytes, nodes)
        return self._times[key]

    def _unit(self, group: _Group, operation: CollectiveOperation, crossing: Algorithm | None) -> _UnitEdges:
        """Return the edges of one byte of a collective, whose algorithm between nodes is ``crossing``."""
        key = (operation.kind, operation.root, crossing)
        found = group.edges.get(key)
        if found is None:
            one = operation._replace(nbytes=1.0, shares=None)
            edges = self._layout.edges(one, crossing)
            self._keep(len(edges))
            found = group.edges[key] = _UnitEdges(tuple(edges), busiest(edges, self.measured_on))
        return found

    def _keep(self, edges: int) -> None:
        """Make room for so many edges more."""
        self._kept += edges
        if self._kept > _MOST_EDGES:
            self._groups.clear()
            self._kept = edges


class CalibratedNetwork(ErrorEstimator):
    """An extension of networks: collectives take their measured times.

    ``calibrated`` is None where the topology has no calibration, or where a run asked for an algorithm or for steps.
    """

    calibrated: CalibratedCollectives | None

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return how far off transfers that have run are expected to be; see ``ErrorEstimator``."""
        return 0.0 if self.calibrated is None else self.calibrated.relative_error(kind, gpus, nbytes)


def calibrated_collectives(topology: Topology) -> CalibratedCollectives | None:
    """Return the calibrated collectives of a topology, or None where it has no calibration."""
    calibration = calibration_of(topology)
    return None if calibration is None else CalibratedCollectives(topology, calibration)
