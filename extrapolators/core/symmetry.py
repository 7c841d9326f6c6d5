"""Symmetries of a mesh: ranks along some axes run the same tasks, each with its own communicators.

One representative is simulated for all ranks that differ from it along these axes alone, and one group or transfer for its
orbit: the groups or transfers that shifts along the axes turn it into.
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
class Orbit:
    """The groups (or transfers) that shifts turn one group into: along each axis there is one every ``steps`` ranks.

    Where a step is the axis' whole size, the group spans the axis, and shifts along this axis do not change it.
    """

    steps: tuple[int, ...]


class Symmetry:
    """The symmetry of a mesh whose ranks along ``axes`` do the same. A shift is how far to rotate along each of these axes.

    Where an axis is divided into subgroups, ranks at equal coordinates of their subgroups do the same; ranks within a
    subgroup do if its name is among the axes. With ``rings``, what a rank sends to the next one along an axis, every rank of
    the axis sends to its next, the last one to the first.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], *, rings: bool = False) -> None:
        self.rotations = tuple(_rotations(mesh, axes))
        self.world = mesh.world
        self._rings = rings
        self._multiplicities: dict[tuple[int, ...], int] = {}

    @property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that represent their class."""
        return tuple(rank for rank in range(self.world) if self.representative(rank) == rank)

    @property
    def class_size(self) -> int:
        """How many ranks each representative stands for, itself among them."""
        return math.prod(rotation.size for rotation in self.rotations)

    def representative(self, rank: int) -> int:
        """Return the representative of the class that a rank belongs to."""
        return rank - sum(rotation.position(rank) * rotation.stride for rotation in self.rotations)

    def without_one_axis(self) -> Iterator[Symmetry]:
        """Yield the weaker symmetries that lack one of the axes, the shortest axis first."""
        for left_out in sorted(self.rotations, key=lambda rotation: rotation.size):
            rest = tuple(rotation for rotation in self.rotations if rotation is not left_out)
            if rest:
                found = copy(self)
                found.rotations, found._multiplicities = rest, {}
                yield found

    def orbit(self, ranks: Sequence[int]) -> Orbit | None:
        """Return the orbit of a group whose coordinates along each axis are 0 to n - 1, where n divides the axis, or None."""
        steps = []
        for rotation in self.rotations:
            positions = sorted({rotation.position(rank) for rank in ranks})
            if positions != list(range(len(positions))) or rotation.size % len(positions):
                return None
            steps.append(len(positions))
        return Orbit(tuple(steps))

    def transfer_orbit(self, source: int, destination: int) -> Orbit | None:
        """Return the orbit of a transfer from a representative; None where it is not known."""
        alone = all(rotation.position(source) == rotation.position(destination) == 0 for rotation in self.rotations)
        rings = self._rings and self.representative(source) == source
        return Orbit((1,) * len(self.rotations)) if alone or rings else None

    def representative_transfer(self, source: int, destination: int) -> tuple[int, int]:
        """Return source and destination of the transfer from a representative that the given transfer is a copy of."""
        for rotation in self.rotations:
            back = -rotation.position(source)
            if back:
                source, destination = rotation.shifted(source, back), rotation.shifted(destination, back)
        return source, destination

    def shifted(self, rank: int, shift: Sequence[int]) -> int:
        """Return the rank that a shift turns ``rank`` into; the last rank of an axis is followed by the first."""
        for steps, rotation in zip(shift, self.rotations, strict=True):
            if steps:
                rank = rotation.shifted(rank, steps)
        return rank

    def shifts(self, orbit: Orbit, still: Container[Rotation] = ()) -> Iterator[tuple[int, ...]]:
        """Yield one shift for each member of an orbit, the identity first; along the axes ``still`` all shifts are 0."""
        axes = zip(self.rotations, orbit.steps, strict=True)
        yield from product(*(range(0, 1 if axis in still else axis.size, step) for axis, step in axes))

    def group_multiplicity(self, ranks: Sequence[int]) -> int:
        """Return how many groups a simulated group represents."""
        key = tuple(ranks)
        if key not in self._multiplicities:
            found = self.orbit(key)
            self._multiplicities[key] = 1 if found is None else self._size(found)
        return self._multiplicities[key]

    def transfer_multiplicity(self, source: int, destination: int) -> int:
        """Return how many transfers a simulated transfer represents."""
        found = self.transfer_orbit(source, destination)
        return 1 if found is None else self._size(found)

    def _size(self, orbit: Orbit) -> int:
        return math.prod(axis.size // step for axis, step in zip(self.rotations, orbit.steps, strict=True))

    def rank_offset(self, shift: Sequence[int]) -> int:
        """Return what a shift adds to the numbers of a group's ranks, where none goes beyond the end of an axis."""
        return sum(steps * axis.stride for steps, axis in zip(shift, self.rotations, strict=True))

    def combined_shift(self, first: Sequence[int], second: Sequence[int], orbit: Orbit) -> tuple[int, ...]:
        """Return the shift, as ``shifts`` yields it, to the member of an orbit that two shifts in a row lead to."""
        return tuple(
            (a + b) % axis.size // step * step
            for a, b, axis, step in zip(first, second, self.rotations, orbit.steps, strict=True)
        )


def _rotations(mesh: Mesh, axes: Sequence[str]) -> Iterator[Rotation]:
    """Yield a rotation for each axis; for a divided axis one within its subgroups, and one from subgroup to subgroup."""
    stride = 1
    for axis in mesh.axes:
        inside = {view.name: mesh.subgroup_extent(view, axis.name) for view in mesh.subgroups if axis.name in view.axes}
        bounds = sorted({1, axis.size, *(size or 0 for size in inside.values())})
        whole = bounds[0] > 0 and not any(outer % inner for inner, outer in pairwise(bounds))
        for inner, outer in pairwise(bounds) if whole else ():
            of = {name for name, size in inside.items() if size is not None and outer <= size}
            if axis.name in axes and of.issubset(axes):
                yield Rotation(stride * inner, outer // inner)
        stride *= axis.size
