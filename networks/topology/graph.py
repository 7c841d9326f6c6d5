"""The parts of a topology: nodes, links, dimensions, and the graph that they form.

A link is one direction of a cable: it has a bandwidth (bytes per second) and a latency (seconds).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from triosim.errors import TopologyError, nearest
from triosim.networks.topology.pool import SharedPool
from triosim.tasks import Tier

NodeKind = Literal["gpu", "switch", "port", "host", "memory"]
BlockKind = Literal["ring", "fully_connected", "switch", "line"]
Routing = Literal["shortest", "ecmp"]
NodeRef: TypeAlias = int | str  # a rank, or a node's name
MOST_LISTED = 12  # names that an error lists
LONGEST_LATENCY = 1e6  # seconds; a longer one is a mistake


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU, switch, port, host or memory.

    Every node but a ``memory`` forwards messages that are for others; a ``port``, which GPUs share on their way to memories,
    forwards those from and to memories alone.
    """

    name: str
    kind: NodeKind

    def __post_init__(self) -> None:
        if self.kind not in get_args(NodeKind):
            raise TopologyError(f"unknown kind of node '{self.kind}'", fix=nearest(str(self.kind), get_args(NodeKind)))
        if not self.name:
            raise TopologyError("a node has an empty name", fix="give it a name such as 'gpu0'")


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: bytes per second and seconds. A link without ends is used by explicit routes alone."""

    name: str
    source: str
    destination: str
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth < math.inf):
            fix = "it must be positive"
            raise TopologyError(f"bandwidth of link '{self.name}' is {self.bandwidth:g} bytes per second", fix=fix)
        if not (0 <= self.latency <= LONGEST_LATENCY):
            fix = f"it must be from 0 to {LONGEST_LATENCY:g} s"
            raise TopologyError(f"latency of link '{self.name}' is {self.latency:g} s", fix=fix)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory outside of GPUs: its tier, its bytes, and how many may access it at once (None: as many as want).

    ``port`` is the name of a link from the node to itself that all accesses cross, reads and writes together: its bandwidth.
    ``shared`` is the pool of which the node stands for all memory groups.
    """

    tier: Tier
    capacity: float = math.inf
    simultaneous: int | None = None
    port: str | None = None
    shared: SharedPool | None = None


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network: GPUs whose coordinates differ in this dimension alone form a block.

    ``bandwidth`` is what a GPU can send to all others of its block together; ``latency`` is that of one link.
    """

    block: BlockKind
    size: int
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Regularity:
    """The properties of a topology that are known without its links.

    ``dimensions``, the innermost first, say how the GPUs are joined in the order of their ranks. ``uniform`` means that all
    links are as the dimensions say; ``by_dimension`` that the topology was written as dimensions (``Ring(4)_Switch(2)``).
    """

    dimensions: tuple[Dimension, ...] = ()
    uniform: bool = True
    by_dimension: bool = False

    @property
    def complete(self) -> bool:
        """Whether the dimensions describe the whole graph."""
        return self.uniform and bool(self.dimensions)


#: Nothing is known of its dimensions.
IRREGULAR = Regularity()


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and links by name, explicit routes by (source, destination), memories, and properties of nodes for algorithms.

    ``coordinates`` place the GPUs of a mesh or a ring, for laying a ring on it and for drawing it. ``reducing`` are the
    switches that can add up what comes in (NVLS, SHARP). ``between_nodes`` are the links by which GPUs reach the network
    between nodes: a route takes as few of them as there can be, so that messages inside a node stay there.
    """

    nodes: dict[str, Node]
    links: dict[str, Link]
    routes: Mapping[tuple[str, str], tuple[Link, ...]] = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)
    coordinates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reducing: frozenset[str] = frozenset()
    between_nodes: frozenset[str] = frozenset()


