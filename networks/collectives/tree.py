"""The binary tree: log2 N hops up and down, for small messages; a rank in it moves three times the data of a leaf.

All-reduce, broadcast and reduce go along it in chunks. All-gather and reduce-scatter go round the ring, and the others
straight, as in NCCL, whose tree is for all-reduce only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.networks.collectives.base import CollectiveAlgorithm, Pipeline, Transfer, steady_state
from triosim.networks.collectives.ring import Ring
from triosim.networks.collectives.together import together
from triosim.networks.collectives.trees import Parents, along_tree, binary, chunks_of
from triosim.networks.ring_order import ring_order
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind


class Tree(CollectiveAlgorithm):
    """One in-order binary tree, laid along the ring; a subclass may have several, each for a part of the data."""

    steady = True

    def trees(self, group: Sequence[int], topology: Topology, root: int | None) -> Sequence[Parents]:
        """Return the parents in each of the trees."""
        return [binary(rooted(ring_order(topology, group), root))]

    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        if kind not in ("all_reduce", "broadcast", "reduce"):
            return Ring().transfers(kind, group, nbytes, topology, root=root, shares=shares)
        trees = self.trees(group, topology, root)
        part = nbytes / len(trees)
        return self._along(kind, trees, part, chunks_of(part))

    def pipeline(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Pipeline:
        """Return the steady state; how many chunks there are does not matter for it."""
        if kind not in ("all_reduce", "broadcast", "reduce"):
            return Ring().pipeline(kind, group, nbytes, topology, root=root, shares=shares)
        trees = self.trees(group, topology, root)
        return steady_state(self._along(kind, trees, nbytes / len(trees), 1), topology)

    @staticmethod
    def _along(kind: CollectiveKind, trees: Sequence[Parents], part: float, chunks: int) -> Iterator[Transfer]:
        return together((along_tree(kind, parents, part, chunks) for parents in trees), chunks)


def rooted(ring: Sequence[int], root: int | None) -> Sequence[int]:
    """Return a ring, cut so that it begins with the root."""
    start = 0 if root is None else list(ring).index(root)
    return (*ring[start:], *ring[:start])
