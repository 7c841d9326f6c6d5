"""Ranks that do the same: along some axes of the mesh every rank does what the first one does, to itself or to its own group.

So one rank stands for all that differ from it along these axes alone, and a group or a pair of ranks for its copies: the same
ranks moved along the axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from triosim.extrapolators.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Copies:
    """Where the copies of a group stand: ``steps`` along each axis, of so many ranks each (its whole size: no copy there)."""

    steps: tuple[int, ...]


class Symmetry:
    """The ranks of a mesh, of which those along ``axes`` do the same. Moves are places along these axes."""

    def __init__(self, mesh: Mesh, axes: Sequence[str]) -> None:
        self._strides: list[int] = []
        self._sizes: list[int] = []
        stride = 1
        for axis in mesh.axes:
            if axis.name in axes:
                self._strides.append(stride)
                self._sizes.append(axis.size)
            stride *= axis.size
        self.world = mesh.world

    @property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that stand for themselves and for others."""
        return tuple(rank for rank in range(self.world) if self.representative(rank) == rank)

    def representative(self, rank: int) -> int:
        """Return the rank that stands for one."""
        return rank - sum(self._place(rank, axis) * stride for axis, stride in enumerate(self._strides))

    def copies(self, ranks: Sequence[int]) -> Copies | None:
        """Return where the copies of some ranks stand; None where they are no block along an axis, so that nobody can say.

        Along an axis the ranks stand at one place, or at the first ones.
        """
        steps = []
        for axis, size in enumerate(self._sizes):
            places = sorted({self._place(rank, axis) for rank in ranks})
            if places != list(range(len(places))) or size % len(places):
                return None
            steps.append(len(places))
        return Copies(tuple(steps))

    def moves(self, copies: Copies) -> Iterator[tuple[int, ...]]:
        """Yield the moves that lead to the copies of a group, the first of which leaves it where it is."""
        yield from product(*(range(0, size, step) for size, step in zip(self._sizes, copies.steps, strict=True)))

    def count(self, copies: Copies) -> int:
        """Return how many copies there are, the group itself among them."""
        return math.prod(size // step for size, step in zip(self._sizes, copies.steps, strict=True))

    def by(self, move: Sequence[int]) -> int:
        """Return by how much a move changes a rank's number."""
        return sum(place * stride for place, stride in zip(move, self._strides, strict=True))

    def then(self, first: Sequence[int], second: Sequence[int], copies: Copies) -> tuple[int, ...]:
        """Return the move to the copy that two moves, one after the other, lead to."""
        return tuple(
            (a + b) % size // step * step
            for a, b, size, step in zip(first, second, self._sizes, copies.steps, strict=True)
        )

    def _place(self, rank: int, axis: int) -> int:
        return rank // self._strides[axis] % self._sizes[axis]
