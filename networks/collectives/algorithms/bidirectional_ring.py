"""The ring in both directions at once: half of every share goes one way round, half the other.

Where a link carries as much in each direction, this takes half the time of the ring for large messages. Gather and
scatter go straight; an all-to-all is passed from neighbour to neighbour, the shorter way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, Transfer, merged
from triosim.networks.collectives.algorithms import direct
from triosim.networks.collectives.phased.exchanges import RingExchange
from triosim.networks.collectives.phased.grid import Grid
from triosim.networks.collectives.phased.phases import PhasedAlgorithm
from triosim.networks.collectives.ring_order import ring_order
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind


class OneWay(PhasedAlgorithm):
    """One direction of the ring."""

    def __init__(self, *, backward: bool = False, chunks: int = 1) -> None:
        super().__init__(chunks)
        self.backward = backward

    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the group as one block, in the order of the ring."""
        ring = ring_order(topology, group)
        return Grid(ring[::-1] if self.backward else ring, (len(ring),), (RingExchange(),))


class BidirectionalRing(CollectiveAlgorithm):
    """Collectives on a ring, each half of the data one way round."""

    proportional = True

    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        if kind in ("gather", "scatter"):
            return direct.straight(kind, group, nbytes, root, shares)
        if kind == "all_to_all":
            return OneWay().transfers(kind, group, nbytes, topology, shares=shares)
        chunks = len(group) if kind in ("broadcast", "reduce") else 1
        halves = None if shares is None else [share / 2 for share in shares]
        ways = (
            OneWay(backward=way, chunks=chunks).transfers(kind, group, nbytes / 2, topology, root=root, shares=halves)
            for way in (False, True)
        )
        return merged(ways, len(group))
