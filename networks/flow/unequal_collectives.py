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
#: How many exchanges are known.
_MOST_KNOWN = 512


def ends_one_by_one(layout: Layout) -> bool:
    """Whether the flows of a collective have so many sizes that they end one by one."""
    steady = layout.transfers
    if not isinstance(steady, SteadyState) or len(steady.edges) < _LEAST_FLOWS:
        return False
    return len({edge.nbytes for edge in steady.edges}) >= _LEAST_SIZES


class KnownExchanges:
    """The seconds of exchanges on an idle network, by the routes and the bytes of their flows.

    ``path`` finds the route of a transfer, ``capacities`` are those of the links that routes are limited by.
    """

    def __init__(self, path: Callable[[NodeRef, NodeRef], Path], capacities: Sequence[float]) -> None:
        self.path = path
        self.capacities = capacities
        self.seconds: dict[tuple[object, ...], float] = {}
        self.hold = True  # until a link changes

    def keep(self, key: tuple[object, ...], seconds: float) -> None:
        """Keep the seconds of an exchange, and forget the oldest one where there are many."""
        if len(self.seconds) >= _MOST_KNOWN:
            del self.seconds[next(iter(self.seconds))]
        self.seconds[key] = seconds


class UnequalFlows:
    """The flows of one collective; see ``PlannedFlows``. The sizes of the layout are in bytes."""

    def __init__(self, known: KnownExchanges, layout: Layout, stretch: float) -> None:
        assert isinstance(layout.transfers, SteadyState)
        self.stretch: float = stretch
        self._known = known
        self._edges = [one._replace(nbytes=one.nbytes * layout.factor) for one in layout.transfers.edges]
        self._paths = [known.path(*edge[:2]) for edge in self._edges]

    def seconds(self) -> float:
        """Return how long they flow."""
        sent = self._sent
        key = tuple(self._paths[one].limits for one in sent), tuple(self._work(sent))
        seconds = self._known.seconds.get(key)
        if seconds is None:
            seconds = self._flows(sent).seconds() if sent else 0.0
            self._known.keep(key, seconds)
        return seconds

    def left(self, elapsed: float) -> Iterable[tuple[Edge, float]]:
        """Yield every flow with what is left of its bytes, each counted ``stretch`` times."""
        sent = self._sent
        left = dict(zip(sent, self._flows(sent).left(elapsed).tolist(), strict=True)) if sent else {}
        return [(edge, left.get(number, 0.0)) for number, edge in enumerate(self._edges)]

    def arrived(self) -> None:
        """Count the bytes on their routes."""
        for path, edge in zip(self._paths, self._edges, strict=True):
            path.carried += edge.nbytes

    @property
    def _sent(self) -> list[int]:
        """The numbers of the flows that take time."""
        return [one for one, path in enumerate(self._paths) if path.limits and self._edges[one].nbytes > 0]

    def _work(self, flows: Iterable[int]) -> list[float]:
        return [self._edges[one].nbytes * self.stretch for one in flows]

    def _flows(self, sent: Sequence[int]) -> SimultaneousFlows:
        routes = [self._paths[one].limits for one in sent]
        return SimultaneousFlows(routes, self._work(sent), self._known.capacities)
