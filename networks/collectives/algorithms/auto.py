"""The choice of an algorithm, as NCCL makes it: the one that is expected to finish first, by latency and bandwidth.

NCCL's tuner takes the algorithm with the least latency + bytes/bandwidth on the topology that it found (``ncclTopoTuneModel``
in its src/graph/tuning.cc); here it is the cost of the pipelined form. The candidates are NCCL's too: for an all-reduce the
ring, the double binary tree and, where the switch can reduce, NVLS; for all-gather and reduce-scatter the ring and NVLS; for
the others the ring, whose gather, scatter and all-to-all are direct.

NCCL lays a ring for each network card, which a single ring cannot show. The hierarchical algorithm, whose every rank uses its
own card, stands in for it where a group is a box of several dimensions; networks written as dimensions always take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.errors import OptionError
from triosim.networks.collectives.algorithm import CollectiveOperation, Cost, OperationAlgorithm, SteadyState, Transfer
from triosim.networks.collectives.algorithms.double_binary_tree import DoubleBinaryTree
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.algorithms.in_switch import SlicedInSwitch, meeting
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.topology import Topology

LARGE = 1024  # ranks; of a larger regular group only the hierarchical algorithm is looked at, which takes no time


class Auto(OperationAlgorithm):
    """Chooses the fastest available algorithm for a collective, its group, its size and the topology."""

    def __init__(self) -> None:
        self.ring, self.trees, self.in_switch = Ring(), DoubleBinaryTree(), SlicedInSwitch()
        self.hierarchical = Hierarchical()
        self._topology: Topology | None = None
        self._costs: dict[CollectiveOperation, list[tuple[OperationAlgorithm, Cost]]] = {}

    def alternatives(self, operation: CollectiveOperation, topology: Topology) -> Sequence[OperationAlgorithm]:
        """Return the algorithms among which to choose; of two as quick, the first."""
        kind, group = operation.kind, operation.ranks
        box = self._is_box(group, topology)
        if box and (topology.regularity.by_dimension or (topology.uniform and len(group) > LARGE)):
            return (self.hierarchical,)
        if kind in ("all_to_all", "gather", "scatter", "broadcast", "reduce"):
            return (self.ring,)
        found: list[OperationAlgorithm] = [self.ring]
        if kind == "all_reduce":
            found.append(self.trees)
        if topology.reducing and meeting(topology, group) in topology.reducing:
            found.append(self.in_switch)
        if box and len(self.hierarchical.grid(group, topology).shape) > 1:
            found.append(self.hierarchical)
        return found

    def choose(self, operation: CollectiveOperation, topology: Topology) -> OperationAlgorithm:
        """Return the algorithm that is expected to finish first."""
        if topology is not self._topology:
            self._topology, self._costs = topology, {}
        key = operation._replace(nbytes=1.0, shares=None)
        if key not in self._costs:
            self._costs[key] = [(one, one.cost(key, topology)) for one in self.alternatives(key, topology)]
        return min(self._costs[key], key=lambda found: found[1].latency + found[1].seconds * operation.nbytes)[0]

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of the algorithm that is chosen."""
        return self.choose(operation, topology).transfers_of(operation, topology)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state of the algorithm that is chosen."""
        return self.choose(operation, topology).steady_state(operation, topology)

    def cost(self, operation: CollectiveOperation, topology: Topology) -> Cost:
        """Return the cost of the algorithm that is chosen."""
        return self.choose(operation, topology).cost(operation, topology)

    def _is_box(self, group: Sequence[int], topology: Topology) -> bool:
        try:
            self.hierarchical.grid(group, topology)
        except OptionError:
            return False
        return True
