"""Classes of ranks that do the same at the same time, whatever the others do: the coarsest equitable partition of the ranks.

Two ranks are in one class where they run the same, and where their groups consist of the same numbers of ranks of each class:
then they wait for partners that come at the same times. It is found by refining the classes of equal ranks until they no
longer change (Cardon and Crochemore, Partitioning a graph in O(|A| log |V|), Theoretical Computer Science 19, 1982). On a
mesh whose first and last rank are apart, each axis has three classes: the groups of the one, of the other, and all between.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Orbit, Symmetry

#: Ranks that communicate with each other: a process group, or sender and receiver.
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Groups that are used alike, by what they are called, such as the axis of a mesh."""

    name: Hashable
    groups: tuple[Group, ...]


class RankClasses(Symmetry):
    """The classes of ranks of a world, and of the groups in which they communicate.

    ``like`` is what each rank runs. A collective starts when a rank of each class in its group has come, because the others of
    the class come with it. It is the only one of its kind where the group has no copies.

    Raises ``AsymmetryError`` where the ranks that stand for the classes of a group are not all in one.
    """

    def __init__(self, like: Sequence[int], uses: Iterable[GroupUse] = ()) -> None:
        self.rotations = ()
        self.world = len(like)
        self._rings = False
        self._multiplicities = {}
        known = [GroupUse(use.name, tuple(one for one in use.groups if 1 < len(one) < self.world)) for use in uses]
        classes, of_groups = _refined(list(like), known)
        first = {number: rank for rank, number in reversed(list(enumerate(classes)))}
        self._first = [first[number] for number in classes]
        self._copies = self._copies_of(known, of_groups)

    def representative(self, rank: int) -> int:
        """Return the first rank of the class that a rank belongs to."""
        return self._first[rank]

    def copies(self, ranks: Sequence[int]) -> tuple[Group, ...]:
        """Return the groups that do what a simulated one does, that one first."""
        return self._copies.get(tuple(ranks), (tuple(ranks),))

    @property
    def has_copies(self) -> bool:
        """Whether some group stands for others."""
        return any(len(copies) > 1 for copies in self._copies.values())

    def group_multiplicity(self, ranks: Sequence[int]) -> int:
        """Return how many groups a simulated group represents."""
        return len(self.copies(ranks))

    def transfer_orbit(self, source: int, destination: int) -> Orbit | None:
        """Return the only orbit that there is."""
        return Orbit(())

    def transfer_multiplicity(self, source: int, destination: int) -> int:
        """Return how many transfers a simulated transfer represents."""
        return len(self.copies((source, destination)))

    def _copies_of(
        self, uses: Sequence[GroupUse], of_groups: Sequence[Sequence[int]]
    ) -> dict[Group, tuple[Group, ...]]:
        found: dict[Group, tuple[Group, ...]] = {}
        for use, numbers in zip(uses, of_groups, strict=True):
            members: dict[int, list[Group]] = {}
            for group, number in zip(use.groups, numbers, strict=True):
                members.setdefault(number, []).append(group)
            for alike in members.values():
                for group in alike:
                    if any(self._first[rank] == rank for rank in group):
                        self._check_complete(group)
                        copies = (group, *(one for one in alike if one != group))
                        if found.setdefault(group, copies) != copies:
                            raise AsymmetryError(f"what is like the group {group} depends on what it is used for")
        return found

    def _check_complete(self, group: Group) -> None:
        if any(self._first[rank] not in group for rank in group):
            raise AsymmetryError(f"the ranks that stand for those of the group {group} are in different groups")


def _refined(like: Sequence[int], uses: Sequence[GroupUse]) -> tuple[list[int], list[list[int]]]:
    """Return the class of each rank, and of each group of each use."""
    classes = _numbered(like)
    while True:
        of_groups: list[list[int]] = []
        seen: list[list[tuple[int, int]]] = [[] for _ in like]
        for place, use in enumerate(uses):
            # The order counts: a rank may be a root, or the sender.
            numbers = _numbered([tuple([classes[rank] for rank in group]) for group in use.groups])
            of_groups.append(numbers)
            for group, number in zip(use.groups, numbers, strict=True):
                for rank in group:
                    seen[rank].append((place, number))
        finer = _numbered([(classes[rank], tuple(sorted(seen[rank]))) for rank in range(len(like))])
        if len(set(finer)) == len(set(classes)):
            return classes, of_groups
        classes = finer


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Return a number for each key, in the order in which they are first seen."""
    numbers: Mapping[Hashable, int] = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]
