"""A network without contention: a transfer takes alpha seconds and then beta seconds a byte (Hockney 1994).

    triosim simulate TRACE --parallel ddp --topology dgx-a100 \\
        --network examples/plugins/alpha_beta_network.py:AlphaBetaNetwork --option alpha=5e-6 --option bandwidth="200 GB/s"

Collectives follow: the base class lowers them to transfers. The options are checked, and parsed, before they get here.
"""

from __future__ import annotations

from typing import Any

import simpy

from triosim import Topology
from triosim.config import Option
from triosim.networks import Network


class AlphaBetaNetwork(Network):
    options = (
        Option("alpha", "time", "1 us", "seconds of every transfer"),
        Option("bandwidth", "bandwidth", "100 GB/s", "what every transfer gets"),
    )

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        *,
        alpha: float = 1e-6,
        bandwidth: float = 100e9,
        **options: Any,
    ) -> None:
        super().__init__(env, topology, **options)
        self.alpha = alpha
        self.bandwidth = bandwidth

    def transfer(self, source: int | str, destination: int | str, nbytes: float) -> simpy.Event:
        if self.topology.node(source) == self.topology.node(destination):
            return self.env.timeout(0)
        return self.env.timeout(self.alpha + nbytes / self.bandwidth)
