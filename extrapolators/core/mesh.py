"""The mesh: the layout of ranks along the axes of the parallelisms, and the communicators along them.

Ranks count up along the first axis first. Axes are in Megatron's order (Narayanan et al. 2021): tensor fastest, so that
its groups sit in one node, then context, then data, then pipeline slowest; a parallelism's ``order`` says where its axis goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from triosim.errors import OptionError, nearest
from triosim.tasks import Communicator


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis and the number of ranks along it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Subgroups:
    """An axis that adds no ranks: it divides the ranks along some axes, taken as one, into subgroups of ``size`` neighbours."""

    name: str
    axes: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class ExpertReplicas:
    """The ranks along some axes that hold the same experts: those with equal coordinates along the ``expert_axis``."""

    axes: tuple[str, ...]
    expert_axis: str


#: The axes that a group spans: one, several taken as one, or these among ranks with the same experts.
GroupAxes = str | tuple[str, ...] | ExpertReplicas


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks 0 to ``world`` - 1 on a grid. The first axis is the fastest."""

    axes: tuple[Axis, ...]
    subgroups: tuple[Subgroups, ...] = ()
    _groups: dict[tuple[object, ...], Communicator] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        for axis in self.axes:
            if axis.size < 1:
                raise OptionError(f"axis '{axis.name}' of {axis.size} GPUs", fix="an axis has 1 or more")
            if names.count(axis.name) > 1:
                raise OptionError(f"axis '{axis.name}' is given twice", fix="give each parallelism once")

    @classmethod
    def of(cls, **sizes: int) -> Mesh:
        """Return a mesh of axes by name, the fastest first: ``Mesh.of(tp=4, dp=2)``."""
        return cls(tuple(Axis(name, size) for name, size in sizes.items()))

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(axis.size for axis in self.axes)

    def coordinate(self, axis: str, rank: int) -> int:
        """Return a rank's coordinate along an axis, or in its subgroup."""
        for view in self.subgroups:
            if axis == view.name:
                return self._position(view.axes, rank) % view.size
        stride, size = self._stride(axis)
        return rank // stride % size

    def neighbour(self, axis: str, rank: int, coordinate: int) -> int:
        """Return the rank at another coordinate along an axis, whose other coordinates are those of ``rank``."""
        stride, size = self._stride(axis)
        if not 0 <= coordinate < size:
            raise IndexError(f"axis '{axis}' has {size} ranks, so {coordinate} is no coordinate along it")
        return rank + (coordinate - rank // stride % size) * stride

    def group(self, along: GroupAxes, rank: int, parts: int = 1) -> Communicator:
        """Return the communicator of the ranks that differ from ``rank`` along these axes alone; of ``parts``, its own.

        Parts are equally many neighbours along the axes: of 0 to 7 in two parts, 0 to 3 and 4 to 7.
        """
        if isinstance(along, ExpertReplicas):
            return self._expert_replicas(along, rank)
        for view in self.subgroups:
            if along == view.name:
                return self._subgroup(view, rank)
        names = self._ordered(along)
        size = math.prod(self._stride(name)[1] for name in names)
        if size % parts:
            raise IndexError(f"the {size} ranks of {'+'.join(names)} do not divide into {parts} parts")
        each, position = size // parts, self._position(names, rank)
        origin, first = rank - self._offset(names, position), position // each * each
        key = (names, origin + self._offset(names, first), parts)
        found = self._groups.get(key)
        if found is None:
            ranks = (origin + self._offset(names, one) for one in range(first, first + each))
            found = self._groups[key] = Communicator(tuple(ranks), "+".join(names))
        return found

    def subgroup_extent(self, view: Subgroups, axis: str) -> int | None:
        """Return the ranks that a subgroup has along an axis; None where subgroups begin at several coordinates of it."""
        left = view.size
        for name in self._ordered(view.axes):
            size = self._stride(name)[1]
            inside = math.gcd(left, size)
            if inside not in (left, size):
                return None
            if name == axis:
                return inside
            left //= inside
        raise OptionError(f"'{view.name}' has no parts along '{axis}'")

    def _subgroup(self, view: Subgroups, rank: int) -> Communicator:
        """Return the communicator of a rank's subgroup."""
        first = self._position(view.axes, rank) // view.size * view.size
        ranks = self.group(view.axes, rank).ranks[first : first + view.size]
        return self._groups.setdefault((view.name, ranks[0]), Communicator(ranks, view.name))

    def _expert_replicas(self, along: ExpertReplicas, rank: int) -> Communicator:
        """Return the communicator of the ranks with a rank's coordinate in their subgroups."""
        found = self._groups.get((along, rank))
        if found is None:
            (view,) = (view for view in self.subgroups if view.name == along.expert_axis)
            coordinate = self._position(view.axes, rank) % view.size
            whole = self.group(along.axes, rank)
            ranks = tuple(one for one in whole.ranks if self._position(view.axes, one) % view.size == coordinate)
            found = Communicator(ranks, f"expert {whole.name}")
            self._groups.update(((along, one), found) for one in ranks)
        return found

    def _position(self, axes: str | tuple[str, ...], rank: int) -> int:
        """Return a rank's coordinate along several axes taken as one, of which the mesh's fastest is the fastest."""
        found, before = 0, 1
        for name in self._ordered(axes):
            stride, size = self._stride(name)
            found += rank // stride % size * before
            before *= size
        return found

    def _offset(self, axes: tuple[str, ...], position: int) -> int:
        """Return how far the rank at a position along the axes is from the one at 0."""
        found = 0
        for name in axes:
            stride, size = self._stride(name)
            found += position % size * stride
            position //= size
        return found

    def _ordered(self, axes: str | tuple[str, ...]) -> tuple[str, ...]:
        """Return axes in the mesh's order."""
        if isinstance(axes, str):
            return (axes,)
        return tuple(axis.name for axis in self.axes if axis.name in axes)

    def _stride(self, name: str) -> tuple[int, int]:
        stride = 1
        for axis in self.axes:
            if axis.name == name:
                return stride, axis.size
            stride *= axis.size
        raise OptionError(f"the mesh has no axis '{name}'", fix=nearest(name, [axis.name for axis in self.axes]))


def layout(axes: Sequence[tuple[int, str, int]]) -> Mesh:
    """Return the mesh of (order, name, size) axes: the lowest order is the fastest; equal ones stay as they were given."""
    return Mesh(tuple(Axis(name, size) for _, name, size in sorted(axes, key=lambda axis: axis[0])))
