"""The quotient of a network: it simulates a part of the transfers, which stand for the others."""

from __future__ import annotations

from collections.abc import Mapping

from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator, FigureReporter, LinkCounter


class QuotientNetwork(Network, LinkCounter, FigureReporter, ErrorEstimator):
    """Base class: simulates on the ``network`` what derived classes start there, and reports what that has counted.

    Where some transfers run on an idle network beside it, derived classes estimate the errors of both.
    """

    def __init__(self, network: Network, *beside: Network) -> None:
        super().__init__(network.env, network.topology)
        self._network = network
        self._estimators = [one for one in (network, *beside) if isinstance(one, ErrorEstimator)]

    def simulated_bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link of the simulated network."""
        return self._network.bytes_by_link() if isinstance(self._network, LinkCounter) else {}

    def figures(self) -> Mapping[str, float]:
        """Return what the network has counted."""
        return self._network.figures() if isinstance(self._network, FigureReporter) else {}

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return how far off transfers that have run are expected to be; see ``ErrorEstimator``."""
        return max((one.relative_error(kind, gpus, nbytes) for one in self._estimators), default=0.0)
