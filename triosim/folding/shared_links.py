"""Sets of links that flows share, directly or through other flows, as a union-find structure over the links of a topology."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from triosim.errors import AsymmetryError
from triosim.networks.topology import NodeRef, Topology
from triosim.networks.topology.link_symmetry import LinkClasses

#: Maps a rank to the corresponding one of a copy.
RankMap = Callable[[int], int]


class SharedLinks:
    """The links that routes cross, by number, in sets that grow as flows are added.

    With ``link_classes``, each link is replaced by the representative of its class.
    """

    def __init__(self, topology: Topology, link_classes: LinkClasses | None) -> None:
        self.topology = topology
        self._route = topology.route if link_classes is None else link_classes.route
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._speeds: list[tuple[float, float]] = []  # bandwidth and latency
        self._parents: list[int] = []

    def on_routes(self, edges: Iterable[tuple[NodeRef, NodeRef]], rank_map: RankMap | None) -> list[int]:
        """Return the links on the routes of some edges, one after the other, with their ranks replaced."""
        return [number for source, destination in edges for number in self._on_route(source, destination, rank_map)]

    def _on_route(self, source: NodeRef, destination: NodeRef, rank_map: RankMap | None) -> Iterator[int]:
        if rank_map is not None:
            if isinstance(source, str) or isinstance(destination, str):
                raise AsymmetryError(f"{source} or {destination} is not a rank")
            source, destination = rank_map(source), rank_map(destination)
        for link in self._route(self.topology.node(source), self.topology.node(destination)):
            if link.bandwidth == math.inf:
                raise AsymmetryError(f"{link.name} has unlimited bandwidth")
            number = self._numbers.setdefault(link.name, len(self._numbers))
            if number == len(self._parents):
                self._parents.append(number)
                self._speeds.append((link.bandwidth, link.latency))
                self.names.append(link.name)
            yield number

    def join(self, links: Sequence[int]) -> None:
        """Join the sets of some links."""
        for link in links[1:]:
            self._parents[self.root(link)] = self.root(links[0])

    def root(self, link: int) -> int:
        """Return the link that identifies the set of a link."""
        parents = self._parents
        while parents[link] != link:
            parents[link] = parents[parents[link]]
            link = parents[link]
        return link

    def equal(self, first: int, second: int) -> bool:
        """Whether two links have the same bandwidth and latency."""
        return self._speeds[first] == self._speeds[second]

    def speed(self, link: int) -> tuple[float, float]:
        """Return a link's bandwidth and latency."""
        return self._speeds[link]
