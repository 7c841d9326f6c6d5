"""The choice of an algorithm, as NCCL makes it: the one that is expected to finish first, by latency and bandwidth.

NCCL's tuner takes the algorithm with the least latency + bytes/bandwidth on the topology that it found (``ncclTopoTuneModel``
in its src/graph/tuning.cc); here it is the cost of the pipelined form. The candidates are NCCL's too: rings, trees and, for an
all-reduce where the switch can reduce, NVLS; gather, scatter and all-to-all are direct, broadcast and reduce go along the ring.

NCCL has many channels, each with a ring or a pair of trees of its own, which together use all links; a single ring or a single
pair of trees cannot show that. Three algorithms in which every rank does the same stand in for all channels together: trees
that are rotated over all ranks, behind one switch; the hierarchical algorithm, where a group is a box of several dimensions,
which keeps every GPU's own network card busy; and direct exchange, where all pairs are linked. On equal links none of them is
ever slower than the single ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from triosim.errors import OptionError
from triosim.networks.collectives.algorithm import (
    CollectiveAlgorithm,
    CollectiveOperation,
    Cost,
    OperationAlgorithm,
    Ranks,
    SteadyState,
    Transfer,
)
from triosim.networks.collectives.algorithms.direct import Direct
from triosim.networks.collectives.algorithms.double_binary_tree import DoubleBinaryTree
from triosim.networks.collectives.algorithms.hierarchical import ByDimension, coordinates
from triosim.networks.collectives.algorithms.in_switch import SlicedInSwitch, meeting
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.collectives.algorithms.rotated_trees import RotatedTrees, behind_one_switch
from triosim.networks.collectives.phased.chunk_schedule import ChunkOrder
from triosim.networks.collectives.phased.exchanges import LineExchange, RingExchange, SwitchExchange
from triosim.networks.collectives.phased.grid import Grid
from triosim.networks.topology import Topology

LARGE = 1024  # ranks; of a larger box only the hierarchical algorithm is looked at, which takes no time
MOST_LINKED = 64  # ranks; of a larger group that no dimension describes it is not looked whether all pairs are linked


class Auto(OperationAlgorithm):
    """Chooses the fastest available algorithm for a collective, its group, its size and the topology."""

    def __init__(self, chunk_schedule: ChunkOrder = "in-order") -> None:
        self.ring, self.trees, self.in_switch, self.direct = Ring(), DoubleBinaryTree(), SlicedInSwitch(), Direct()
        self.hierarchical, self.rotated = ByDimension(chunk_schedule=chunk_schedule), RotatedTrees()
        self._topology: Topology | None = None
        self._found: dict[CollectiveOperation, Sequence[OperationAlgorithm]] = {}
        self._costs: dict[CollectiveOperation, list[tuple[OperationAlgorithm, Cost]]] = {}

    def alternatives(self, operation: CollectiveOperation, topology: Topology) -> Sequence[OperationAlgorithm]:
        """Return the algorithms among which to choose; of two as quick, the first."""
        if topology is not self._topology:
            self._topology, self._found, self._costs = topology, {}, {}
        key = operation._replace(nbytes=1.0, shares=None)
        if key not in self._found:
            self._found[key] = self._alternatives(key, topology)
        return self._found[key]

    def _alternatives(self, operation: CollectiveOperation, topology: Topology) -> Sequence[OperationAlgorithm]:
        kind, group = operation.kind, operation.ranks
        grid = self._box(group, topology)
        large = topology.uniform and len(group) > LARGE
        if grid is not None and topology.regularity.by_dimension:
            return (self.hierarchical,)
        if kind in ("all_to_all", "gather", "scatter", "broadcast", "reduce"):
            return (self.hierarchical,) if grid is not None and large else (self.ring,)
        in_switch = kind == "all_reduce" and topology.reducing and meeting(topology, group) in topology.reducing
        also = [self.in_switch] if in_switch else []
        if topology.uniform and grid is not None:
            return [*self._on_equal_links(group, grid, topology), *also]
        found: list[OperationAlgorithm] = [self.ring]
        if kind == "all_reduce" and not _nodes_of_rings(topology):
            found.append(self.trees)
        if behind_one_switch(group, topology):
            found.append(self.rotated)
        if grid is not None and (
            len(grid.shape) > 1 or not isinstance(grid.exchanges[0], (RingExchange, SwitchExchange))
        ):
            found.append(self.hierarchical)
        if len(group) <= MOST_LINKED and all(len(topology.route(*ends)) == 1 for ends in permutations(group, 2)):
            found.append(self.direct)
        return [*found, *also]

    def _on_equal_links(self, group: Ranks, grid: Grid, topology: Topology) -> Sequence[OperationAlgorithm]:
        """Return the algorithms for a box in a regular topology, leaving out those that are never quicker than another."""
        if any(isinstance(exchange, LineExchange) for exchange in grid.exchanges):
            if _goes_round(group, topology):
                return (self.ring,)
            return (self.hierarchical,) if len(group) > LARGE else (self.ring, self.hierarchical)
        if len(grid.shape) > 1:
            return (self.hierarchical,)
        if isinstance(grid.exchanges[0], SwitchExchange):
            return (self.rotated,)
        return (self.ring,) if isinstance(grid.exchanges[0], RingExchange) else (self.hierarchical,)

    def choose(self, operation: CollectiveOperation, topology: Topology) -> OperationAlgorithm:
        """Return the algorithm that is expected to finish first."""
        found = self.alternatives(operation, topology)
        if len(found) == 1:
            return found[0]
        key = operation._replace(nbytes=1.0, shares=None)
        if key not in self._costs:
            self._costs[key] = [(one, one.cost(key, topology)) for one in found]
        return min(self._costs[key], key=lambda known: known[1].latency + known[1].seconds * operation.nbytes)[0]

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of the algorithm that is chosen."""
        return self.choose(operation, topology).transfers_of(operation, topology)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state of the algorithm that is chosen."""
        return self.choose(operation, topology).steady_state(operation, topology)

    def cost(self, operation: CollectiveOperation, topology: Topology) -> Cost:
        """Return the cost of the algorithm that is chosen."""
        return self.choose(operation, topology).cost(operation, topology)

    def _box(self, group: Sequence[int], topology: Topology) -> Grid | None:
        """Return the group as a box of coordinates, or None where it is none."""
        try:
            return self.hierarchical.grid(group, topology)
        except OptionError:
            return None


def _goes_round(group: Sequence[int], topology: Topology) -> bool:
    """Return whether a group is every k-th GPU of one ring, which is a ring again: all its ranks do the same."""
    sides = zip(coordinates(group, topology.dimensions), topology.dimensions, strict=True)
    moving = [(sorted(side), dimension) for side, dimension in sides if len(side) > 1]
    if len(moving) != 1 or moving[0][1].block != "ring":
        return False
    members, size = moving[0][0], moving[0][1].size
    return size % len(members) == 0 and members == list(range(members[0], size, size // len(members)))


def _nodes_of_rings(topology: Topology) -> bool:
    """Return whether several nodes are rings, meshes or tori: their trees use both directions of a link, a node's ring one."""
    outline = topology.outline
    return outline is not None and outline.nodes > 1 and outline.spec.topology in ("ring", "mesh", "torus")


def is_auto(algorithm: str | CollectiveAlgorithm | None) -> bool:
    """Return whether an algorithm, given by name or itself, is ``auto``, or left open, which is the same."""
    return algorithm is None or algorithm == "auto" or isinstance(algorithm, Auto)
