"""The selection of copies: which copies of the representatives' transfers have to be simulated, because they share links.

The copies of a pattern are its images by the shifts of a symmetry. Sets of links that flows share, directly or through
other flows, do not influence each other. A set with a representative's flow is simulated, with all copies in it. Any other
set must be the image of a simulated one, link by link with equal bandwidths and latencies: then everything in it takes the
same times, and it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from triosim.errors import AsymmetryError
from triosim.extrapolators.core.symmetry import Orbit, Symmetry
from triosim.folding.dry_run import PatternUse, TransferPattern
from triosim.folding.edges import Edges, memory_edges
from triosim.folding.shared_links import RankMap, SharedLinks
from triosim.networks.topology.link_symmetry import Rotation

Shift = tuple[int, ...]


def orbit_of(symmetry: Symmetry, pattern: TransferPattern) -> Orbit:
    """Return the orbit of a pattern. Raises ``AsymmetryError`` where it is not known."""
    if pattern.collective is None:
        found = symmetry.transfer_orbit(pattern.ranks[0], pattern.ranks[-1])
    else:
        found = symmetry.orbit(pattern.ranks)
    if found is None:
        raise AsymmetryError(f"the copies of the {pattern} are not known: the ranks are not a block of the mesh")
    return found


def rank_map(symmetry: Symmetry, pattern: TransferPattern, shift: Sequence[int]) -> RankMap | None:
    """Return what maps the ranks of a pattern to those of a copy; None for the pattern itself."""
    if not any(shift):
        return None
    if pattern.collective is None:
        return partial(symmetry.shifted, shift=shift)
    return symmetry.rank_offset(shift).__add__


def shifted_ranks(symmetry: Symmetry, pattern: TransferPattern, shift: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of a copy of a pattern."""
    mapped = rank_map(symmetry, pattern, shift)
    return pattern.ranks if mapped is None else tuple(map(mapped, pattern.ranks))


class _Copy(NamedTuple):
    """A copy of a pattern: the image of the representatives' one by a shift."""

    pattern: TransferPattern
    shift: Shift


class CopySelection:
    """The copies of each pattern that are simulated, given the ``edges`` of those between ranks.

    The links of all copies are added to ``links``.

    shifts: by pattern, the shifts to the copies that are simulated, its own (0 along each axis) first.
    images: for each set of links that is left out, what each simulated link maps to.
    uncontended: by pattern, the names of its links, where a single communicator uses them.
    """

    def __init__(
        self,
        symmetry: Symmetry,
        patterns: Mapping[TransferPattern, PatternUse],
        edges: Mapping[TransferPattern, Edges],
        folded_axes: Sequence[Rotation],
        links: SharedLinks,
    ) -> None:
        self._symmetry = symmetry
        self._links = links
        self._orbits = {pattern: orbit_of(symmetry, pattern) for pattern in patterns}
        self._routes = {
            _Copy(pattern, shift): self._route(pattern, shift, edges)
            for pattern in patterns
            for shift in symmetry.shifts(self._orbits[pattern], () if pattern.reaches_memory else folded_axes)
        }
        self._sets = self._joined()
        self.shifts: dict[TransferPattern, list[Shift]] = {pattern: [] for pattern in patterns}
        self.images: list[dict[str, str]] = []
        simulated = self._select()
        for copy in self._routes:
            self._check_equal_links(copy)
        self.uncontended = {
            copy.pattern: [links.names[link] for link in self._routes[copy]]
            for root in simulated
            if self._has_one_user(self._sets[root], patterns)
            for copy in self._sets[root]
        }

    def _route(self, pattern: TransferPattern, shift: Shift, edges: Mapping[TransferPattern, Edges]) -> list[int]:
        """Return the links of a copy of a pattern; along all axes of one that reaches a memory, whose links have no classes."""
        if pattern.reaches_memory:
            ranks = shifted_ranks(self._symmetry, pattern, shift)
            return self._links.on_routes(memory_edges(self._links.topology, pattern, ranks), None)
        return self._links.on_routes(edges[pattern], rank_map(self._symmetry, pattern, shift))

    def _joined(self) -> dict[int, list[_Copy]]:
        """Return the copies that use each set of links."""
        for route in self._routes.values():
            self._links.join(route)
        sets: dict[int, list[_Copy]] = {}
        for copy, route in self._routes.items():
            if route:
                sets.setdefault(self._links.root(route[0]), []).append(copy)
        return sets

    def _select(self) -> set[int]:
        """Fill ``shifts`` and ``images``; return the sets of links that are simulated."""
        simulated = {
            self._links.root(route[0]) for copy, route in self._routes.items() if route and not any(copy.shift)
        }
        for root, copies in self._sets.items():
            if root in simulated:
                for copy in copies:
                    self.shifts[copy.pattern].append(copy.shift)
            else:
                self.images.append(self._image(copies[0]))
        for pattern, shifts in self.shifts.items():
            shifts.sort()
            if not shifts:  # a pattern without links
                shifts.append(self._no_shift(pattern))
        return simulated

    def _no_shift(self, pattern: TransferPattern) -> Shift:
        return (0,) * len(self._orbits[pattern].steps)

    def _image(self, member: _Copy) -> dict[str, str]:
        """Return what maps the links of a simulated set to those of the set of ``member``, which is left out."""
        image: dict[int, int] = {}
        preimage: dict[int, int] = {}
        original = _Copy(member.pattern, self._no_shift(member.pattern))
        simulated, left_out = self._set_of(original), self._set_of(member)
        if len(simulated) != len(left_out):
            raise AsymmetryError(f"other flows share the links of copies of the {member.pattern}")
        for copy in simulated:
            orbit = self._orbits[copy.pattern]
            to = _Copy(copy.pattern, self._symmetry.combined_shift(copy.shift, member.shift, orbit))
            if len(self._routes[copy]) != len(self._routes[to]):
                raise AsymmetryError(f"the routes of copies of the {copy.pattern} differ")
            for first, second in zip(self._routes[copy], self._routes[to], strict=True):
                if image.setdefault(first, second) != second or preimage.setdefault(second, first) != first:
                    raise AsymmetryError(f"copies of the {copy.pattern} share their links with different flows")
        return {self._links.names[link]: self._links.names[to_link] for link, to_link in image.items()}

    def _set_of(self, copy: _Copy) -> list[_Copy]:
        return self._sets[self._links.root(self._routes[copy][0])]

    def _check_equal_links(self, copy: _Copy) -> None:
        """Check that each link of a copy has the bandwidth and latency of the original's."""
        original = self._routes[_Copy(copy.pattern, self._no_shift(copy.pattern))]
        route = self._routes[copy]
        if len(original) != len(route) or not all(map(self._links.equal, original, route)):
            raise AsymmetryError(f"the routes of copies of the {copy.pattern} differ")

    def _has_one_user(self, copies: Sequence[_Copy], patterns: Mapping[TransferPattern, PatternUse]) -> bool:
        """Whether all flows of a set are those of one communicator, which runs its collectives one after the other."""
        communicators = set().union(*(patterns[copy.pattern].communicators for copy in copies))
        excluded = any(
            copy.pattern.collective is None or copy.pattern.unequal or len(self.shifts[copy.pattern]) > 1
            for copy in copies
        )
        return not excluded and len(communicators) == 1
