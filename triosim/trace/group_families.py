"""Families of communication groups: groups of one size whose ranks are equally far apart, as those of an axis of a mesh are.

Task streams name a family and a rank; in each family a rank is in at most one group.
"""

from __future__ import annotations

from collections.abc import Mapping

Ranks = tuple[int, ...]
WORLD = "world"


class GroupFamilies:
    """The families of groups that are asked for, one after the other; the world is there from the beginning."""

    def __init__(self, world: int) -> None:
        everyone = tuple(range(world))
        self._families: dict[str, list[Ranks]] = {WORLD: [everyone]}
        self._taken: dict[str, set[int]] = {WORLD: set(everyone)}
        self._purposes = {WORLD: ""}  # by family
        self._family_of: dict[tuple[str, Ranks], str] = {("", everyone): WORLD}

    def of(self, name: str, members: Ranks, purpose: str = "") -> str:
        """Return the family of a group; new groups join the first one of their ``purpose`` ("tp") in which they fit."""
        found = self._family_of.get((name, members))
        if found is None:
            same = [one for one, known in self._purposes.items() if known == purpose]
            found = next((one for one in same if self._fits(members, one)), None)
            found = found or self._new_name(purpose, len(members))
            self._purposes.setdefault(found, purpose)
            self._families.setdefault(found, []).append(members)
            self._taken.setdefault(found, set()).update(members)
            self._family_of[name, members] = found
        return found

    @property
    def groups(self) -> Mapping[str, tuple[Ranks, ...]]:
        """The groups of each family."""
        return {name: tuple(groups) for name, groups in self._families.items()}

    def _new_name(self, purpose: str, size: int) -> str:
        if purpose and purpose not in self._families:
            return purpose
        return f"{purpose or 'groups'} of {size}, {len(self._families)}"

    def _fits(self, members: Ranks, family: str) -> bool:
        """Whether a group is of a family: as large as its others, as far apart, and of other ranks."""
        other = self._families[family][0]
        alike = len(members) > 1 and len(other) == len(members) and _steps(other) == _steps(members)
        return alike and self._taken[family].isdisjoint(members)


def _steps(members: Ranks) -> list[int]:
    return [rank - members[0] for rank in members]
