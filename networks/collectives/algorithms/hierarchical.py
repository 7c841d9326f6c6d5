"""Hierarchical collectives on multi-dimensional networks: along one dimension after another, in chunks.

On each dimension the algorithm of its block: ring, straight between all pairs, halving and doubling behind a switch, both
ways along a line (ASTRA-sim 2.0, IV-B; Themis, Rashidi et al. 2022, baseline). With t_d the time that the bytes of dimension d
take there, the slowest one d* and C chunks, an all-reduce takes t_d* + sum of t_j/C over the dimensions before d*, and
latencies: the first chunk has to get to d*, the last one back from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from triosim.config import Option
from triosim.config.option import SYSTEM
from triosim.errors import OptionError
from triosim.networks.collectives.algorithm import CollectiveOperation, Transfer
from triosim.networks.collectives.phased.chunk_schedule import ChunkOrder
from triosim.networks.collectives.phased.exchanges import Exchange, LineExchange, RingExchange, SwitchExchange
from triosim.networks.collectives.phased.grid import Grid
from triosim.networks.collectives.phased.phases import PhasedAlgorithm
from triosim.networks.topology import Dimension, Topology
from triosim.networks.topology.dimensional import block_graph

CHUNKS = 64  # ASTRA-sim's default
CHUNKS_SENT = 4  # where each message of each chunk is simulated
_EXCHANGES: dict[str, Exchange] = {
    "ring": RingExchange(),
    "fully_connected": Exchange(),
    "switch": SwitchExchange(),
    "line": LineExchange(),
}


class Hierarchical(PhasedAlgorithm):
    """Collectives along each dimension of the topology; ``chunks`` follow each other from one to the next.

    A group must be a box of coordinates, such as all GPUs, those of a node, or one of each node. (The shape of several
    nodes of GPUs is a dimension, and the fabric between them another.)
    """

    options = (Option("chunks", "whole", CHUNKS, "hierarchical: the number of chunks of the data.", panel=SYSTEM),)

    def __init__(self, chunks: int | str = CHUNKS, chunk_schedule: ChunkOrder = "in-order") -> None:
        super().__init__(self.options[0].parse(chunks), chunk_schedule)

    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the group as a box of coordinates."""
        if not topology.dimensions:
            fix = "give a regular topology such as 'Ring(4)_Switch(2)', or another algorithm"
            raise OptionError(f"{topology.name} has no dimensions", where="hierarchical", fix=fix)
        sides = coordinates(group, topology.dimensions)
        shape = tuple(len(side) for side in sides if len(side) > 1)
        if math.prod(shape) != len(group):
            text = " x ".join(str(len(side)) for side in sides)
            fix = "take another algorithm for such a group: ring, or auto"
            raise OptionError(
                f"{len(group)} ranks are not a full box of {text} coordinates", where="hierarchical", fix=fix
            )
        moving = [number for number, side in enumerate(sides) if len(side) > 1]
        blocks = [_block(topology.dimensions[number]) for number in moving] if topology.uniform else []
        return Grid(
            group if isinstance(group, range) and group.step == 1 else sorted(group),
            shape,
            tuple(_exchange(sides[number], topology.dimensions[number]) for number in moving),
            tuple(
                (block, tuple(sorted(sides[number]))) for number, block in zip(moving, blocks, strict=topology.uniform)
            ),
        )


class ByDimension(Hierarchical):
    """The hierarchical algorithm as ``auto`` takes it: in steps, the data are cut into 4 chunks, so that messages stay few.

    On a topology that is written as dimensions there are 64 in steps too, as in ASTRA-sim.
    """

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        chunks = self.chunks if topology.regularity.by_dimension else CHUNKS_SENT
        return Hierarchical(chunks, self.chunk_order).transfers_of(operation, topology)


def switch_grid(group: Sequence[int], topology: Topology) -> Grid:
    """Return ranks that are linked to one switch as one line; equal links are known where the dimensions say so."""
    places = group if isinstance(group, range) and group.step == 1 else sorted(group)
    along = [
        (dimension, tuple(sorted(side)))
        for dimension, side in zip(topology.dimensions, coordinates(group, topology.dimensions), strict=True)
        if len(side) > 1
    ]
    known = topology.uniform and len(along) == 1 and along[0][0].block == "switch"
    lines = ((_block(along[0][0]), along[0][1]),) if known else ()
    return Grid(places, (len(group),), (_EXCHANGES["switch"],), lines)


def coordinates(group: Sequence[int], dimensions: Sequence[Dimension]) -> list[set[int]]:
    """Return which coordinates the ranks of a group have in each dimension."""
    if group == range(math.prod(dimension.size for dimension in dimensions)):
        return [set(range(dimension.size)) for dimension in dimensions]
    sides = []
    before = 1
    for dimension in dimensions:
        sides.append({rank // before % dimension.size for rank in group})
        before *= dimension.size
    return sides


def offset(group: Sequence[int], dimensions: Sequence[Dimension]) -> int:
    """Return by how much the ranks of a group can be less, so that the coordinates that all have in common become zero."""
    found, before = 0, 1
    for side, dimension in zip(coordinates(group, dimensions), dimensions, strict=True):
        found += before * next(iter(side)) if len(side) == 1 else 0
        before *= dimension.size
    return found


@cache
def _block(dimension: Dimension) -> Topology:
    return Topology.described(block_graph(dimension))


def _exchange(side: set[int], dimension: Dimension) -> Exchange:
    """Return the exchange of a dimension's blocks; a part of a ring is a line."""
    if dimension.block == "ring" and len(side) < dimension.size:
        return _EXCHANGES["line"]
    return _EXCHANGES[dimension.block]
