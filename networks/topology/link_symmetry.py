"""Symmetry classes of links: links that carry the same bytes because a rotation of the ranks maps one to another.

A rotation moves every rank one position on along an axis, the last one to the first. Where it maps the whole graph to
itself, and routes are unique, it maps flows to flows; max-min fair rates are unique (Bertsekas and Gallager, Data Networks,
2nd edition, section 6.5.2), so all flows of a class get the same rate. One flow of each class is then simulated, on one
representative link of each class, provided that every link of a class carries as many flows as its representative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from triosim.errors import AsymmetryError
from triosim.units import format_ranks

if TYPE_CHECKING:
    from triosim.networks.collectives.algorithm import Edge
    from triosim.networks.topology.graph import Link, NodeRef
    from triosim.networks.topology.topology import Topology

LinkPermutation = Sequence[int]  # the image of each link, by its number in the order of declaration


@dataclass(frozen=True, slots=True)
class Rotation:
    """A cyclic shift of the ranks along an axis of ``size`` positions; neighbours' ranks differ by ``stride``."""

    stride: int
    size: int

    def position(self, rank: int) -> int:
        """Return the position of a rank along the axis."""
        return rank // self.stride % self.size

    def prime_factors(self) -> Iterator[Rotation]:
        """Yield rotations along axes of prime size into which this axis can be divided."""
        stride, left, prime = self.stride, self.size, 2
        while left > 1:
            if left % prime:
                prime += 1
                continue
            yield Rotation(stride, prime)
            stride, left = stride * prime, left // prime

    def shifted(self, rank: int, steps: int) -> int:
        """Return the rank that is so many positions further, wrapping around."""
        position = self.position(rank)
        return rank + ((position + steps) % self.size - position) * self.stride

    def permutation(self, world: int) -> list[int]:
        """Return the image of each rank: the one at the next position."""
        ranks = np.arange(world)
        positions = ranks // self.stride % self.size
        images: list[int] = (ranks + ((positions + 1) % self.size - positions) * self.stride).tolist()
        return images


#: The kinds of nodes that no message between ranks passes.
_MEMORIES = ("memory", "port")


def is_of_memory(topology: Topology, link: Link) -> bool:
    """Whether a link leads from or to a memory, or is the bandwidth of a memory: ranks send each other nothing over it."""
    ends = link.source, link.destination
    return any(end and (link.source == link.destination or topology.nodes[end].kind in _MEMORIES) for end in ends)


class LinkPermutations:
    """The permutations of a topology's links that rotations of its first ``world`` ranks induce.

    Links from and to memories, over which ranks send each other nothing, stay where they are.
    """

    def __init__(self, topology: Topology, world: int) -> None:
        self._topology = topology
        self._world = world
        self._numbers = {name: number for number, name in enumerate(topology.nodes)}
        self._out: list[dict[int, None]] = [{} for _ in self._numbers]  # neighbours of each node, as declared
        self._regular = topology.routing == "shortest" and not topology.graph.routes
        ends: list[tuple[int, int, int]] = []  # source, destination, and which of their parallel links
        between: dict[tuple[int, int], int] = {}
        self._members: list[int] = []  # the numbers of the links that are permuted
        for number, link in enumerate(topology.links.values()):
            if not link.source or not link.destination:
                self._regular = False
                return
            if is_of_memory(topology, link):
                continue
            self._members.append(number)
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
        links = list(topology.links.values())
        self._speeds = np.array([(links[one].bandwidth, links[one].latency) for one in self._members]).reshape(-1, 2)
        self._count = len(links)
        self._aside = [name for name, node in topology.nodes.items() if node.kind in _MEMORIES]

    def of(self, rotation: Rotation) -> LinkPermutation | None:
        """Return the image of each link; None unless the rotation maps the graph to itself and routes are the shortest ones."""
        nodes = self._nodes(rotation) if self._regular else None
        if nodes is None:
            return None
        images = self._key(nodes[self._source], nodes[self._destination])
        places = np.searchsorted(self._keys, images, sorter=self._order)
        found = self._order[np.minimum(places, len(self._order) - 1)]
        equal = (self._keys[found] == images).all() and (self._speeds[found] == self._speeds).all()
        if not equal:
            return None
        permuted = np.arange(self._count)
        members = np.array(self._members, dtype=np.int64)
        permuted[members] = members[found]
        return list(permuted.tolist())

    def _key(self, source: Any, destination: Any) -> Any:
        nodes, most = self._base
        return (source * nodes + destination) * most + self._before

    def _nodes(self, rotation: Rotation) -> Any:
        """Return the image of each node, or None: ranks by the rotation, others as the corresponding neighbour of an image."""
        gpus = [self._numbers[name] for name in self._topology.gpus]
        found = [-1] * len(self._numbers)
        image_of = rotation.permutation(self._world)
        for rank, gpu in enumerate(gpus):
            found[gpu] = gpus[image_of[rank] if rank < self._world else rank]
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
        for name in self._aside:
            found[self._numbers[name]] = self._numbers[name]
        kinds = [node.kind for node in self._topology.nodes.values()]
        if -1 in found or any(kinds[node] != kinds[image] for node, image in enumerate(found)):
            return None
        return np.array(found, dtype=np.int64)


