"""The chain: every rank passes on to the next, without closing the ring; for a line of links, and for pipelines.

An all-reduce goes along it to the first rank and comes back; all-gather and reduce-scatter go both ways at once, a
share to either end. Gather, scatter and all-to-all are sent directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.networks.collectives.algorithms.tree import Parents, Tree, chain
from triosim.networks.collectives.phased.exchanges import LineExchange
from triosim.networks.collectives.phased.phases import SingleBlock
from triosim.networks.collectives.ring_order import ring_order, rooted
from triosim.networks.topology import Topology


class _Line(SingleBlock):
    exchange = LineExchange()

    def order(self, group: Sequence[int], topology: Topology) -> Sequence[int]:
        return along_line(topology, group)


class Chain(Tree):
    """Collectives along a chain of the group's ranks."""

    others = _Line()

    def trees(self, group: Sequence[int], topology: Topology, root: int | None) -> Sequence[Parents]:
        """Return a single chain, or, with a root in its midst, the two arms that meet there."""
        line = along_line(topology, group)
        at = 0 if root is None else line.index(root)
        return [chain(line[at:]) | chain(line[at::-1])]


def along_line(topology: Topology, group: Sequence[int]) -> tuple[int, ...]:
    """Return a group in the order of a chain: along the line where its coordinates say so, else along the ring."""
    places = [topology.coordinates.get(topology.node(rank), ()) for rank in group]
    if all(places):
        moving = [axis for axis in range(len(places[0])) if len({place[axis] for place in places}) > 1]
        if len(moving) == 1:
            by_place = dict(zip(places, group, strict=True))
            return tuple(by_place[place] for place in sorted(by_place))
    return tuple(rooted(ring_order(topology, group), None))
