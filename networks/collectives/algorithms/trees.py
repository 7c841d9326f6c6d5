"""Reductions and broadcasts along a tree, in chunks that follow each other: the base of chain, tree and double tree.

A reduction goes up: a rank sends a chunk on when it has come from all its children. A broadcast goes down. An
all-reduce is both, and a chunk turns round at the root as soon as it is complete there, while others are still on
their way up (Sanders, Speck and Träff 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from triosim.networks.collectives.algorithm import Transfer
from triosim.tasks import CollectiveKind

LARGEST_CHUNK = 512 * 1024  # bytes; a slot of NCCL's buffers (4 MiB in 8 steps)
MOST_CHUNKS = 16

Parents = Mapping[int, int]  # of all ranks but the root


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
