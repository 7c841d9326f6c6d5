"""Ranks that do the same: along some axes of the mesh every rank does what the first one does, to itself or to its own group.

So one rank stands for all that differ from it along these axes alone, and a group or a pair of ranks for its copies: the same
ranks moved along the axes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from triosim.extrapolators.mesh import Mesh
from triosim.networks.quotient import Rotation


@dataclass(frozen=True, slots=True)
class Copies:
    """Where the copies of a group stand: ``steps`` along each axis, of so many ranks each (its whole size: no copy there)."""

    steps: tuple[int, ...]


class Symmetry:
    """The ranks of a mesh, of which those along ``axes`` do the same. Moves are places along these axes."""

    def __init__(self, mesh: Mesh, axes: Sequence[str]) -> None:
        rotations: list[Rotation] = []
        stride = 1
        for axis in mesh.axes:
            if axis.name in axes:
                rotations.append(Rotation(stride, axis.size))
            stride *= axis.size
        self.rotations = tuple(rotations)  # one an axis
        self.world = mesh.world

    @property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that stand for themselves and for others."""
        return tuple(rank for rank in range(self.world) if self.representative(rank) == rank)

    def representative(self, rank: int) -> int:
        """Return the rank that stands for one."""
        return rank - sum(rotation.place(rank) * rotation.stride for rotation in self.rotations)

    def copies(self, ranks: Sequence[int]) -> Copies | None:
        """Return where the copies of some ranks stand; None where they are no block along an axis, so that nobody can say.

        Along an axis the ranks stand at one place, or at the first ones.
        """
        steps = []
        for rotation in self.rotations:
            places = sorted({rotation.place(rank) for rank in ranks})
            if places != list(range(len(places))) or rotation.size % len(places):
                return None
            steps.append(len(places))
        return Copies(tuple(steps))

    def moves(self, copies: Copies, still: Container[Rotation] = ()) -> Iterator[tuple[int, ...]]:
        """Yield the moves that lead to the copies of a group, the first of which leaves it where it is.

        Along the axes that are ``still`` nothing moves.
        """
        axes = zip(self.rotations, copies.steps, strict=True)
        yield from product(*(range(0, 1 if axis in still else axis.size, step) for axis, step in axes))

    def count(self, copies: Copies) -> int:
        """Return how many copies there are, the group itself among them."""
        return math.prod(axis.size // step for axis, step in zip(self.rotations, copies.steps, strict=True))

    def by(self, move: Sequence[int]) -> int:
        """Return by how much a move changes a rank's number."""
        return sum(place * axis.stride for place, axis in zip(move, self.rotations, strict=True))

    def then(self, first: Sequence[int], second: Sequence[int], copies: Copies) -> tuple[int, ...]:
        """Return the move to the copy that two moves, one after the other, lead to."""
        return tuple(
            (a + b) % axis.size // step * step
            for a, b, axis, step in zip(first, second, self.rotations, copies.steps, strict=True)
        )
