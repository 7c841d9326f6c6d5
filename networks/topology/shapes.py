"""Generators of regular topologies: ring, mesh, torus, fully connected, switch, bus, trees, DGX-1's hybrid cube mesh.

A generator makes one node of GPUs; several nodes are several of them, whose GPUs are joined by one fabric. The fat
tree is that of Al-Fares et al. (SIGCOMM 2008); the hybrid cube mesh is that of a DGX-1 with V100, ``nvidia-smi topo``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from triosim.errors import TopologyError
from triosim.input_files.limits import DIRECT_LINKS, GPUS, LINKS
from triosim.networks.topology.description import Description
from triosim.networks.topology.graph import BlockKind, Dimension, GraphDraft, Regularity, Routing
from triosim.networks.topology.memories import NO_MEMORIES, NodeMemories

# The NVLinks between the GPUs of a DGX-1 with V100: these pairs have two, the others one.
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


#: The kinds of network between nodes: InfiniBand, RDMA over Converged Ethernet, AWS's Elastic Fabric Adapter, TCP sockets.
NetworkName = Literal["infiniband", "roce", "efa", "sockets"]


@dataclass(frozen=True, slots=True)
class Wire:
    """The link of a GPU to the fabric: bytes per second in each direction, seconds, GPUs that share it, and its kind."""

    bandwidth: float
    latency: float = 0.0
    gpus_per_nic: int = 1
    network: NetworkName = "infiniband"


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """The parameters of a regular topology; docs/topology-format.md explains each key."""

    topology: str
    bandwidth: float
    latency: float = 0.0
    reverse_bandwidth: float | None = None
    name: str | None = None
    gpus: int | None = None
    shape: tuple[int, ...] | None = None
    dimensions: int = 2  # of a mesh or torus of which only the number of GPUs is said
    fanout: int = 2
    levels: int | None = None
    oversubscription: float | None = None
    k: int | None = None
    gpus_per_switch: int = 4
    nodes: int | None = None
    gpus_per_node: int | None = None
    inter_node: Wire | None = None
    memories: NodeMemories = NO_MEMORIES
    routing: Routing | None = None
    in_switch_reduction: bool = False
    default_gpus: int | None = None  # of a preset, when nobody says how many


@dataclass(frozen=True, slots=True)
class ShapeOutline:
    """A regular topology before its graph is built: the ``spec`` of one node, and how many ``nodes`` there are."""

    spec: ShapeSpec
    nodes: int

    @property
    def name(self) -> str:
        """What tables and pictures call it."""
        spec = self.spec
        name = spec.name or (f"{spec.topology} {'x'.join(map(str, spec.shape or (spec.gpus,)))}")
        return name if self.nodes == 1 else f"{name} x {self.nodes}"

    @property
    def gpus(self) -> int:
        """How many GPUs all nodes have together."""
        return self.nodes * (self.spec.gpus or 0)

    @property
    def dimensions(self) -> list[Dimension]:
        """Those of one node, and the fabric between nodes."""
        wire = self.spec.inter_node
        if self.nodes == 1 or wire is None:
            return _dimensions(self.spec)
        between = Dimension("switch", self.nodes, wire.bandwidth / wire.gpus_per_nic, wire.latency)
        return [*_dimensions(self.spec), between]

    @property
    def uniform(self) -> bool:
        """Whether no link differs from what the dimensions say."""
        spec = self.spec
        if self.nodes > 1 and spec.inter_node is not None and spec.inter_node.gpus_per_nic > 1:
            return False
        return spec.topology in (*_BLOCKS, "fully_connected") and spec.reverse_bandwidth is None

    @property
    def routing(self) -> Routing:
        """How messages are routed."""
        return self.spec.routing or ("ecmp" if self.spec.topology == "fat_tree" else "shortest")

    def draft(self) -> GraphDraft:
        """Return the nodes and links."""
        spec = self.spec
        result = GraphDraft(self.name, self.routing)
        gpus = [result.node(f"gpu{rank}", "gpu") for rank in range(self.gpus)]
        size = len(gpus) // self.nodes
        of_node = [gpus[first : first + size] for first in range(0, len(gpus), size)]
        for index, group in enumerate(of_node):
            SHAPES[spec.topology](result, spec, group, "" if self.nodes == 1 else f"node{index}.")
        result.dimensions.extend(self.dimensions)
        result.uniform = self.uniform
        if spec.in_switch_reduction:
            result.reducing.extend(name for name, node in result.nodes.items() if node.kind == "switch")
        if self.nodes > 1:
            result.coordinates.clear()  # they are of one node
            assert spec.inter_node is not None
            inside = set(result.links)
            _join(result, spec.inter_node, of_node)
            result.between_nodes.extend(name for name in result.links if name not in inside)
        spec.memories.add(result, of_node)
        return result

    def description(self) -> Description:
        """Return the description; nodes and links are built at once unless the dimensions describe all of them."""
        if not self.uniform:
            return described(self.draft(), self)
        regularity = Regularity(tuple(self.dimensions))
        return Description(self.name, self.gpus, self.routing, regularity, lambda: self.draft().graph(), outline=self)


def described(draft: GraphDraft, outline: ShapeOutline | None = None) -> Description:
    """Return the description of a graph that is put together, of a regular one with its outline."""
    graph = draft.graph()
    gpus = sum(node.kind == "gpu" for node in graph.nodes.values())
    return Description(draft.name, gpus, draft.routing, draft.regularity(), lambda: graph, outline=outline)


def outline(spec: ShapeSpec, asked: int | None = None) -> ShapeOutline:
    """Return the outline of a spec, for at least ``asked`` GPUs where the spec does not say how many."""
    GPUS.check(asked or 0, spec.name or spec.topology, TopologyError)
    one, nodes = _sized(spec, asked)
    gpus = one.gpus or 0
    GPUS.check(gpus * nodes, one.name or one.topology, TopologyError)
    if one.topology == "fully_connected":
        DIRECT_LINKS.check(gpus * (gpus - 1), f"fully_connected of {gpus} GPUs", TopologyError)
        LINKS.check(gpus * (gpus - 1) * nodes, f"fully_connected of {gpus} GPUs", TopologyError)
    return ShapeOutline(one, nodes)


_BLOCKS: dict[str, BlockKind] = {"ring": "ring", "torus": "ring", "mesh": "line", "switch": "switch"}


def _dimensions(spec: ShapeSpec) -> list[Dimension]:
    """Return the dimensions of one node; a shape that has none to speak of is one, as between nodes it is a unit."""
    assert spec.gpus is not None
    bandwidth = min(spec.bandwidth, spec.reverse_bandwidth or spec.bandwidth)
    if spec.topology == "fully_connected":
        return [Dimension("fully_connected", spec.gpus, bandwidth * max(spec.gpus - 1, 1), spec.latency)]
    block = _BLOCKS.get(spec.topology, "ring")
    sides = (spec.shape or (spec.gpus,)) if spec.topology in ("mesh", "torus") else (spec.gpus,)
    return [Dimension(block, side, bandwidth, spec.latency) for side in sides]


def _sized(spec: ShapeSpec, asked: int | None) -> tuple[ShapeSpec, int]:
    """Return the spec of one node, with its number of GPUs (and shape), and how many nodes there are."""
    natural = _natural(spec)
    if spec.inter_node is not None:
        one = spec.gpus_per_node or natural
        if one is None:
            fix = "say how many GPUs a node has, such as 'gpus_per_node: 8'"
            raise TopologyError("gpus_per_node is missing", fix=fix)
        wanted = spec.gpus or (spec.nodes * one if spec.nodes else None) or asked or spec.default_gpus or one
        nodes = spec.nodes or -(-wanted // one)
        if spec.gpus is not None and spec.gpus != nodes * one:
            fix, whole = f"write {nodes * one}, or another gpus_per_node", f"{spec.nodes or 'whole'} nodes"
            raise TopologyError(f"{spec.gpus} GPUs are not {whole} of {one}", fix=fix)
        count = one
    else:
        nodes = 1
        count = spec.gpus or natural or asked or spec.default_gpus or 0
    if not count:
        raise TopologyError("the number of GPUs is missing", fix="write for example 'gpus: 8'")
    if asked is not None and count * nodes < asked:
        name = spec.name or spec.topology
        fix = f"ask for at most {count * nodes}, or enlarge it"
        raise TopologyError(f"{name} has {count * nodes} GPUs, {asked} are asked for", fix=fix)
    return _fitted(spec, count), nodes


def _natural(spec: ShapeSpec) -> int | None:
    if spec.shape is not None:
        return math.prod(spec.shape)
    if spec.topology == "hybrid_cube_mesh":
        return 8
    if spec.topology == "fat_tree" and spec.k is not None:
        return spec.k**3 // 4
    if spec.topology == "tree" and spec.levels is not None:
        return int(min(spec.fanout**spec.levels, 10 * GPUS.most)) if spec.levels <= 64 else 10 * GPUS.most
    return None


def _fitted(spec: ShapeSpec, count: int) -> ShapeSpec:
    """Return the spec with a count, having checked that the shape can hold that many."""
    natural = _natural(spec)
    if spec.shape is not None and natural != count:
        text = "x".join(map(str, spec.shape))
        raise TopologyError(f"shape {text} has {natural} GPUs, not {count}", fix="leave one of the two out")
    if natural is not None and count > natural:
        raise TopologyError(f"{spec.topology} of this size has {natural} GPUs, not {count}", fix="enlarge it")
    if spec.topology == "hybrid_cube_mesh" and count != 8:
        raise TopologyError(f"a hybrid cube mesh has 8 GPUs, not {count}", fix="write 'gpus: 8', or leave it out")
    if spec.topology in ("mesh", "torus") and spec.shape is None:
        spec = replace(spec, shape=near_square(count, spec.dimensions))
    return replace(spec, gpus=count)


def near_square(count: int, dimensions: int) -> tuple[int, ...]:
    """Return the sides, longest first, of the most even box of ``count``: 8 is (4, 2) or (2, 2, 2), 7 is (7, 1)."""
    if dimensions == 1:
        return (count,)
    ideal = round(count ** (1 / dimensions))
    side = next(side for side in range(max(1, ideal), 0, -1) if count % side == 0)
    return (*near_square(count // side, dimensions - 1), side)


def _join(result: GraphDraft, wire: Wire, of_node: Sequence[Sequence[str]]) -> None:
    """Join the GPUs of all nodes by a fabric that is never the bottleneck, each (or several of a node) by a network card."""
    fabric = result.node("fabric", "switch")
    if wire.gpus_per_nic == 1:
        for gpu in itertools.chain(*of_node):
            result.both(gpu, fabric, wire.bandwidth, wire.latency)
        return
    step = wire.gpus_per_nic
    sharing = [gpus[first : first + step] for gpus in of_node for first in range(0, len(gpus), step)]
    for index, group in enumerate(sharing):
        nic = result.node(f"nic{index}", "switch")
        for gpu in group:
            result.both(gpu, nic, wire.bandwidth, wire.latency)
        result.both(nic, fabric, wire.bandwidth, 0.0)


def _cable(
    draft: GraphDraft, a: str, b: str, spec: ShapeSpec, bandwidth: float | None = None, *, times: float = 1.0
) -> None:
    """Add both directions of a link, of the spec's bandwidths ``times`` over."""
    there = spec.bandwidth if bandwidth is None else bandwidth
    back = there if spec.reverse_bandwidth is None else there / spec.bandwidth * spec.reverse_bandwidth
    draft.link(a, b, there * times, spec.latency)
    draft.link(b, a, back * times, spec.latency)


