"""A network without contention: a transfer takes alpha seconds and then beta seconds a byte (Hockney 1994).

    triosim simulate TRACE --parallel ddp --topology dgx-a100 \\
        --network examples/plugins/alpha_beta_network.py:AlphaBetaNetwork --option alpha=5e-6 --option bandwidth="200 GB/s"

Collectives need no word here: the base class lowers them to transfers.
"""

from __future__ import annotations

from typing import Any

import simpy

from triosim import Topology
from triosim.networks import Network
from triosim.units import parse_bandwidth, parse_time


class AlphaBetaNetwork(Network):
    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        alpha: str = "1 us",
        bandwidth: str = "100 GB/s",
        **options: Any,
    ) -> None:
        super().__init__(env, topology, **options)
        self.alpha = parse_time(alpha)
        self.bandwidth = parse_bandwidth(bandwidth)

    def transfer(self, source: int | str, destination: int | str, nbytes: float) -> simpy.Event:
        if self.topology.node(source) == self.topology.node(destination):
            return self.env.timeout(0)
        return self.env.timeout(self.alpha + nbytes / self.bandwidth)
