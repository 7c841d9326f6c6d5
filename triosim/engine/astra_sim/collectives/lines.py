"""The ranks among which one phase of a collective runs: a ring of them, or one of two binary trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.engine.astra_sim.faults import Stopped


class Line:
    """Ranks in the order of their ring, as one of them sees it; ``local`` is that of a communicator group."""

    def __init__(self, ranks: Sequence[int], rank: int, *, local: bool = False) -> None:
        self.ranks, self.rank, self.local = tuple(ranks), rank, local
        self._positions = {other: position for position, other in enumerate(self.ranks)}
        self.position = self._positions[rank]

    def __len__(self) -> int:
        return len(self.ranks)

    def beside(self, rank: int, steps: int) -> int:
        """Return the rank so many steps on from another, backwards if negative."""
        return self.ranks[(self._positions[rank] + steps) % len(self.ranks)]


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A rank's place in a binary tree: its parent and its children, where it has them."""

    parent: int | None
    children: tuple[int, ...]


def trees(line: Line) -> tuple[TreePlace, TreePlace]:
    """Return a rank's places in the two trees of a double binary tree: rooted in the last rank, and in the first.

    The root's only child is the root of a complete binary tree over the others, numbered in order. The trees have as many
    places as the largest power of two that is no more than the ranks; ASTRA-sim crashes at a rank without one, and in a group.
    """
    last = (1 << (len(line).bit_length() - 1)) - 1
    if line.local or line.position > last:
        raise Stopped(f"doubleBinaryTree among {len(line)} ranks, which crashes: use a power of two, and no group")
    found = []
    for root, others in ((last, range(last)), (0, range(1, last + 1))):
        parents = dict(_parents(others, root))
        children = tuple(sorted(child for child, parent in parents.items() if parent == line.position))
        parent = parents.get(line.position)
        named = tuple(line.ranks[child] for child in children)
        found.append(TreePlace(None if parent is None else line.ranks[parent], named))
    return found[0], found[1]


def _parents(members: range, parent: int) -> list[tuple[int, int]]:
    """Return each member of a complete tree, numbered in order, with its parent."""
    if not members:
        return []
    middle = len(members) // 2
    root = members[middle]
    return [(root, parent), *_parents(members[:middle], root), *_parents(members[middle + 1 :], root)]