@dataclass(eq=False)
class GraphDraft:
    """A graph that is being put together. Raises ``TopologyError`` for a name that is there already."""

    name: str
    routing: Routing = "shortest"
    nodes: dict[str, Node] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    routes: dict[tuple[str, str], Sequence[str]] = field(default_factory=dict)  # names of links, which may still change
    coordinates: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dimensions: list[Dimension] = field(default_factory=list)
    uniform: bool = True
    reducing: list[str] = field(default_factory=list)
    between_nodes: list[str] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)

    def node(self, name: str, kind: NodeKind) -> str:
        """Add a node and return its name."""
        if name in self.nodes:
            raise TopologyError(f"node '{name}' is declared twice", fix="give each node a name of its own")
        self.nodes[name] = Node(name, kind)
        return name

    def link(self, source: str, destination: str, bandwidth: float, latency: float, name: str | None = None) -> None:
        """Add one direction of a link."""
        name = name or f"{source}->{destination}"
        if name in self.links:
            raise TopologyError(f"link '{name}' is declared twice", fix="give each link a name of its own")
        self.links[name] = Link(name, source, destination, bandwidth, latency)

    def leave(self, a: str, b: str, bandwidth: float, latency: float) -> None:
        """Add both directions of a link between nodes, which routes inside of a node do not take."""
        before = len(self.links)
        self.both(a, b, bandwidth, latency)
        self.between_nodes.extend([*self.links][before:])

    def both(self, a: str, b: str, bandwidth: float, latency: float) -> None:
        """Add both directions of a link."""
        self.link(a, b, bandwidth, latency)
        self.link(b, a, bandwidth, latency)

    def graph(self) -> Graph:
        """Return the graph as it is now."""
        routes = {ends: path(self.links, *ends, names) for ends, names in self.routes.items()}
        reducing, between_nodes = frozenset(self.reducing), frozenset(self.between_nodes)
        return Graph(self.nodes, self.links, routes, self.memories, self.coordinates, reducing, between_nodes)

    def regularity(self) -> Regularity:
        """Return what is known of the graph."""
        return Regularity(tuple(self.dimensions), self.uniform)


def graph_of(
    name: str,
    nodes: Iterable[Node],
    links: Iterable[Link],
    routes: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> Graph:
    """Return the graph of nodes, links and explicit routes (names of links). Raises ``TopologyError`` that names ``name``."""
    draft = GraphDraft(name)
    try:
        for node in nodes:
            draft.node(node.name, node.kind)
        for link in links:
            for end in (link.source, link.destination):
                if end and end not in draft.nodes:
                    raise TopologyError(f"link '{link.name}' ends at an unknown node '{end}'")
            draft.link(link.source, link.destination, link.bandwidth, link.latency, link.name)
        for end in (end for ends in routes or () for end in ends):
            if end not in draft.nodes:
                raise TopologyError(f"unknown node '{end}'", fix=suggested(end, draft.nodes))
        draft.routes.update(routes or {})
        return draft.graph()
    except TopologyError as error:
        raise TopologyError(error.what, where=name, fix=error.fix) from None


def path(links: Mapping[str, Link], source: str, destination: str, names: Sequence[str]) -> tuple[Link, ...]:
    """Return the links of a given route, each of which must begin where the one before ends; one without ends fits anywhere."""
    here = source
    found: list[Link] = []
    for name in names:
        link = links.get(name)
        if link is None:
            raise TopologyError(f"unknown link '{name}'", fix=suggested(name, links))
        if here and link.source and link.source != here:
            raise TopologyError(
                f"the route from {source} to {destination} is not a path: link '{name}' begins at {link.source}, not {here}"
            )
        here = link.destination
        found.append(link)
    if (here or not found) and here != destination:
        raise TopologyError(f"the route from {source} to {destination} ends at {here}", fix=f"end it at {destination}")
    return tuple(found)


def suggested(word: str, names: Collection[str]) -> str:
    """Return the nearest name, or all of them if they are few."""
    near = names if len(names) <= MOST_LISTED else difflib.get_close_matches(word, names, n=1)
    return nearest(word, near) if near else f"none of the {len(names)} names is similar"
