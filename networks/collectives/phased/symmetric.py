"""Symmetric collectives, in which all ranks do the same: their time and their edges follow from what one rank sends.

The ranks form a grid. Along each dimension every rank sends as many bytes to the rank a step further (or, among 2^k members,
to the one whose position differs in the same bits) as any other rank does. No link differs, so that all flows of a step have
one rate, and a link that a rank shares with no other carries what this rank sends. Flows of different dimensions share no link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from triosim.networks.collectives.algorithm import Edge
from triosim.networks.collectives.phased.grid import Grid

Pairs = Mapping[tuple[int, int], float]  # bytes by (position, position) of a line


@dataclass(frozen=True, slots=True)
class LinkShare:
    """The bytes that one rank sends over one of its links, by step along a dimension; they share the link fairly."""

    dimension: int
    bandwidth: float
    sizes: Mapping[int, float]

    def left(self, seconds: float, nbytes: float) -> dict[int, float]:
        """Return the bytes left of each step after some seconds of a collective of ``nbytes`` (``sizes`` are per byte)."""
        budget = self.bandwidth * seconds
        found: dict[int, float] = {}
        flows = sorted((size * nbytes, step) for step, size in self.sizes.items())
        had = 0.0  # bytes that each unfinished flow has sent
        for place, (size, step) in enumerate(flows):
            more = min(size - had, budget / (len(flows) - place))
            budget -= more * (len(flows) - place)
            had += more
            found[step] = size - had
        return found


@dataclass(frozen=True, eq=False)
class SymmetricCollective:
    """The pipelined form of a collective of one byte, as one of its ranks sees it.

    ``cyclic`` says for each dimension whether a step is added to a position (modulo the size) or flips its bits.
    """

    grid: Grid
    cyclic: tuple[bool, ...]
    link_shares: tuple[LinkShare, ...]
    latency: float
    fill: float

    @property
    def seconds(self) -> float:
        """The seconds that the busiest link is busy."""
        return max((math.fsum(one.sizes.values()) / one.bandwidth for one in self.link_shares), default=0.0)

    def pairs(self, dimension: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield each rank and the rank that it sends to in a step."""
        places, size, before = self.grid.places, self.grid.shape[dimension], self.grid.before(dimension)
        to = [(at + step) % size if self.cyclic[dimension] else at ^ step for at in range(size)]
        for place, rank in enumerate(places):
            at = place // before % size
            yield rank, places[place + before * (to[at] - at)]

    def edges(self, seconds: float, nbytes: float) -> Iterator[tuple[Edge, float]]:
        """Yield every edge of a collective of ``nbytes``, and the bytes left of it after some seconds."""
        for one in self.link_shares:
            for step, left in one.left(seconds, nbytes).items():
                size = one.sizes[step] * nbytes
                for source, destination in self.pairs(one.dimension, step):
                    yield Edge(source, destination, size), left

    def edges_by_link(self) -> Iterator[Edge]:
        """Yield one edge for each link by which a rank sends, with all bytes that the link carries of one byte."""
        for one in self.link_shares:
            carried = math.fsum(one.sizes.values())
            for source, destination in self.pairs(one.dimension, next(iter(one.sizes))):
                yield Edge(source, destination, carried)


def steps_of(phases: Sequence[Pairs], size: int) -> tuple[bool, dict[int, float]] | None:
    """Return whether the steps along a dimension are cyclic, and the bytes of each; None where ranks differ."""
    for cyclic in (True, False):
        if not cyclic and size & (size - 1):
            continue
        found: dict[int, float] = {}
        if all(_translated(pairs, size, cyclic, found) for pairs in phases):
            return cyclic, found
    return None


def _translated(pairs: Pairs, size: int, cyclic: bool, found: dict[int, float]) -> bool:
    """Add the bytes of each step to ``found``; return False where two ranks differ in them."""
    steps: dict[int, list[float]] = {}
    for (i, j), nbytes in pairs.items():
        steps.setdefault((j - i) % size if cyclic else i ^ j, []).append(nbytes)
    for step, sizes in steps.items():
        if len(sizes) != size or not math.isclose(min(sizes), max(sizes), rel_tol=1e-12):
            return False
        found[step] = found.get(step, 0.0) + sizes[0]
    return True
