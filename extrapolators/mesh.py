"""The mesh: how ranks are laid out along the axes of the parallelisms, and the communicators along them.

Ranks count up along the first axis first. Axes stand in Megatron's order (Narayanan et al. 2021): tensor fastest, so that
its groups sit in one node, then data, then pipeline slowest; a parallelism's ``order`` says where its axis goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from triosim.errors import OptionError, nearest
from triosim.tasks import Communicator


@dataclass(frozen=True, slots=True)
class Axis:
    """A name and how many ranks stand along it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks 0 to ``world`` - 1 on a grid. The first axis is the fastest."""

    axes: tuple[Axis, ...]
    _groups: dict[tuple[str, int, int], Communicator] = field(default_factory=dict, compare=False, repr=False)

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
        """How many ranks there are."""
        return math.prod(axis.size for axis in self.axes)

    def coordinate(self, axis: str, rank: int) -> int:
        """Return a rank's place along an axis."""
        stride, size = self._stride(axis)
        return rank // stride % size

    def neighbour(self, axis: str, rank: int, place: int) -> int:
        """Return the rank that stands at ``place`` along an axis, and where ``rank`` stands along the others."""
        stride, size = self._stride(axis)
        if not 0 <= place < size:
            raise IndexError(f"axis '{axis}' has {size} places, not one of number {place}")
        return rank + (place - rank // stride % size) * stride

    def group(self, axis: str, rank: int, parts: int = 1) -> Communicator:
        """Return the communicator of the ranks that differ from ``rank`` along one axis alone; of ``parts``, the one it is in.

        Parts are of neighbours along the axis, each as large: of 0 to 7 in two parts, 0 to 3 and 4 to 7.
        """
        stride, size = self._stride(axis)
        if size % parts:
            raise IndexError(f"axis '{axis}' has {size} places, which are no {parts} parts of one size")
        each = size // parts
        first = self.neighbour(axis, rank, self.coordinate(axis, rank) // each * each)
        found = self._groups.get((axis, first, parts))
        if found is None:
            found = Communicator(tuple(range(first, first + each * stride, stride)), axis)
            self._groups[axis, first, parts] = found
        return found

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
