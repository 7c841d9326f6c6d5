"""A network on which ranks that do the same are one: a link stands for those that rotations of the ranks turn it into.

A rotation moves each rank one place on along an axis, the last to the first. Where it turns the whole graph into itself,
and the ways of what is sent are the only shortest ones, it turns these into each other, so that all of them take the same
time: max-min fair rates are unique (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2). One of them is then
simulated, on links that stand for all that it is turned into, if on each link there are as many flows as on that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from triosim.networks.collectives.algorithm import Edge, Place
    from triosim.networks.topology.topology import Link, Topology

Turned = Sequence[int]  # of each link, by its place among the declared, the one that it is turned into


class NotAlike(Exception):
    """What was taken to be the same is not."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Ranks one place on along an axis of ``size``, whose neighbours' numbers are ``stride`` apart."""

    stride: int
    size: int

    def place(self, rank: int) -> int:
        """Return where a rank stands along the axis."""
        return rank // self.stride % self.size

    def digits(self) -> Iterator[Rotation]:
        """Yield the rotations of each digit of the place, where it is written with a prime number of each."""
        stride, left, prime = self.stride, self.size, 2
        while left > 1:
            if left % prime:
                prime += 1
                continue
            yield Rotation(stride, prime)
            stride, left = stride * prime, left // prime

    def by(self, rank: int, places: int) -> int:
        """Return the rank that is so many places on, the first after the last."""
        place = self.place(rank)
        return rank + ((place + places) % self.size - place) * self.stride

    def all(self, world: int) -> list[int]:
        """Return for each rank the one that is one place on."""
        ranks = np.arange(world)
        places = ranks // self.stride % self.size
        moved: list[int] = (ranks + ((places + 1) % self.size - places) * self.stride).tolist()
        return moved


class Turning:
    """What rotations turn the links of a topology into, worked out when somebody asks."""

    def __init__(self, topology: Topology, world: int) -> None:
        self._topology = topology
        self._world = world
        self._numbers = {name: number for number, name in enumerate(topology.nodes)}
        self._out: list[dict[int, None]] = [{} for _ in self._numbers]  # where the links of a node lead, as declared
        self._regular = topology.routing == "shortest" and not topology.given_routes
        ends: list[tuple[int, int, int]] = []  # from where to where, and how many links there were before
        between: dict[tuple[int, int], int] = {}
        for link in topology.links.values():
            if not link.source or not link.destination:
                self._regular = False
                return
            pair = self._numbers[link.source], self._numbers[link.destination]
            before = between[pair] = between.get(pair, -1) + 1
            ends.append((*pair, before))
            self._out[pair[0]][pair[1]] = None
        most = max(between.values(), default=0) + 1
        self._source, self._destination, before_ = np.array(ends, dtype=np.int64).reshape(-1, 3).T
        self._base = (len(self._numbers), most)
        self._before = before_
        self._keys = self._key(self._source, self._destination)
        self._order = np.argsort(self._keys)
        self._speeds = np.array([(link.bandwidth, link.latency) for link in topology.links.values()])

    def links(self, rotation: Rotation) -> Turned | None:
        """Return what each link is turned into; None where that is not the same graph, or routes were given or drawn."""
        nodes = self._nodes(rotation) if self._regular else None
        if nodes is None:
            return None
        turned = self._key(nodes[self._source], nodes[self._destination])
        places = np.searchsorted(self._keys, turned, sorter=self._order)
        found = self._order[np.minimum(places, len(self._order) - 1)]
        alike = (self._keys[found] == turned).all() and (self._speeds[found] == self._speeds).all()
        return list(found.tolist()) if alike else None

    def _key(self, source: Any, destination: Any) -> Any:
        nodes, most = self._base
        return (source * nodes + destination) * most + self._before

    def _nodes(self, rotation: Rotation) -> Any:
        """What each node is turned into: beside the ranks, what is reached by the link at the same place among a node's."""
        gpus = [self._numbers[name] for name in self._topology.gpus]
        found = [-1] * len(self._numbers)
        moved = rotation.all(self._world)
        for rank, gpu in enumerate(gpus):
            found[gpu] = gpus[moved[rank] if rank < self._world else rank]
        images = set(gpus)
        todo = list(gpus)
        for node in todo:  # which grows meanwhile
            news = [other for other in self._out[node] if found[other] < 0]
            if not news:
                continue
            targets = [other for other in self._out[found[node]] if other not in images]
            if len(news) != len(targets):
                return None
            for other, target in zip(news, targets, strict=True):
                found[other] = target
            images.update(targets)
            todo += news
        kinds = [node.kind for node in self._topology.nodes.values()]
        if -1 in found or any(kinds[node] != kinds[image] for node, image in enumerate(found)):
            return None
        return np.array(found, dtype=np.int64)


