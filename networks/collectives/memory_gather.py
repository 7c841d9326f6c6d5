"""Gathers of shares that lie in a memory, by the switches on the way to the ranks (ASTRA-sim 2.0, section V-B)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triosim.networks.collectives.algorithm import Edge, SteadyState
from triosim.networks.topology import Topology


def memory_gather(topology: Topology, memory: str, ranks: Sequence[int], nbytes: float) -> SteadyState:
    """Return the flows of a tensor that is gathered on its way from a memory: each link on the ways carries it once."""
    ways = [topology.route(memory, rank) for rank in ranks]
    ends = dict.fromkeys((link.source, link.destination) for way in ways for link in way)
    edges = [Edge(source, destination, nbytes) for source, destination in ends if source != destination]
    return SteadyState(tuple(edges), max(math.fsum(link.latency for link in way) for way in ways))
