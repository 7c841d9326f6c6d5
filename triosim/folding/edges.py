"""The edges of what ranks send: the source and destination of each transfer of a pattern."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.errors import AsymmetryError
from triosim.folding.dry_run import TransferPattern
from triosim.networks.collectives.memory_gather import memory_gather
from triosim.networks.extensions import FoldableNetwork, TransportNetwork
from triosim.networks.topology import NodeRef, Topology
from triosim.networks.topology.memories import end_of_copy

#: Source and destination of each transfer of a pattern.
Edges = tuple[tuple[NodeRef, NodeRef], ...]


def pattern_edges(network: FoldableNetwork, pattern: TransferPattern, nbytes: float) -> Edges:
    """Return the edges of a pattern between ranks; one of each class, where the network uses link classes."""
    if pattern.collective is None:
        return ((pattern.ranks[0], pattern.ranks[1]),)
    kind, ranks, transport = pattern.collective, pattern.ranks, pattern.transport
    if transport is not None and isinstance(network, TransportNetwork):
        return tuple(network.exchange_edges(transport, ranks))
    return tuple(network.collective_edges(kind, ranks, nbytes, root=pattern.root))


def memory_edges(topology: Topology, pattern: TransferPattern, ranks: Sequence[int]) -> Edges:
    """Return the edges of a pattern that reaches a memory, for these ranks in the place of its own.

    Raises ``AsymmetryError`` where a rank has no such memory, or where few may access it at once: those that wait differ.
    """
    if pattern.memory is not None:
        node = topology.memory_of(ranks[0], pattern.memory) or ""
        edges = memory_gather(topology, node, ranks, 1.0).edges
        return tuple((edge.source, edge.destination) for edge in edges)
    assert pattern.copy is not None
    source, destination = (end_of_copy(topology, ranks[0], name) for name in pattern.copy)
    if source is None or destination is None:
        raise AsymmetryError(f"rank {ranks[0]} has no memory for the {pattern}")
    for end in (source, destination):
        if end in topology.memories and topology.memories[end].simultaneous is not None:
            raise AsymmetryError(f"ranks wait for each other's accesses of {end}")
    return ((source, destination),)