class LinkClasses:
    """The links of a topology in classes that rotations map to each other, each with one representative.

    ``permutations`` is the permutation of the links that each of the rotations induces.
    """

    def __init__(self, topology: Topology, permutations: Mapping[Rotation, LinkPermutation]) -> None:
        self._topology = topology
        self.permutations = dict(permutations)
        self._links = list(topology.links.values())
        self._numbers = {link.name: number for number, link in enumerate(self._links)}
        self._representative: dict[int, int] = {}
        self._classes: dict[int, Sequence[int]] = {}  # by representative
        # By id: hashing thousands of edges at each call would cost more than it saves. The value keeps the edges alive, and
        # with them their id.
        self._reduced: dict[int, tuple[Sequence[Edge], tuple[Edge, ...]]] = {}

    def route(self, source: NodeRef, destination: NodeRef) -> tuple[Link, ...]:
        """Return the representatives of the links that a message crosses; of one to or from a memory, the links themselves.

        Raises ``AsymmetryError`` where there are several shortest routes, or where two links of the route are of one class.
        """
        route = self._topology.route(source, destination)
        if route and all(is_of_memory(self._topology, link) for link in route):
            return route
        found = tuple([self._links[self._link(self._numbers[link.name])] for link in route])
        if len(set(found)) < len(found):
            raise AsymmetryError(f"what {source} sends to {destination} crosses two links of one symmetry class")
        if self.permutations and len(self._topology.routes(source, destination, limit=2)) > 1:
            raise AsymmetryError(f"there are several shortest routes from {source} to {destination}")
        return found

    def representatives(self, edges: Sequence[Edge], ranks: Sequence[int]) -> tuple[Edge, ...]:
        """Return one edge of each class, of all edges over which a group sends.

        Raises ``AsymmetryError`` where the edges are not closed under the rotations, or edges of a class differ in bytes.
        """
        kept = self._reduced.get(id(edges))
        if kept is None:
            kept = self._reduced[id(edges)] = edges, self._one_of_each_class(edges, ranks)
        return kept[1]

    def spans(self, ranks: Iterable[int]) -> bool:
        """Whether ranks differ in their position along an axis that is rotated."""
        return any(len({rotation.position(rank) for rank in ranks}) > 1 for rotation in self.permutations)

    def expanded(self, carried: Mapping[str, float]) -> dict[str, float]:
        """Return the bytes on all links, given those on the representatives."""
        found = dict(carried)
        for number, members in self._classes.items():
            nbytes = carried.get(self._links[number].name, 0.0)
            found.update({self._links[one].name: nbytes for one in members})
        return found

    def _link(self, number: int) -> int:
        """Return the representative of a link: the one of its class that was asked for first."""
        found = self._representative.get(number)
        if found is None:
            members = [number]
            for rotation, permutation in self.permutations.items():
                members = [image for one in members for image in _images(one, permutation, rotation.size)]
            if len(set(members)) < len(members) or any(one in self._representative for one in members):
                raise AsymmetryError(f"{self._links[number].name} is shared by flows of one symmetry class")
            self._classes[number] = members
            self._representative.update(dict.fromkeys(members, number))
            found = number
        return found

    def _one_of_each_class(self, edges: Sequence[Edge], ranks: Sequence[int]) -> tuple[Edge, ...]:
        expected = 1
        for rotation in self.permutations:
            positions = len({rotation.position(rank) for rank in ranks})
            if positions not in (1, rotation.size):
                raise AsymmetryError(f"ranks {format_ranks(ranks, most=8)} are only some of those along an axis")
            expected *= positions
        found: dict[tuple[NodeRef, NodeRef], list[Edge]] = {}
        for edge in edges:
            found.setdefault(self._rotated_to_start(edge), []).append(edge)
        for same in found.values():
            ends, sizes = {edge[:2] for edge in same}, {edge.nbytes for edge in same}
            if not len(ends) == len(same) == expected or len(sizes) > 1:
                raise AsymmetryError(f"some of ranks {format_ranks(ranks, most=8)} send more than others")
        return tuple(
            [edges[0]._replace(source=s, destination=d, nbytes=same[0].nbytes) for (s, d), same in found.items()]
        )

    def _rotated_to_start(self, edge: Edge) -> tuple[NodeRef, NodeRef]:
        """Return the edge of the same class whose source is at position 0 of every axis."""
        source, destination = edge[0], edge[1]
        if not self.permutations:
            return source, destination
        if isinstance(source, str) or isinstance(destination, str):
            raise AsymmetryError(f"{source} or {destination} is not a rank")
        for rotation in self.permutations:
            position = rotation.position(source)
            source, destination = source - position * rotation.stride, rotation.shifted(destination, -position)
        return source, destination


def _images(link: int, permutation: LinkPermutation, size: int) -> Iterator[int]:
    """Yield a link, its image, the image of that, and so on, ``size`` of them."""
    for _ in range(size):
        yield link
        link = permutation[link]
