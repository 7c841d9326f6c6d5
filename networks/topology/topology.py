"""The graph of GPUs, switches, hosts and memories, and of the links between them.

A link is one direction of a cable: it has a bandwidth (bytes per second) and a latency (seconds). Rank r of a system
is ``topology.gpus[r]``. What a file or a name may say is in :mod:`triosim.networks.topology.file`, the generators of
regular topologies in :mod:`triosim.networks.topology.shapes`.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, get_args

from triosim.conditions import Conditions
from triosim.errors import TopologyError, nearest
from triosim.networks.photonic.optics import Optics
from triosim.networks.topology.routing import Router

if TYPE_CHECKING:
    from triosim.networks.calibration.model import Calibration

NodeKind = Literal["gpu", "switch", "host", "memory"]
Block = Literal["ring", "fully_connected", "switch", "line"]
Routing = Literal["shortest", "ecmp"]
NodeRef: TypeAlias = int | str  # a rank, or a node's name
MOST_LISTED = 12  # names that an error lists
LONGEST_LATENCY = 1e6  # seconds; more is a slip of the pen


@dataclass(frozen=True, slots=True)
class Node:
    """An end or a crossing of links. A ``memory`` is the only kind that does not forward what is not for it."""

    name: str
    kind: NodeKind

    def __post_init__(self) -> None:
        if self.kind not in get_args(NodeKind):
            raise TopologyError(f"unknown kind of node '{self.kind}'", fix=nearest(str(self.kind), get_args(NodeKind)))
        if not self.name:
            raise TopologyError("a node has an empty name", fix="give it a name such as 'gpu0'")


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: bytes per second and seconds. Without ends it serves only explicit routes."""

    name: str
    source: str
    destination: str
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth < math.inf):
            raise TopologyError(
                f"bandwidth of link '{self.name}' is {self.bandwidth:g} bytes per second", fix="it must be positive"
            )
        if not (0 <= self.latency <= LONGEST_LATENCY):
            raise TopologyError(
                f"latency of link '{self.name}' is {self.latency:g} s",
                fix=f"it must be from 0 to {LONGEST_LATENCY:g} s",
            )


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network: GPUs that differ in this coordinate alone are joined by such a block.

    ``bandwidth`` is what a GPU can send on it, to all others of the block together; ``latency`` that of one link.
    """

    block: Block
    size: int
    bandwidth: float
    latency: float


class Topology:
    """Nodes, links, and the route of a message from one node to another.

    ``routes`` are routes that are given, link names by (source, destination); all others are found. ``coordinates``
    place the GPUs of a mesh or a ring, for laying a ring on it and for drawing it. ``dimensions``, the innermost first,
    say how the GPUs, in the order of their ranks, are joined where that is regular; ``uniform`` that no link differs
    from what they say. ``reducing`` names the switches that can add up what comes in (NVLS, SHARP).
    """

    by_dimension = False  # whether it was written as a network of dimensions
    conditions = Conditions()  # under which it runs, such as slow GPUs
    photonic: Optics | None = None  # what its file says of ports and circuits, for the photonic network
    calibrate: Callable[[Topology], Calibration | None] | None = None  # reads ``calibration`` when somebody asks
    uncalibrated: str = ""  # why it is not, though it is made from a machine that was measured
    measured_on: Topology | None = None  # the machine that ``calibration`` is of, where links differ from its own

    def __init__(
        self,
        name: str,
        nodes: Iterable[Node],
        links: Iterable[Link],
        *,
        routing: Routing = "shortest",
        routes: Mapping[tuple[str, str], Sequence[str]] | None = None,
        coordinates: Mapping[str, tuple[int, ...]] | None = None,
        dimensions: Sequence[Dimension] = (),
        uniform: bool = True,
        reducing: Collection[str] = (),
    ) -> None:
        self.name = name
        self.routing = routing
        self.nodes: dict[str, Node] = {}
        self.links: dict[str, Link] = {}
        for node in nodes:
            if node.name in self.nodes:
                raise TopologyError(f"node '{node.name}' is declared twice", where=name)
            self.nodes[node.name] = node
        for link in links:
            if link.name in self.links:
                raise TopologyError(
                    f"link '{link.name}' is declared twice", where=name, fix="give each a name of its own"
                )
            for end in (link.source, link.destination):
                if end and end not in self.nodes:
                    raise TopologyError(f"link '{link.name}' ends at an unknown node '{end}'", where=name)
            self.links[link.name] = link
        self.gpus: tuple[str, ...] = tuple(node.name for node in self.nodes.values() if node.kind == "gpu")
        self.coordinates: dict[str, tuple[int, ...]] = dict(coordinates or {})
        self.dimensions = tuple(dimensions)
        self.uniform = uniform
        self._blocks: dict[int, Topology] = {}
        self.reducing = frozenset(reducing)
        self.given_routes: dict[tuple[str, str], tuple[Link, ...]] = {}
        for (source, destination), names in (routes or {}).items():
            ends = (self.node(source), self.node(destination))
            self.given_routes[ends] = path(self.links, *ends, names)
        self._found: dict[tuple[int | str, int | str], tuple[Link, ...]] = {}
        self._hosts: dict[str, str | None] = {}
        self.ring_orders: dict[tuple[int, ...], tuple[int, ...]] = {}  # found by ring_order(), kept here
        if not (self.uniform and self.dimensions):  # those that are regular are connected
            self._check_reach()

    @classmethod
    def load(cls, path_or_name: str | os.PathLike[str], *, gpus: int | None = None) -> Topology:
        """Return the topology of a YAML file, of a preset (``dgx-h100``) or of a name with parameters.

        A name is such as ``mesh(4x2, bandwidth=65 GB/s, latency=500 ns)``. ``gpus`` is how many GPUs are needed at
        least: a name that does not say how many is built for that many; whatever says less raises TopologyError, as
        does everything that cannot be understood.
        """
        from triosim.networks.topology import file as topology_file

        return topology_file.load(path_or_name, gpus=gpus)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], *, source: str = "topology", gpus: int | None = None) -> Topology:
        """Return the topology that a mapping with the keys of a topology file describes; ``source`` names it in errors."""
        from triosim.networks.topology import file as topology_file

        return topology_file.from_mapping(mapping, source=source, gpus=gpus)

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {len(self.gpus)} GPUs, {len(self.nodes)} nodes, {len(self.links)} links>"

    @cached_property
    def router(self) -> Router:
        """What finds routes; made when the first is asked for, which a closed form never does."""
        return Router(self.nodes, self.links.values(), ecmp=self.routing == "ecmp")

    @cached_property
    def calibration(self) -> Calibration | None:
        """Return what collectives were measured to take on this machine, or None."""
        return None if self.calibrate is None else self.calibrate(self)

    def node(self, rank_or_name: SupportsIndex | str) -> str:
        """Return the name of a node, given that or a rank."""
        if isinstance(rank_or_name, str):
            if rank_or_name in self.nodes:
                return rank_or_name
            raise TopologyError(
                f"unknown node '{rank_or_name}'", where=self.name, fix=suggested(rank_or_name, self.nodes)
            )
        rank = operator.index(rank_or_name)
        if 0 <= rank < len(self.gpus):
            return self.gpus[rank]
        raise TopologyError(f"rank {rank} has no GPU: there are {len(self.gpus)}", where=self.name)

    def route(self, source: int | str, destination: int | str) -> tuple[Link, ...]:
        """Return the links that a message takes, in order; none from a node to itself."""
        found = self._found.get((source, destination))
        if found is None:
            found = self._found[source, destination] = self._route(self.node(source), self.node(destination))
        return found

    def way(self, source: SupportsIndex | str, destination: SupportsIndex | str) -> tuple[float, float]:
        """Return the latency of a route, in seconds, and its least bandwidth."""
        links = self._route(self.node(source), self.node(destination))
        return math.fsum(link.latency for link in links), min((link.bandwidth for link in links), default=math.inf)

    def block(self, dimension: int) -> Topology | None:
        """Return one block of a dimension by itself, its members being the ranks; None where blocks may differ."""
        if not self.uniform:
            return None
        if dimension not in self._blocks:
            from triosim.networks.topology import dimensional

            one = self.dimensions[dimension]
            if one.block == "switch":  # two members show what each of them has
                one = replace(one, size=min(one.size, 2))
            self._blocks[dimension] = dimensional.drafted(f"a block of {self.name}", [one]).topology()
        return self._blocks[dimension]

    def routes(self, source: int | str, destination: int | str, *, limit: int = 1024) -> tuple[tuple[Link, ...], ...]:
        """Return all routes of the least latency and hops, at most ``limit`` of them (a mesh has very many)."""
        start, stop = self.node(source), self.node(destination)
        if (start, stop) in self.given_routes:
            return (self.given_routes[start, stop],)
        found = tuple(self.router.routes(start, stop, limit))
        return found if found else (self._route(start, stop),)

    def links_between(self, source: int | str, destination: int | str) -> list[Link]:
        """Return the links that lead straight from one node to another, one at least."""
        start, stop = self.node(source), self.node(destination)
        found = [link for link in self.links.values() if (link.source, link.destination) == (start, stop)]
        if not found:
            near = dict.fromkeys(link.destination for link in self.links.values() if link.source == start)
            fix = f"{start} is linked to {', '.join(list(near)[:MOST_LISTED])}" if near else None
            raise TopologyError(f"there is no link from {start} to {stop}", where=self.name, fix=fix)
        return found

    def host_of(self, gpu: int | str) -> str | None:
        """Return the host or memory that a GPU copies its inputs from: the nearest one, or None where there is none."""
        name = self.node(gpu)
        if name not in self._hosts:
            hosts = frozenset(node.name for node in self.nodes.values() if node.kind in ("host", "memory"))
            self._hosts[name] = self.router.nearest(name, hosts) if hosts else None
        return self._hosts[name]

    def _route(self, source: str, destination: str) -> tuple[Link, ...]:
        given = self.given_routes.get((source, destination))
        links = given if given is not None else self.router.route(source, destination)
        if links is None:
            raise self._cut_off(source, destination)
        return links

    def _check_reach(self) -> None:
        """Raise TopologyError if a GPU does not reach another; links without ends are used by given routes alone."""
        if len(self.gpus) < 2 or not all(link.source and link.destination for link in self.links.values()):
            return
        first = self.gpus[0]
        reached, reaching = self.router.reachable(first), self.router.reachable(first, backward=True)
        for gpu in self.gpus:
            if gpu not in reached and (first, gpu) not in self.given_routes:
                raise self._cut_off(first, gpu)
            if gpu not in reaching and (gpu, first) not in self.given_routes:
                raise self._cut_off(gpu, first)

    def _cut_off(self, source: str, destination: str) -> TopologyError:
        return TopologyError(
            f"no links lead from {source} to {destination}", where=self.name, fix="add a link, or a route between them"
        )


def path(links: Mapping[str, Link], source: str, destination: str, names: Sequence[str]) -> tuple[Link, ...]:
    """Return the links of a route that is given, having checked that each begins where the one before ends.

    A link without ends fits anywhere.
    """
    here = source
    found: list[Link] = []
    for name in names:
        link = links.get(name)
        if link is None:
            raise TopologyError(f"unknown link '{name}'", fix=suggested(name, links))
        if here and link.source and link.source != here:
            raise TopologyError(
                f"the route from {source} to {destination} is no path: link '{name}' begins at {link.source}, not {here}"
            )
        here = link.destination
        found.append(link)
    if (here or not found) and here != destination:
        raise TopologyError(f"the route from {source} to {destination} ends at {here}", fix=f"end it at {destination}")
    return tuple(found)


def suggested(word: str, names: Collection[str]) -> str:
    """Return the nearest name, or all of them if they are few."""
    near = names if len(names) <= MOST_LISTED else difflib.get_close_matches(word, names, n=1)
    return nearest(word, near) if near else f"none of the {len(names)} names is near"