def _ring(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    count = len(gpus)
    for i, gpu in enumerate(gpus):
        result.coordinates[gpu] = (i,)
        if count > 2 or i + 1 < count:  # two GPUs have one link between them, not two
            _cable(result, gpu, gpus[(i + 1) % count], spec)


def _mesh(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str, *, wrap: bool = False) -> None:
    """The first dimension runs fastest: in a 4x2 mesh gpu0 to gpu3 are the first row.

    Its links are declared first, too, so that messages go along the first dimension, then the second: dimension order.
    """
    shape = spec.shape or ()
    places = [place[::-1] for place in itertools.product(*(range(side) for side in reversed(shape)))]
    at = dict(zip(places, gpus, strict=True))
    result.coordinates.update((gpu, place) for place, gpu in at.items())
    for axis, side in enumerate(shape):
        for place, gpu in at.items():
            further = place[axis] + 1
            if further < side or (wrap and side > 2):
                neighbour = (*place[:axis], further % side, *place[axis + 1 :])
                _cable(result, gpu, at[neighbour], spec)


def _fully_connected(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    for a, b in itertools.combinations(gpus, 2):
        _cable(result, a, b, spec)


def _switch(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    switch = result.node(f"{prefix}switch0", "switch")
    for gpu in gpus:
        _cable(result, gpu, switch, spec)


def _bus(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    """One medium, a single link that every transfer crosses; the taps of the GPUs are as fast as it, so never slower."""
    talk, listen = result.node(f"{prefix}bus", "switch"), result.node(f"{prefix}bus.out", "switch")
    result.link(talk, listen, spec.bandwidth, spec.latency)
    for gpu in gpus:
        result.link(gpu, talk, spec.bandwidth, 0.0)
        result.link(listen, gpu, spec.bandwidth, 0.0)


def _tree(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    """GPUs are the leaves. Uplinks are like all links, or of what is below them divided by the oversubscription."""
    below = [(gpu, spec.bandwidth) for gpu in gpus]
    level = 0
    while len(below) > 1 or level == 0:
        above = []
        for index, first in enumerate(range(0, len(below), spec.fanout)):
            children = below[first : first + spec.fanout]
            switch = result.node(f"{prefix}switch{level}.{index}", "switch")
            for child, bandwidth in children:
                _cable(result, child, switch, spec, bandwidth)
            total = sum(bandwidth for _, bandwidth in children)
            above.append((switch, spec.bandwidth if spec.oversubscription is None else total / spec.oversubscription))
        below = above
        level += 1


def _fat_tree(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    """k pods of k/2 edge and k/2 aggregation switches, k/2 GPUs an edge switch; only the pods that are needed."""
    k = spec.k or next(k for k in itertools.count(2, 2) if k**3 // 4 >= len(gpus))
    half = k // 2
    cores = [result.node(f"{prefix}core{i}", "switch") for i in range(half * half)]
    for pod in range(math.ceil(len(gpus) / (half * half))):
        members = gpus[pod * half * half : (pod + 1) * half * half]
        edges = [result.node(f"{prefix}edge{pod}.{i}", "switch") for i in range(math.ceil(len(members) / half))]
        for rank, gpu in enumerate(members):
            _cable(result, gpu, edges[rank // half], spec)
        for i in range(half):
            aggregation = result.node(f"{prefix}aggregation{pod}.{i}", "switch")
            for edge in edges:
                _cable(result, edge, aggregation, spec)
            for core in cores[i * half : (i + 1) * half]:
                _cable(result, aggregation, core, spec)


def _pcie_tree(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    """A host's root complex, PCIe switches, GPUs; with all GPUs on one switch's worth, they sit at the root itself."""
    host = result.node(f"{prefix}host0", "host")
    if len(gpus) <= spec.gpus_per_switch:
        for gpu in gpus:
            _cable(result, gpu, host, spec)
        return
    for index, first in enumerate(range(0, len(gpus), spec.gpus_per_switch)):
        switch = result.node(f"{prefix}pcie{index}", "switch")
        _cable(result, switch, host, spec)
        for gpu in gpus[first : first + spec.gpus_per_switch]:
            _cable(result, gpu, switch, spec)


def _hybrid_cube_mesh(result: GraphDraft, spec: ShapeSpec, gpus: Sequence[str], prefix: str) -> None:
    for times, pairs in ((2.0, _DOUBLE), (1.0, _SINGLE)):
        for a, b in pairs:
            _cable(result, gpus[a], gpus[b], spec, times=times)


SHAPES: dict[str, Callable[[GraphDraft, ShapeSpec, Sequence[str], str], None]] = {
    "ring": _ring,
    "mesh": _mesh,
    "torus": partial(_mesh, wrap=True),
    "fully_connected": _fully_connected,
    "switch": _switch,
    "bus": _bus,
    "tree": _tree,
    "fat_tree": _fat_tree,
    "pcie_tree": _pcie_tree,
    "hybrid_cube_mesh": _hybrid_cube_mesh,
}
