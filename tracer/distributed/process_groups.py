"""The process groups that a distributed script makes, by axis: groups of one size and description that share no rank.

Every rank makes all groups in the same order, also those that it is not in (``torch.distributed.new_group``), so one rank knows
the groups of all. The groups of an axis divide the world, or the part of it for which groups were made. The dimensions of a
device mesh give their axes their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triosim.trace.sample_axes import SampleAxes

#: The axis of the group of all ranks.
WORLD = "world"
_MESH = "mesh_"


@dataclass(slots=True)
class _Axis:
    """Groups that divide the world; ``description`` is the one that the script, or PyTorch, gave each of them."""

    name: str
    size: int
    description: str
    groups: list[tuple[int, ...]] = field(default_factory=list)
    members: set[int] = field(default_factory=set)


class ProcessGroups:
    """The axes of the groups that a script has made, and those that say which samples a rank has."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._data_parallel: set[str] = set()
        self._context_parallel: set[str] = set()
        self._axes: list[_Axis] = []
        self._axis_of: dict[str, str] = {}  # by PyTorch's name of a group that this rank is in
        self.add(tuple(range(world)), WORLD)

    @property
    def groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The groups of each axis."""
        return {axis.name: tuple(axis.groups) for axis in self._axes}

    @property
    def sample_axes(self) -> SampleAxes:
        """The axes that say which samples a rank has, as far as the script has come."""
        return SampleAxes(frozenset(self._data_parallel), frozenset(self._context_parallel))

    def add(self, ranks: Sequence[int], description: str) -> str:
        """Add a group that was made, and return the name of its axis."""
        members = tuple(ranks)
        for axis in reversed(self._axes):
            if (axis.size, axis.description) != (len(members), description):
                continue
            if len(axis.members) < self.world and axis.members.isdisjoint(members):
                break
        else:
            axis = _Axis(self._free_name(description), len(members), description)
            self._axes.append(axis)
        axis.groups.append(members)
        axis.members.update(members)
        return axis.name

    def join(self, group: str, axis: str) -> None:
        """Note that this rank is in a group of an axis, which PyTorch knows by this name."""
        self._axis_of[group] = axis

    def axis(self, group: str) -> str:
        """Return the axis of one of this rank's groups, by PyTorch's name of the group."""
        return self._axis_of.get(group, WORLD)

    def reduces_gradients(self, group: str) -> None:
        """Note that gradients are reduced over one of this rank's groups, so that its ranks have samples of their own."""
        self.reduces_gradients_over(self.axis(group))

    def reduces_gradients_over(self, axis: str) -> None:
        """Note that gradients are reduced over the groups of an axis."""
        self._data_parallel.add(axis)

    def shares_samples(self, group: str) -> None:
        """Note that the ranks of one of this rank's groups have parts of the same samples."""
        self._context_parallel.add(self.axis(group))

    def _free_name(self, description: str) -> str:
        name = description.removeprefix(_MESH) if description not in ("", "undefined") else "group"
        taken = {axis.name for axis in self._axes}
        if name not in taken:
            return name
        number = 2
        while f"{name} {number}" in taken:
            number += 1
        return f"{name} {number}"
