"""Which groups of ranks a distributed script makes: families of groups that divide the world in the same way.

Every rank makes all groups in the same order, also those that it is not in (``torch.distributed.new_group``), so one rank tells
the groups of all. Groups of one size that share no rank and have one description are a family, up to the whole world; the
dimensions of a device mesh give theirs their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: The family of the group of all ranks.
WORLD = "world"
_MESH = "mesh_"


@dataclass(slots=True)
class _Family:
    """Groups that divide the world; ``described`` is how the script, or PyTorch, describes each of them."""

    name: str
    size: int
    described: str
    groups: list[tuple[int, ...]] = field(default_factory=list)
    members: set[int] = field(default_factory=set)


class Groups:
    """The families of groups that a script has made, by name."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._families: list[_Family] = []
        self._of_group: dict[str, str] = {}  # PyTorch's name of a group that this rank is in, and the family's
        self.data: set[str] = set()  # families whose ranks work on samples of their own
        self.made(tuple(range(world)), WORLD)

    @property
    def families(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The groups of each family."""
        return {family.name: tuple(family.groups) for family in self._families}

    def made(self, ranks: Sequence[int], described: str) -> str:
        """A group was made; return the name of its family."""
        members = tuple(ranks)
        for family in reversed(self._families):
            if (family.size, family.described) != (len(members), described):
                continue
            if len(family.members) < self.world and family.members.isdisjoint(members):
                break
        else:
            family = _Family(self._free_name(described), len(members), described)
            self._families.append(family)
        family.groups.append(members)
        family.members.update(members)
        return family.name

    def name(self, group: str, family: str) -> None:
        """Note that the group which PyTorch knows by this name belongs to a family."""
        self._of_group[group] = family

    def family(self, group: str) -> str:
        """Return the family of one of this rank's groups, by PyTorch's name of it."""
        return self._of_group.get(group, WORLD)

    def members(self, family: str, rank: int) -> tuple[int, ...]:
        """Return the group of a family that a rank is in."""
        known = next(one for one in self._families if one.name == family)
        return next(group for group in known.groups if rank in group)

    def _free_name(self, described: str) -> str:
        name = described.removeprefix(_MESH) if described not in ("", "undefined") else "group"
        taken = {family.name for family in self._families}
        if name not in taken:
            return name
        number = 2
        while f"{name} {number}" in taken:
            number += 1
        return f"{name} {number}"