class Quotient:
    """The links of a topology, of which those that ``rotations`` turn into each other are one."""

    def __init__(self, topology: Topology, rotations: Mapping[Rotation, Turned]) -> None:
        self._topology = topology
        self.turned = dict(rotations)
        self._links = list(topology.links.values())
        self._numbers = {link.name: number for number, link in enumerate(self._links)}
        self._stands_for: dict[int, int] = {}
        self._orbits: dict[int, Sequence[int]] = {}
        self._reduced: dict[int, tuple[Sequence[Edge], tuple[Edge, ...]]] = {}

    def way(self, source: Place, destination: Place) -> tuple[Link, ...]:
        """Return the links that a message takes, each the one that stands for it.

        Raises ``NotAlike`` where it might take others, or where one link has several of what it stands for.
        """
        route = self._topology.route(source, destination)
        found = tuple([self._links[self._link(self._numbers[link.name])] for link in route])
        if len(set(found)) < len(found):
            raise NotAlike(f"what {source} sends to {destination} comes back to links like those that it has left")
        if self.turned and len(self._topology.routes(source, destination, limit=2)) > 1:
            raise NotAlike(f"there are several ways from {source} to {destination}")
        return found

    def edges(self, edges: Sequence[Edge], ranks: Sequence[int]) -> tuple[Edge, ...]:
        """Return one of the edges that are turned into each other, of all that a group sends.

        Raises ``NotAlike`` where they are not as many as rotations make of one, or differ in bytes.
        """
        kept = self._reduced.get(id(edges))
        if kept is None:
            kept = self._reduced[id(edges)] = edges, self._edges(edges, ranks)  # which keeps them, and their id
        return kept[1]

    def spans(self, ranks: Iterable[int]) -> bool:
        """Whether ranks differ along what is rotated."""
        return any(len({rotation.place(rank) for rank in ranks}) > 1 for rotation in self.turned)

    def unfolded(self, carried: Mapping[str, float]) -> dict[str, float]:
        """Return the bytes on all links, given those on the ones that stand for others."""
        found = dict(carried)
        for number, orbit in self._orbits.items():
            nbytes = carried.get(self._links[number].name, 0.0)
            found.update({self._links[one].name: nbytes for one in orbit})
        return found

    def _link(self, number: int) -> int:
        found = self._stands_for.get(number)
        if found is None:
            orbit = [number]
            for rotation, turned in self.turned.items():
                orbit = [image for one in orbit for image in _turns(one, turned, rotation.size)]
            if len(set(orbit)) < len(orbit) or any(one in self._stands_for for one in orbit):
                raise NotAlike(f"{self._links[number].name} carries what several of those that do the same send")
            self._orbits[number] = orbit
            self._stands_for.update(dict.fromkeys(orbit, number))
            found = number
        return found

    def _edges(self, edges: Sequence[Edge], ranks: Sequence[int]) -> tuple[Edge, ...]:
        expected = 1
        for rotation in self.turned:
            places = len({rotation.place(rank) for rank in ranks})
            if places not in (1, rotation.size):
                raise NotAlike(f"{tuple(ranks)} are some of those that do the same")
            expected *= places
        found: dict[tuple[Place, Place], list[Edge]] = {}
        for edge in edges:
            found.setdefault(self._turned_back(edge), []).append(edge)
        for same in found.values():
            ways, sizes = {edge[:2] for edge in same}, {edge.nbytes for edge in same}
            if not len(ways) == len(same) == expected or len(sizes) > 1:
                raise NotAlike(f"of {tuple(ranks)}, some send more than others")
        return tuple(
            [edges[0]._replace(source=s, destination=d, nbytes=same[0].nbytes) for (s, d), same in found.items()]
        )

    def _turned_back(self, edge: Edge) -> tuple[Place, Place]:
        """The edge that starts at the first place of every axis, of those that this one is turned into."""
        source, destination = edge[0], edge[1]
        if not self.turned:
            return source, destination
        if isinstance(source, str) or isinstance(destination, str):
            raise NotAlike(f"{source} or {destination} is no rank")
        for rotation in self.turned:
            place = rotation.place(source)
            source, destination = source - place * rotation.stride, rotation.by(destination, -place)
        return source, destination


def _turns(link: int, turned: Turned, size: int) -> Iterator[int]:
    for _ in range(size):
        yield link
        link = turned[link]
