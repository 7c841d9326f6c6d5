"""Reductions and broadcasts along trees, in chunks that follow each other, and the algorithm of one binary tree.

A reduction goes up: a rank sends a chunk on when it has come from all its children. A broadcast goes down. An
all-reduce is both, and a chunk turns round at the root as soon as it is complete there, while others are still on
their way up (Sanders, Speck and Träff 2009). Of the binary tree all kinds but all-reduce, broadcast and reduce go round the
ring or straight, as in NCCL, whose tree is for all-reduce only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from triosim.networks.collectives.algorithm import (
    CollectiveOperation,
    OperationAlgorithm,
    SteadyState,
    Transfer,
    merged,
    steady_state_of,
)
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.collectives.ring_order import ring_order, rooted
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

LARGEST_CHUNK = 512 * 1024  # bytes; a slot of NCCL's buffers (4 MiB in 8 steps)
MOST_CHUNKS = 16

Parents = Mapping[int, int]  # of all ranks but the root
_ALONG_TREES = frozenset({"all_reduce", "broadcast", "reduce"})


class Tree(OperationAlgorithm):
    """One in-order binary tree, laid along the ring; a subclass may have several, each for a part of the data.

    It takes log2 N hops up and down, for small messages; a rank in it moves three times the data of a leaf.
    """

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


def chunks_of(nbytes: float) -> int:
    """Return into how many chunks a message is cut: small ones stay whole, as latency counts."""
    return int(min(max(-(-nbytes // LARGEST_CHUNK), 1), MOST_CHUNKS))


def along_tree(kind: CollectiveKind, parents: Parents, nbytes: float, chunks: int) -> Iterator[Transfer]:
    """Yield the transfers of an all-reduce, a reduce or a broadcast. A rank sends one chunk at a time on each edge."""
    order = _top_down(parents)
    size = nbytes / chunks
    up: dict[int, int] = {}  # the number of a rank's last transfer to its parent
    down: dict[int, int] = {}  # of the last from its parent
    children: dict[int, list[int]] = {}
    for child in order:
        children.setdefault(parents[child], []).append(child)
    number = 0
    for chunk in range(chunks):
        if kind != "broadcast":
            for child in reversed(order):
                before = (up[child],) if chunk else ()
                incoming = tuple(up[grandchild] for grandchild in children.get(child, ()))
                yield Transfer(child, parents[child], chunk, size, "reduce", before + incoming)
                up[child] = number
                number += 1
        if kind != "reduce":
            for child in order:
                parent = parents[child]
                before = (down[child],) if chunk else ()
                if parent in parents:
                    incoming = (down[parent],)
                elif kind == "all_reduce":
                    incoming = tuple(up[other] for other in children[parent])
                else:
                    incoming = ()
                yield Transfer(parent, child, chunk, size, "copy", before + incoming)
                down[child] = number
                number += 1


def _top_down(parents: Parents) -> list[int]:
    """Return all ranks but the root, each after its parent."""
    depth: dict[int, int] = {}
    for rank in parents:
        path = []
        here = rank
        while here in parents and here not in depth:
            path.append(here)
            here = parents[here]
        at = depth.get(here, 0)
        for step, passed in enumerate(reversed(path), start=1):
            depth[passed] = at + step
    return sorted(depth, key=lambda rank: depth[rank])


def binary(places: Sequence[int]) -> dict[int, int]:
    """Return the parents in the in-order binary tree over places: the odd ones are leaves, the first is the root.

    The height of a place is that of its lowest bit; the parent is one bit higher, on the side where there is one.
    """
    n = len(places)
    parents = {}
    for place in range(1, n):
        bit = place & -place
        above = (place ^ bit) | (bit << 1)
        parents[places[place]] = places[above if above < n else place ^ bit]
    return parents


def chain(places: Sequence[int]) -> dict[int, int]:
    """Return the parents in a chain that ends at the first place."""
    return {rank: places[place] for place, rank in enumerate(places[1:])}
