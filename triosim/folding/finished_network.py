"""The network of a run that is over, of which other figures are reported than those that it has counted."""

from __future__ import annotations

import simpy

from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator
from triosim.networks.topology import NodeRef


class FinishedNetwork(Network, ErrorEstimator):
    """Base class: derived ones say what the ``network`` has carried of what they stand for."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.env, network.topology)
        self._network = network

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """As the network does."""
        return self._network.transfer(source, destination, nbytes)

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return the network's."""
        network = self._network
        return network.relative_error(kind, gpus, nbytes) if isinstance(network, ErrorEstimator) else 0.0
