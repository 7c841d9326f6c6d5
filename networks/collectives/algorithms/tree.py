"""The binary tree: log2 N hops up and down, for small messages; a rank in it moves three times the data of a leaf.

All-reduce, broadcast and reduce go along it in chunks. All-gather and reduce-scatter go round the ring, and the others
straight, as in NCCL, whose tree is for all-reduce only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.networks.collectives.algorithm import (
    CollectiveOperation,
    OperationAlgorithm,
    SteadyState,
    Transfer,
    merged,
    steady_state_of,
)
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.collectives.algorithms.trees import Parents, along_tree, binary, chunks_of
from triosim.networks.collectives.ring_order import ring_order
from triosim.networks.topology import Topology

_ALONG_TREES = frozenset({"all_reduce", "broadcast", "reduce"})


class Tree(OperationAlgorithm):
    """One in-order binary tree, laid along the ring; a subclass may have several, each for a part of the data."""

    steady = True
    others: OperationAlgorithm = Ring()  # runs the kinds that do not use a tree

    def trees(self, group: Sequence[int], topology: Topology, root: int | None) -> Sequence[Parents]:
        """Return the parents in each of the trees."""
        return [binary(rooted(ring_order(topology, group), root))]

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        kind, ranks, nbytes, root, _ = operation
        if kind not in _ALONG_TREES:
            return self.others.transfers_of(operation, topology)
        trees = self.trees(ranks, topology, root)
        part = nbytes / len(trees)
        chunks = chunks_of(part)
        return merged((along_tree(kind, parents, part, chunks) for parents in trees), chunks)

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state; how many chunks there are does not matter for it.

        The two trees of a pair are channels of their own: what they send from one rank to another are two edges, of
        which each has its share of the links. As one edge they would have one share for twice the bytes.
        """
        kind = operation.kind
        if kind not in _ALONG_TREES:
            return self.others.steady_state(operation, topology)
        trees = self.trees(operation.ranks, topology, operation.root)
        part = operation.nbytes / len(trees)
        sides = [trees[side::2] for side in range(min(len(trees), 2))]
        found = [
            steady_state_of(merged((along_tree(kind, parents, part, 1) for parents in side), 1), topology)
            for side in sides
        ]
        return SteadyState(tuple(edge for one in found for edge in one.edges), max(one.latency for one in found))


def rooted(ring: Sequence[int], root: int | None) -> Sequence[int]:
    """Return a ring, cut so that it begins with the root."""
    start = 0 if root is None else list(ring).index(root)
    return (*ring[start:], *ring[:start])
