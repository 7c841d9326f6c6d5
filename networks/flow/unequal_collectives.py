"""Collectives in which ranks send unequal bytes, on an otherwise idle network: their flows end one by one.

An all-to-all of tokens that a router drew has nearly as many ends as flows, and links are shared again at each. While nothing
else is sent they follow from the start (:mod:`triosim.networks.flow.simultaneous_flows`); those of equal exchanges are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from triosim.networks.collectives.algorithm import Edge, SteadyState
from triosim.networks.collectives.lowering import Layout
from triosim.networks.flow.simultaneous_flows import SimultaneousFlows

if TYPE_CHECKING:
    from triosim.networks.flow.packet import Path
    from triosim.networks.topology import NodeRef

#: The least numbers of flows, and of different sizes among them, with which this is quicker than an event for each end.
_LEAST_FLOWS, _LEAST_SIZES = 256, 48
#: Flows of all exchanges that are kept, about 100 MB.
_MOST_KEPT = 500_000


def ends_one_by_one(layout: Layout) -> bool:
    """Whether the flows of a collective have so many sizes that they end one by one."""
    steady = layout.transfers
    if not isinstance(steady, SteadyState) or len(steady.edges) < _LEAST_FLOWS:
        return False
    return len({edge.nbytes for edge in steady.edges}) >= _LEAST_SIZES


class KnownExchanges:
    """Exchanges on an idle network, by their layouts.

    ``path`` finds the route of a transfer, ``capacities`` are those of the links that routes are limited by.
    """

    def __init__(self, path: Callable[[NodeRef, NodeRef], Path], capacities: Sequence[float]) -> None:
        self._path = path
        self._capacities = capacities
        self._flows: dict[tuple[Layout, float], UnequalFlows] = {}
        self._kept = 0  # flows
        self.hold = True  # until a link changes

    def flows(self, layout: Layout, stretch: float) -> UnequalFlows:
        """Return the flows of an exchange whose bytes count ``stretch`` times."""
        found = self._flows.get((layout, stretch))
        if found is None:
            found = UnequalFlows(layout, stretch, self._path, self._capacities)
            self._kept += found.count
            if self._kept > _MOST_KEPT:
                self._flows.clear()
                self._kept = found.count
            self._flows[layout, stretch] = found
        return found

    def clear(self) -> None:
        """Forget all exchanges: routes change."""
        self._flows.clear()
        self._kept = 0


class UnequalFlows:
    """The flows of one collective; see ``PlannedFlows``. The sizes of the layout are in bytes."""

    def __init__(
        self, layout: Layout, stretch: float, path: Callable[[NodeRef, NodeRef], Path], capacities: Sequence[float]
    ) -> None:
        assert isinstance(layout.transfers, SteadyState)
        self.stretch: float = stretch
        self._edges = layout.transfers.edges
        if layout.factor != 1.0:
            self._edges = tuple([one._replace(nbytes=one.nbytes * layout.factor) for one in self._edges])
        self.count = len(self._edges)
        self._paths = [path(*edge[:2]) for edge in self._edges]
        pairs = enumerate(zip(self._paths, self._edges, strict=True))
        #: The numbers of the flows that take time.
        self._sent = [number for number, (route, edge) in pairs if route.limits and edge.nbytes > 0]
        self._capacities = capacities
        self._seconds: float | None = None  # once it was asked for

    def seconds(self) -> float:
        """Return how long they flow."""
        if self._seconds is None:
            self._seconds = self._flows().seconds() if self._sent else 0.0
        return self._seconds

    def left(self, elapsed: float) -> Iterable[tuple[Edge, float]]:
        """Yield every flow with what is left of its bytes, each counted ``stretch`` times."""
        left = dict(zip(self._sent, self._flows().left(elapsed).tolist(), strict=True)) if self._sent else {}
        return [(edge, left.get(number, 0.0)) for number, edge in enumerate(self._edges)]

    def arrived(self) -> None:
        """Count the bytes on their routes."""
        for path, edge in zip(self._paths, self._edges, strict=True):
            path.carried += edge.nbytes

    def _flows(self) -> SimultaneousFlows:
        routes = [self._paths[one].limits for one in self._sent]
        work = [self._edges[one].nbytes * self.stretch for one in self._sent]
        return SimultaneousFlows(routes, work, self._capacities)
