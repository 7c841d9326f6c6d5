"""Ranks that do the same: along some axes of the mesh every rank does what the first one does, to itself or to its own group.

So one rank stands for all that differ from it along these axes alone, and a group or a pair of ranks for its copies: the same
ranks moved along the axes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise, product

from triosim.extrapolators.core.mesh import Mesh
from triosim.networks.topology.link_symmetry import Rotation


@dataclass(frozen=True, slots=True)
class Copies:
    """Where the copies of a group stand: ``steps`` along each axis, of so many ranks each (its whole size: no copy there)."""

    steps: tuple[int, ...]


class Symmetry:
    """The ranks of a mesh, of which those along ``axes`` do the same. Moves are places along these axes.

    Where an axis has ``parts``, those at the same place of each part do the same, and those within one if its name is an axis.
    In ``rings`` what one of them sends to the next, each does, the last one to the first.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], *, rings: bool = False) -> None:
        self.rotations = tuple(_rotations(mesh, axes))
        self.world = mesh.world
        self._rings = rings
        self._groups: dict[tuple[int, ...], int] = {}

    @property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that stand for themselves and for others."""
        return tuple(rank for rank in range(self.world) if self.representative(rank) == rank)

    def representative(self, rank: int) -> int:
        """Return the rank that stands for one."""
        return rank - sum(rotation.position(rank) * rotation.stride for rotation in self.rotations)

    def fewer(self) -> Iterator[Symmetry]:
        """Yield what is left without one of the axes, the shortest first."""
        for left_out in sorted(self.rotations, key=lambda rotation: rotation.size):
            rest = tuple(rotation for rotation in self.rotations if rotation is not left_out)
            if rest:
                found = copy(self)
                found.rotations, found._groups = rest, {}
                yield found

    def copies(self, ranks: Sequence[int]) -> Copies | None:
        """Return where the copies of some ranks stand; None where they are no block along an axis, so that nobody can say.

        Along an axis the ranks stand at one place, or at the first ones.
        """
        steps = []
        for rotation in self.rotations:
            places = sorted({rotation.position(rank) for rank in ranks})
            if places != list(range(len(places))) or rotation.size % len(places):
                return None
            steps.append(len(places))
        return Copies(tuple(steps))

    def pair(self, source: int, destination: int) -> Copies | None:
        """Return where the copies of what a representative sends to another rank stand; None where nobody can say."""
        alone = all(rotation.position(source) == rotation.position(destination) == 0 for rotation in self.rotations)
        rings = self._rings and self.representative(source) == source
        return Copies((1,) * len(self.rotations)) if alone or rings else None

    def origin(self, source: int, destination: int) -> tuple[int, int]:
        """Return between which ranks goes what stands for a transfer: the one of which it is a copy, from a representative."""
        for rotation in self.rotations:
            place = rotation.position(source)
            if place:
                source, destination = rotation.shifted(source, -place), rotation.shifted(destination, -place)
        return source, destination

    def moved(self, rank: int, move: Sequence[int]) -> int:
        """Return the rank that a move leads to, beyond the last one of an axis from the first one on."""
        for place, rotation in zip(move, self.rotations, strict=True):
            if place:
                rank = rotation.shifted(rank, place)
        return rank

    def moves(self, copies: Copies, still: Container[Rotation] = ()) -> Iterator[tuple[int, ...]]:
        """Yield the moves that lead to the copies of a group, the first of which leaves it where it is.

        Along the axes that are ``still`` nothing moves.
        """
        axes = zip(self.rotations, copies.steps, strict=True)
        yield from product(*(range(0, 1 if axis in still else axis.size, step) for axis, step in axes))

    def groups(self, ranks: Sequence[int]) -> int:
        """Return for how many groups one stands."""
        key = tuple(ranks)
        if key not in self._groups:
            found = self.copies(key)
            self._groups[key] = 1 if found is None else self._count(found)
        return self._groups[key]

    def pairs(self, source: int, destination: int) -> int:
        """Return for how many transfers one stands."""
        found = self.pair(source, destination)
        return 1 if found is None else self._count(found)

    def _count(self, copies: Copies) -> int:
        return math.prod(axis.size // step for axis, step in zip(self.rotations, copies.steps, strict=True))

    def by(self, move: Sequence[int]) -> int:
        """Return by how much a move to a copy of a group changes the numbers of its ranks."""
        return sum(place * axis.stride for place, axis in zip(move, self.rotations, strict=True))

    def then(self, first: Sequence[int], second: Sequence[int], copies: Copies) -> tuple[int, ...]:
        """Return the move to the copy that two moves, one after the other, lead to."""
        return tuple(
            (a + b) % axis.size // step * step
            for a, b, axis, step in zip(first, second, self.rotations, copies.steps, strict=True)
        )


def _rotations(mesh: Mesh, axes: Sequence[str]) -> Iterator[Rotation]:
    """One rotation an axis; where it has parts, one along the neighbours in a part, and one from part to part."""
    stride = 1
    for axis in mesh.axes:
        inside = {view.name: mesh.within(view, axis.name) for view in mesh.parts if axis.name in view.axes}
        bounds = sorted({1, axis.size, *(size or 0 for size in inside.values())})
        whole = bounds[0] > 0 and not any(outer % inner for inner, outer in pairwise(bounds))
        for inner, outer in pairwise(bounds) if whole else ():
            of = {name for name, size in inside.items() if size is not None and outer <= size}
            if axis.name in axes and of.issubset(axes):
                yield Rotation(stride * inner, outer // inner)
        stride *= axis.size
