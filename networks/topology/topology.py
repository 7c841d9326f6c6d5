"""A topology: GPUs, switches, hosts and memories, the links between them, and the route of every message.

Rank r of a system is ``topology.gpus[r]``. What may be loaded is described in docs/topology-format.md.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, SupportsIndex

from triosim.errors import TopologyError
from triosim.networks.topology import dimensional, file
from triosim.networks.topology.description import Description, PresetUse, Section
from triosim.networks.topology.graph import (
    IRREGULAR,
    MOST_LISTED,
    Dimension,
    Graph,
    Link,
    Memory,
    Node,
    Regularity,
    Routing,
    graph_of,
    suggested,
)
from triosim.networks.topology.memories import memory_of
from triosim.networks.topology.pool import SharedPool
from triosim.networks.topology.routing import Router
from triosim.networks.topology.shapes import ShapeOutline
from triosim.tasks import Tier


class Topology:
    """Nodes, links, and the route of a message from one node to another.

    ``routes`` are explicit routes: names of links by (source, destination); all others are found. ``outline`` is what a preset
    or a regular shape was made of, the spec of a node and the number of nodes; None for any other topology. ``overridden`` says
    that a file gives other figures to single links. The graph of a regular topology is built when somebody first asks for it:
    making the links of many GPUs takes seconds, and closed forms need none.
    """

    def __init__(
        self,
        name: str,
        nodes: Iterable[Node],
        links: Iterable[Link],
        *,
        routing: Routing = "shortest",
        routes: Mapping[tuple[str, str], Sequence[str]] | None = None,
        regularity: Regularity = IRREGULAR,
    ) -> None:
        graph = graph_of(name, nodes, links, routes)
        gpus = sum(node.kind == "gpu" for node in graph.nodes.values())
        self._take(Description(name, gpus, routing, regularity, lambda: graph))

    def _take(self, description: Description) -> None:
        self.name = description.name
        self.routing: Routing = description.routing
        self.regularity = description.regularity
        self.sections: Mapping[str, Section] = description.sections
        self.preset: PresetUse | None = description.preset
        self.outline: ShapeOutline | None = description.outline
        self.overridden = description.overridden
        self._mapping = description.mapping
        self.nominal: Topology | None = None  # the same topology before its links were slowed
        self.ring_orders: dict[tuple[int, ...], tuple[int, ...]] = {}  # found by ring_order(), which keeps them here
        self._gpus = description.gpus
        self._build = description.graph
        self._found: dict[tuple[int | str, int | str], tuple[Link, ...]] = {}
        self._memories: dict[tuple[str, Tier], str | None] = {}
        if not self.regularity.complete:  # a regular one is connected
            with description.location.at() if description.location.source else nullcontext():
                self._check_reach()

    @classmethod
    def load(cls, path_or_name: str | os.PathLike[str], *, gpus: int | None = None) -> Topology:
        """Return the topology of a YAML file, of a preset (``dgx-h100``) or of a name with parameters.

        A name is such as ``mesh(4x2, bandwidth=65 GB/s, latency=500 ns)``. ``gpus`` is how many GPUs are needed at
        least: a name that does not say how many is built for that many. Raises ``TopologyError`` for a smaller topology, and
        for everything that cannot be understood.
        """
        return cls.described(file.load(path_or_name, gpus=gpus))

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], *, source: str = "topology", gpus: int | None = None) -> Topology:
        """Return the topology that a mapping with the keys of a topology file describes; ``source`` names it in errors."""
        return cls.described(file.from_mapping(mapping, source=source, gpus=gpus))

    @classmethod
    def described(cls, description: Description) -> Topology:
        """Return the topology of a description. Raises ``TopologyError`` where a GPU cannot reach another."""
        made = Topology.__new__(Topology)
        made._take(description)
        return made

    def with_links(self, change: Callable[[Link], Link]) -> Topology:
        """Return the same topology with changed links, which keep their names and ends; ``nominal`` is this one."""
        links = {link.name: change(link) for link in self.links.values()}
        routes = {ends: tuple(links[link.name] for link in route) for ends, route in self.graph.routes.items()}
        graph = replace(self.graph, links=links, routes=routes)
        made = Topology.described(
            Description(
                *(self.name, len(self.gpus), self.routing, replace(self.regularity, uniform=False), lambda: graph),
                sections=self.sections,
                preset=self.preset,
                outline=self.outline,
            )
        )
        made.nominal = self.nominal or self
        return made

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self._gpus} GPUs>"

    @property
    def mapping(self) -> Mapping[str, Any] | None:
        """What a topology file would hold to describe it; None where no file can."""
        if self._mapping or self.dimensions or self.sections or self.preset or self.coordinates or self.reducing:
            return self._mapping
        return file.custom_mapping(self.name, self.graph, self.routing)

    @cached_property
    def graph(self) -> Graph:
        """The nodes, links and explicit routes; built when somebody first asks."""
        return self._build()

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name."""
        return self.graph.nodes

    @property
    def links(self) -> dict[str, Link]:
        """The links by name."""
        return self.graph.links

    @property
    def coordinates(self) -> Mapping[str, tuple[int, ...]]:
        """The coordinates of the GPUs of a mesh or a ring, by name."""
        return self.graph.coordinates

    @property
    def reducing(self) -> frozenset[str]:
        """The names of the switches that can add up what comes in."""
        return self.graph.reducing

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions along which GPUs are joined, the innermost first; none where that is irregular."""
        return self.regularity.dimensions

    @property
    def uniform(self) -> bool:
        """Whether all links are as the dimensions say."""
        return self.regularity.uniform

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs by rank."""
        if self.regularity.complete:
            return tuple([f"gpu{rank}" for rank in range(self._gpus)])
        return tuple(node.name for node in self.nodes.values() if node.kind == "gpu")

    @cached_property
    def router(self) -> Router:
        """Finds the routes."""
        ecmp = self.routing == "ecmp"
        return Router(self.nodes, self.links.values(), ecmp=ecmp, between_nodes=self.graph.between_nodes)

    def node(self, rank_or_name: SupportsIndex | str) -> str:
        """Return the name of a node, given that or a rank."""
        if isinstance(rank_or_name, str):
            if rank_or_name in self.nodes:
                return rank_or_name
            fix = suggested(rank_or_name, self.nodes)
            raise TopologyError(f"unknown node '{rank_or_name}'", where=self.name, fix=fix)
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

    def latency_and_bandwidth(
        self, source: SupportsIndex | str, destination: SupportsIndex | str
    ) -> tuple[float, float]:
        """Return the latency of a route, in seconds, and its least bandwidth, in bytes per second."""
        if (
            self.regularity.by_dimension
            and self.uniform
            and not (isinstance(source, str) or isinstance(destination, str))
        ):
            self.node(source), self.node(destination)  # both exist
            return dimensional.latency_and_bandwidth(self.dimensions, source.__index__(), destination.__index__())
        links = self._route(self.node(source), self.node(destination))
        return math.fsum(link.latency for link in links), min((link.bandwidth for link in links), default=math.inf)

    def routes(self, source: int | str, destination: int | str, *, limit: int = 1024) -> tuple[tuple[Link, ...], ...]:
        """Return all routes of the least latency and hops, at most ``limit`` of them (a mesh has very many)."""
        start, stop = self.node(source), self.node(destination)
        if (start, stop) in self.graph.routes:
            return (self.graph.routes[start, stop],)
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

    @property
    def memories(self) -> Mapping[str, Memory]:
        """The memories outside of GPUs of which something is known, by the names of their nodes."""
        return self.graph.memories

    def memory_of(self, gpu: int | str, tier: Tier) -> str | None:
        """Return the memory of a tier that a GPU reaches: the nearest one, or None where there is none."""
        key = self.node(gpu), tier
        if key not in self._memories:
            self._memories[key] = memory_of(self, key[0], tier)
        return self._memories[key]

    def pool_at(self, node: SupportsIndex | str) -> SharedPool | None:
        """Return the pool that a node stands for; None of any other node."""
        found = self.memories.get(node) if isinstance(node, str) else None
        return None if found is None else found.shared

    @property
    def gathering_memories(self) -> frozenset[Tier]:
        """The tiers of memories behind switches that gather what is loaded through them."""
        pool = None if self.outline is None else self.outline.spec.memories.pool
        return frozenset({"pool"}) if pool is not None and pool.gathers else frozenset()

    def host_of(self, gpu: int | str) -> str | None:
        """Return the host's memory that a GPU copies its inputs from: the nearest one, or None where there is none."""
        return self.memory_of(gpu, "host")

    def _route(self, source: str, destination: str) -> tuple[Link, ...]:
        given = self.graph.routes.get((source, destination))
        links = given if given is not None else self.router.route(source, destination)
        if links is None:
            raise self._cut_off(source, destination)
        if not self.graph.memories:
            return links
        ends = dict.fromkeys((source, destination))
        return (*links, *(self.links[one.port] for end in ends if (one := self.memories.get(end)) and one.port))

    def _check_reach(self) -> None:
        """Raise TopologyError if a GPU does not reach another; links without ends are used by given routes alone."""
        if len(self.gpus) < 2 or not all(link.source and link.destination for link in self.links.values()):
            return
        first = self.gpus[0]
        reached, reaching = self.router.reachable(first), self.router.reachable(first, backward=True)
        for gpu in self.gpus:
            if gpu not in reached and (first, gpu) not in self.graph.routes:
                raise self._cut_off(first, gpu)
            if gpu not in reaching and (gpu, first) not in self.graph.routes:
                raise self._cut_off(gpu, first)

    def _cut_off(self, source: str, destination: str) -> TopologyError:
        return TopologyError(
            f"no links lead from {source} to {destination}", where=self.name, fix="add a link, or a route between them"
        )
