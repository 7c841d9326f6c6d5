"""The quotient of a network: it simulates a part of the transfers, which stand for the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import simpy

from triosim.folding.dry_run import TransferPattern
from triosim.networks.base import Network
from triosim.networks.collectives.algorithm import ranks_of
from triosim.networks.extensions import ErrorEstimator, FigureReporter, LinkCounter
from triosim.tasks import CollectiveKind, Communicator

#: Starts a collective on a network, among these ranks in the place of those of its pattern.
StartCollective = Callable[[Network, Sequence[int]], simpy.Event]


class QuotientNetwork(Network, LinkCounter, FigureReporter, ErrorEstimator):
    """Base class: simulates on the ``network`` what derived classes start there, and reports what that has counted.

    Where some transfers run on an idle network beside it, derived classes estimate the errors of both.
    """

    def __init__(self, network: Network, *beside: Network) -> None:
        super().__init__(network.env, network.topology)
        self._network = network
        self._estimators = [one for one in (network, *beside) if isinstance(one, ErrorEstimator)]

    def collective(
        self,
        kind: CollectiveKind,
        group: Sequence[int] | Communicator,
        nbytes: float,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> simpy.Event:
        """Run a collective of a group, and of the copies that are simulated with it."""
        pattern = TransferPattern(kind, tuple(ranks_of(group)), root, shares is not None)
        place = None if root is None else pattern.ranks.index(root)

        def start(network: Network, ranks: Sequence[int]) -> simpy.Event:
            return network.collective(kind, ranks, nbytes, root=None if place is None else ranks[place], shares=shares)

        return self._run(pattern, nbytes, start)

    @abstractmethod
    def _run(self, pattern: TransferPattern, nbytes: float, start: StartCollective) -> simpy.Event:
        """Start those copies of a collective that are simulated; the event fires when they are through."""

    def simulated_bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that went over each link of the simulated network."""
        return self._network.bytes_by_link() if isinstance(self._network, LinkCounter) else {}

    def figures(self) -> Mapping[str, float]:
        """Return what the network has counted."""
        return self._network.figures() if isinstance(self._network, FigureReporter) else {}

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return how far off transfers that have run are expected to be; see ``ErrorEstimator``."""
        return max((one.relative_error(kind, gpus, nbytes) for one in self._estimators), default=0.0)
