"""Memories outside of GPUs: what a node's spec says of them, and the nodes and links that they add to a topology.

A GPU reaches its host's memory over PCIe, by a link of its own or through a port that it shares with its neighbours. The
bandwidth of a memory itself is a link from its node to itself that every access crosses, reads and writes together, as they
share a DRAM's pins. Drives are read and written through their host's memory, at two bandwidths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from triosim.networks.topology.graph import GraphDraft, Memory
from triosim.networks.topology.pool import Pool, SharedPool
from triosim.tasks import Tier

if TYPE_CHECKING:
    from triosim.networks.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link of ``gpus_per_link`` GPUs to the memory of their host: bytes per second in each direction, seconds.

    A node has a host for all its GPUs, or for each ``gpus_per_host``.
    """

    bandwidth: float
    latency: float = 0.0
    gpus_per_link: int = 1
    gpus_per_host: int | None = None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The main memory of a host: bytes, bytes per second of reads and writes together, accesses at once (None: any number)."""

    capacity: float
    bandwidth: float
    simultaneous: int | None = None


@dataclass(frozen=True, slots=True)
class Drives:
    """The solid-state drives of a host, all of them together: bytes, bytes per second, seconds, accesses at once."""

    capacity: float
    read: float
    write: float
    latency: float = 0.0
    simultaneous: int | None = None


@dataclass(frozen=True, slots=True)
class Expansion:
    """A memory that a node has besides its host's: the link of each GPU to it, and the memory itself."""

    link: HostLink
    memory: HostMemory


@dataclass(frozen=True, slots=True)
class NodeMemories:
    """The memories of one node of GPUs, and the ``pool`` of all. Without ``host`` the shape itself has hosts."""

    host: HostLink | None = None
    host_memory: HostMemory | None = None
    nvme: Drives | None = None
    expansion: Expansion | None = None
    pool: Pool | None = None

    def add(self, draft: GraphDraft, of_node: Sequence[Sequence[str]]) -> None:
        """Add the memories of nodes of GPUs to a graph that is being put together."""
        if self.host is not None:
            _add_linked(draft, self.host, of_node, "host", "pcie")
        hosts = [name for name in draft.nodes if name.rpartition(".")[2].startswith("host")]
        for number, name in enumerate(hosts):
            self._add_to_host(draft, name, number)
        if self.expansion is not None:
            for name in _add_linked(draft, self.expansion.link, of_node, "expansion", "expansion_port"):
                _declare(draft, name, "expansion", self.expansion.memory)
        if self.pool is not None:
            _add_pool(draft, self.pool, of_node, hosts)

    def _add_to_host(self, draft: GraphDraft, host: str, number: int) -> None:
        if self.host_memory is None:
            draft.memories[host] = Memory("host")
        else:
            _declare(draft, host, "host", self.host_memory)
        if self.nvme is not None:
            drives = draft.node(f"nvme{number}", "memory")
            draft.link(drives, host, self.nvme.read, self.nvme.latency)
            draft.link(host, drives, self.nvme.write, self.nvme.latency)
            draft.memories[drives] = Memory("nvme", self.nvme.capacity, self.nvme.simultaneous)


def _add_pool(draft: GraphDraft, pool: Pool, of_node: Sequence[Sequence[str]], hosts: Sequence[str]) -> None:
    """Add a pool. Its groups are one node, and its switches one: equal links that always carry equal loads are one link.

    A host, which stores what its CPU updates, has as much bandwidth as its GPUs together (the paper's nodes have a CPU for
    each GPU).
    """
    memory, switches = draft.node("pool0", "memory"), draft.node("pool_switches", "port")
    draft.leave(memory, switches, pool.groups * pool.switches * pool.group_bandwidth, pool.latency)
    hosts_of_node = len(hosts) // len(of_node)
    for number, gpus in enumerate(of_node):
        inside = draft.node(f"pool_port{number}", "port")
        draft.leave(inside, switches, pool.switches * pool.node_bandwidth, pool.latency)
        for gpu in gpus:
            draft.leave(gpu, inside, pool.bandwidth, pool.latency)
        for host in hosts[number * hosts_of_node : (number + 1) * hosts_of_node]:
            draft.leave(host, inside, pool.bandwidth * len(gpus) / hosts_of_node, pool.latency)
    bandwidth = None if pool.memory_bandwidth is None else pool.groups * pool.memory_bandwidth
    declare(draft, memory, "pool", pool.groups * pool.capacity, bandwidth, pool.simultaneous)
    shared = SharedPool(pool, len(of_node), sum(map(len, of_node)))
    draft.memories[memory] = replace(draft.memories[memory], shared=shared)


