"""Which links flows have in common: the links of a topology by number, joined where one flow takes several of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from triosim.errors import AsymmetryError
from triosim.networks.topology import NodeRef, Topology
from triosim.networks.topology.link_symmetry import LinkClasses

#: Where a rank goes.
Moved = Callable[[int], int]


class SharedLinks:
    """The links of a topology that are asked for, or those that stand for them; and which of them flows join."""

    def __init__(self, topology: Topology, link_classes: LinkClasses | None) -> None:
        self._topology = topology
        self._way = topology.route if link_classes is None else link_classes.route
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._kinds: list[tuple[float, float]] = []
        self._parents: list[int] = []

    def of(self, edges: Iterable[tuple[NodeRef, NodeRef]], moved: Moved | None) -> list[int]:
        """Return the links that flows take one after the other, between their ranks or those that these are moved to."""
        return [number for one, other in edges for number in self._route(_moved(one, moved), _moved(other, moved))]

    def _route(self, source: NodeRef, destination: NodeRef) -> Iterator[int]:
        for link in self._way(self._topology.node(source), self._topology.node(destination)):
            if link.bandwidth == math.inf:
                raise AsymmetryError(f"{link.name} carries everything at once")
            number = self._numbers.setdefault(link.name, len(self._numbers))
            if number == len(self._parents):
                self._parents.append(number)
                self._kinds.append((link.bandwidth, link.latency))
                self.names.append(link.name)
            yield number

    def join(self, links: Sequence[int]) -> None:
        """Note that some flows share what shares any of these links."""
        for link in links[1:]:
            self._parents[self.root(link)] = self.root(links[0])

    def root(self, link: int) -> int:
        """Return the link that stands for all that are joined with one."""
        parents = self._parents
        while parents[link] != link:
            parents[link] = parents[parents[link]]
            link = parents[link]
        return link

    def alike(self, first: int, second: int) -> bool:
        """Whether two links have the same bandwidth and latency."""
        return self._kinds[first] == self._kinds[second]


def _moved(place: NodeRef, moved: Moved | None) -> NodeRef:
    if moved is None:
        return place
    if isinstance(place, int):
        return moved(place)
    raise AsymmetryError(f"{place} is no rank")
