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
    changed = Topology(
        topology.name,
        topology.nodes.values(),
        [replace(link, bandwidth=bandwidth(link)) for link in topology.links.values()],
        routing=topology.routing,
        routes={ends: [link.name for link in route] for ends, route in topology.given_routes.items()},
        coordinates=topology.coordinates,
        dimensions=topology.dimensions,
        uniform=False,
        reducing=topology.reducing,
    )
    changed.by_dimension, changed.photonic, changed.conditions = (
        *(topology.by_dimension, topology.photonic),
        topology.conditions,
    )
    changed.uncalibrated = topology.uncalibrated
    changed.calibrate, changed.measured_on = topology.calibrate, topology.measured_on or topology
    return changed
