"""Topologies with the same links at other bandwidths: slowed by random factors, or changed one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from triosim.conditions.conditions import Stragglers
from triosim.conditions.stragglers import draw
from triosim.networks.topology import Link, Topology


def with_slow_links(topology: Topology, stragglers: Stragglers) -> Topology:
    """Return a topology whose links are slower by random factors, the same in both directions; links of hosts are not."""
    memories = {name for name, node in topology.nodes.items() if node.kind in ("host", "memory")}

    def slowed(link: Link) -> float:
        ends = sorted((link.source, link.destination)) if link.source else [link.name]
        return link.bandwidth / (1.0 if memories.intersection(ends) else draw(stragglers, *ends))

    return with_bandwidths(topology, slowed)


def with_bandwidths(topology: Topology, bandwidth: Callable[[Link], float]) -> Topology:
    """Return a topology whose links have other bandwidths (bytes per second), all else unchanged.

    Calibrated times of collectives are scaled by what the changed links need, against what those of the measured machine do.
    """
    return topology.with_links(lambda link: replace(link, bandwidth=bandwidth(link)))
