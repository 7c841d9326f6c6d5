"""The double binary tree: two trees, each for half of the data; no rank is an inner node of both.

An inner node of one is (nearly always) a leaf of the other, so that all ranks send about twice the data, as in a
ring, with the latency of a tree (Sanders, Speck and Träff 2009; NCCL since 2.4). Where the topology has nodes, the trees
are between nodes and end in a chain inside of each, as NCCL's do; there are two for each GPU of a node, which is their
head, so that all network cards carry the same. Other kinds than all-reduce, broadcast and reduce: as the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.networks.collectives.algorithms.tree import Parents, Tree, binary, chain
from triosim.networks.collectives.ring_order import ring_order, rooted
from triosim.networks.topology import Topology


class DoubleBinaryTree(Tree):
    """Pairs of complementary trees."""

    def trees(self, group: Sequence[int], topology: Topology, root: int | None) -> Sequence[Parents]:
        """Return the pair, or a pair for each rank of a node."""
        nodes = by_node(topology, group)
        if nodes is None or root is not None:
            ring = rooted(ring_order(topology, group), root)
            if root is None:
                return [binary(places) for places in complements(ring)]
            return [binary((root, *others)) for others in complements(ring[1:])]  # both below the root
        found: list[Parents] = []
        for turn in range(len(nodes[0])):
            chains = [(*node[turn:], *node[:turn]) for node in nodes]
            inner = {rank: parent for places in chains for rank, parent in chain(places).items()}
            found += [inner | binary(heads) for heads in complements([places[0] for places in chains])]
        return found


def complements(places: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the places of the first tree, and those of the second: mirrored if they are even, moved by one if odd."""
    return places, places[::-1] if len(places) % 2 == 0 else (*places[1:], places[0])


def by_node(topology: Topology, group: Sequence[int]) -> list[list[int]] | None:
    """Return the ranks of a group by node; None where there are no nodes, only one, or not as many ranks in each."""
    if len(topology.dimensions) < 2 or topology.dimensions[1].block != "switch":
        return None
    size = topology.dimensions[0].size
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(rank // size, []).append(rank)
    if len(nodes) < 2 or len({len(ranks) for ranks in nodes.values()}) > 1:
        return None
    return list(nodes.values())
