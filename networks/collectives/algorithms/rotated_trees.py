"""Collectives behind one switch along trees that all ranks take turns to be the root of: few hops, and the bytes of a ring.

A pair of complementary trees (:mod:`triosim.networks.collectives.algorithms.double_binary_tree`) sends 2(N-1) S bytes in all,
but the root and the leaves send less than the others. NCCL has a pair for each channel, each with another root. The steady
state here is the mean over all N rotations of the ranks: every rank sends and receives 2(N-1)/N S, after 2 ceil(log2 N) hops.
In an all-gather each rank is the root of a tree for its own share, as in NCCL's PAT: (N-1)/N S after ceil(log2 N) hops; a
reduce-scatter is the reverse. Recursive halving and doubling takes as long, and is what runs in steps.

All ranks do the same, so that they can be folded. The bytes are laid out as one flow from each rank to the next: behind one
switch only how much a rank sends and receives counts, and not to whom.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.networks.collectives.algorithm import CollectiveOperation, Edge, SteadyState
from triosim.networks.collectives.algorithms.hierarchical import coordinates, switch_grid
from triosim.networks.collectives.phased.chunk_schedule import in_order
from triosim.networks.collectives.phased.grid import Grid
from triosim.networks.collectives.phased.phases import PhasedAlgorithm
from triosim.networks.collectives.phased.symmetric import LinkShare, SymmetricCollective
from triosim.networks.topology import Topology


class RotatedTrees(PhasedAlgorithm):
    """All-reduce, all-gather and reduce-scatter of ranks for which ``behind_one_switch`` is true."""

    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the group as one line behind a switch."""
        return switch_grid(group, topology)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state: from each rank to the next, all that the one sends and the other receives."""
        kind, ranks, nbytes, _, _ = operation
        grid, _ = self._arranged(operation, topology)
        latency, _, _ = self._times(operation, in_order(grid, 1), topology, 0)
        sizes = dict(zip(ranks, operation.chunk_sizes, strict=True))
        edges = []
        for rank, following in zip(grid.places, (*grid.places[1:], grid.places[0]), strict=True):
            scattered = nbytes - sizes[rank] if kind != "all_gather" else 0.0
            gathered = nbytes - sizes[following] if kind != "reduce_scatter" else 0.0
            edges.append(Edge(rank, following, max(scattered + gathered, 0.0)))
        return SteadyState(tuple(edges), latency)

    def symmetric(self, operation: CollectiveOperation, topology: Topology) -> SymmetricCollective | None:
        """Return the collective as one rank sees it, where no link differs; else None."""
        grid = self.grid(operation.ranks, topology)
        if not grid.line_topologies:
            return None
        n = len(grid.places)
        sent = (2 if operation.kind == "all_reduce" else 1) * (n - 1) / n
        link = grid.line_topologies[0][0].route(0, 1)[0]
        latency, _, _ = self._times(operation._replace(nbytes=1.0), in_order(grid, 1), topology, 0)
        return SymmetricCollective(grid, (True,), (LinkShare(0, link.bandwidth, {1: sent}),), latency, 0.0)


def behind_one_switch(group: Sequence[int], topology: Topology) -> bool:
    """Return whether each rank of a group has a link to and from one switch (or host), by which it reaches the others."""
    if topology.uniform and topology.dimensions:
        sides = zip(coordinates(group, topology.dimensions), topology.dimensions, strict=True)
        moving = [dimension.block for side, dimension in sides if len(side) > 1]
        if len(moving) == 1:
            return moving[0] == "switch"
    first = topology.route(group[0], group[1])
    if len(first) != 2 or topology.nodes[first[0].destination].kind not in ("switch", "host"):
        return False
    hub = first[0].destination
    straight = (topology.route(rank, hub) + topology.route(hub, rank) for rank in group)
    following = zip(group, (*group[1:], group[0]), strict=True)
    return all(len(links) == 2 for links in straight) and all(
        [link.destination for link in topology.route(*ends)][:1] == [hub] for ends in following
    )
