"""Topologies: nodes and links, their files, shapes and presets, and the routes through them."""

from triosim.networks.topology.topology import (
    LONGEST_LATENCY,
    MOST_LISTED,
    Block,
    Dimension,
    Link,
    Node,
    NodeKind,
    NodeRef,
    Routing,
    Topology,
    path,
    suggested,
)

__all__ = [
    "LONGEST_LATENCY",
    "MOST_LISTED",
    "Block",
    "Dimension",
    "Link",
    "Node",
    "NodeKind",
    "NodeRef",
    "Routing",
    "Topology",
    "path",
    "suggested",
]
