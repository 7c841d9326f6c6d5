"""A summary of a topology: nodes by kind, links by kind, the diameter between GPUs, and the bisection bandwidth.

The bisection is the maximum flow (Ford and Fulkerson 1956) from the first half of the ranks to the second half.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from triosim.networks.topology.topology import Topology

MOST_GPUS = 64  # up to which the diameter and the bisection are worked out


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """Equal links in one direction: the kinds of node that they join, bytes per second, seconds."""

    source: str
    destination: str
    bandwidth: float
    latency: float
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A topology in figures; ``diameter`` (hops) and ``bisection`` (bytes per second) are None if not worked out."""

    name: str
    routing: str
    gpus: int
    nodes: dict[str, int]
    links: tuple[LinkGroup, ...]
    diameter: int | None
    longest_latency: float | None  # seconds, of the routes between GPUs
    bisection: float | None


def summary(topology: Topology) -> Summary:
    """Return a topology in figures."""
    kinds = {name: node.kind for name, node in topology.nodes.items()}
    groups = Counter(
        (kinds.get(link.source, ""), kinds.get(link.destination, ""), link.bandwidth, link.latency)
        for link in topology.links.values()
    )
    small = 1 < len(topology.gpus) <= MOST_GPUS and all(link.source for link in topology.links.values())
    routes = [topology.route(a, b) for a in topology.gpus for b in topology.gpus if a != b] if small else []
    return Summary(
        name=topology.name,
        routing=topology.routing,
        gpus=len(topology.gpus),
        nodes=dict(Counter(kinds.values())),
        links=tuple(LinkGroup(*group, count) for group, count in groups.items()),
        diameter=max(map(len, routes)) if routes else None,
        longest_latency=max(sum(link.latency for link in route) for route in routes) if routes else None,
        bisection=bisection(topology) if small else None,
    )


def bisection(topology: Topology) -> float:
    """Return the bytes per second that the first half of the ranks can send to the second half, all together."""
    import networkx

    graph: Any = networkx.DiGraph()
    for link in topology.links.values():
        if "memory" in (topology.nodes[link.source].kind, topology.nodes[link.destination].kind):
            continue
        capacity = graph.get_edge_data(link.source, link.destination, {"capacity": 0.0})["capacity"]
        graph.add_edge(link.source, link.destination, capacity=capacity + link.bandwidth)
    half = len(topology.gpus) // 2
    senders, receivers = ("first half",), ("second half",)  # no names of nodes, so that they meet none
    for rank, gpu in enumerate(topology.gpus):
        if rank < half:
            graph.add_edge(senders, gpu)  # without a capacity: unlimited
        else:
            graph.add_edge(gpu, receivers)
    return float(networkx.maximum_flow_value(graph, senders, receivers))