#: Those of a shape of which nothing else is said.
NO_MEMORIES = NodeMemories()


def _add_linked(
    draft: GraphDraft, link: HostLink, of_node: Sequence[Sequence[str]], name: str, port_name: str
) -> list[str]:
    """Add a memory to each node, or to the GPUs of each host, and return their names."""
    found: list[str] = []
    ports = 0
    for gpus in _groups(of_node, link.gpus_per_host):
        memory = draft.node(f"{name}{len(found)}", "memory")
        found.append(memory)
        for sharing in _groups([gpus], link.gpus_per_link):
            if link.gpus_per_link == 1:
                draft.both(sharing[0], memory, link.bandwidth, link.latency)
                continue
            port = draft.node(f"{port_name}{ports}", "port")
            ports += 1
            for gpu in sharing:
                draft.both(gpu, port, link.bandwidth, link.latency)
            draft.both(port, memory, link.bandwidth, 0.0)
    return found


def _groups(of_node: Sequence[Sequence[str]], size: int | None) -> Iterator[Sequence[str]]:
    """Yield each node's GPUs, so many at a time."""
    for gpus in of_node:
        step = size or len(gpus)
        yield from (gpus[first : first + step] for first in range(0, len(gpus), step))


def _declare(draft: GraphDraft, name: str, tier: Tier, memory: HostMemory) -> None:
    """Say that a node is a memory, and add the link that its accesses share."""
    declare(draft, name, tier, memory.capacity, memory.bandwidth, memory.simultaneous)


def declare(
    draft: GraphDraft, name: str, tier: Tier, capacity: float, bandwidth: float | None, simultaneous: int | None
) -> None:
    """Say that a node is a memory of a tier; with a ``bandwidth``, add the link that its accesses share."""
    port = None
    if bandwidth is not None:
        port = f"{name} memory"
        draft.link(name, name, bandwidth, 0.0, port)
    draft.memories[name] = Memory(tier, capacity, simultaneous, port)


#: What errors call a tier, and the key of a topology's file that gives it.
TIERS: dict[Tier, tuple[str, str]] = {
    "host": ("host memory", "host"),
    "nvme": ("NVMe drives", "nvme"),
    "expansion": ("memory expansion", "expansion"),
    "pool": ("memory pool", "pool"),
}


def end_of_copy(topology: Topology, gpu: int | str, name: str) -> str | None:
    """Return the node that a GPU's copy calls ``name``: "device", a tier of memory or a node; None without such a memory."""
    if name == "device":
        return topology.node(gpu)
    tier = next((tier for tier in TIERS if tier == name), None)
    return topology.node(name) if tier is None else topology.memory_of(gpu, tier)


def memory_of(topology: Topology, gpu: int | str, tier: Tier) -> str | None:
    """Return the memory of a tier that is nearest to a GPU, or None where there is none.

    Drives are those of its host. A node of kind ``host`` or ``memory`` of which nothing is said is a host's memory.
    """
    if tier == "nvme":
        host = memory_of(topology, gpu, "host")
        near = (link.source for link in topology.router.into(host)) if host else ()
        return next((name for name in near if name in topology.memories and topology.memories[name].tier == tier), None)
    known = topology.memories
    candidates = frozenset(
        name
        for name, node in topology.nodes.items()
        if (name in known and known[name].tier == tier)
        or (tier == "host" and name not in known and node.kind in ("host", "memory"))
    )
    return topology.router.nearest(topology.node(gpu), candidates) if candidates else None
