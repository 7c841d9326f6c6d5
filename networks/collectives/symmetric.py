"""Collectives in which all ranks do the same: what one of them sends says how long it takes, and who sends what.

The ranks have coordinates, and along each dimension every rank sends as many bytes to the one that is a step further (or,
of 2^k members, to the one whose place differs in the same bits) as any other rank does. No link differs, so that a flow
has the rate of its image, and a link that a rank does not share with others carries what it sends alone. This is the
quotient of the network by its translations; a dimension's flows share nothing with those of another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from triosim.networks.collectives.algorithm import Edge
from triosim.networks.collectives.algorithms.grid import Grid

Pairs = Mapping[tuple[int, int], float]  # the bytes from position to position of a line


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one rank sends over one of its links: bytes by step along a dimension. They share it fairly."""

    dimension: int
    bandwidth: float
    sizes: Mapping[int, float]

    def left(self, seconds: float, nbytes: float) -> dict[int, float]:
        """Return what is left of each after so many seconds of a collective of ``nbytes`` (the sizes are of one byte)."""
        budget = self.bandwidth * seconds
        found: dict[int, float] = {}
        flows = sorted((size * nbytes, step) for step, size in self.sizes.items())
        had = 0.0  # by each that is still under way
        for place, (size, step) in enumerate(flows):
            more = min(size - had, budget / (len(flows) - place))
            budget -= more * (len(flows) - place)
            had += more
            found[step] = size - had
        return found


@dataclass(frozen=True, eq=False)
class Symmetric:
    """A collective of one byte, in its pipelined form, as one of its ranks sees it.

    ``cyclic`` says for each dimension whether a step is added to a place (modulo the size), or its bits are flipped.
    """

    grid: Grid
    cyclic: tuple[bool, ...]
    bundles: tuple[Bundle, ...]
    latency: float
    fill: float

    @property
    def seconds(self) -> float:
        """How long the busiest link is busy."""
        return max((math.fsum(bundle.sizes.values()) / bundle.bandwidth for bundle in self.bundles), default=0.0)

    def pairs(self, dimension: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield each rank and the one to which it sends by a step."""
        places, size, before = self.grid.places, self.grid.shape[dimension], self.grid.before(dimension)
        to = [(at + step) % size if self.cyclic[dimension] else at ^ step for at in range(size)]
        for place, rank in enumerate(places):
            at = place // before % size
            yield rank, places[place + before * (to[at] - at)]

    def edges(self, seconds: float, nbytes: float) -> Iterator[tuple[Edge, float]]:
        """Yield what every rank sends in a collective of ``nbytes``, and what is left of it after so many seconds."""
        for bundle in self.bundles:
            for step, left in bundle.left(seconds, nbytes).items():
                size = bundle.sizes[step] * nbytes
                for source, destination in self.pairs(bundle.dimension, step):
                    yield Edge(source, destination, size), left

    def ways(self) -> Iterator[Edge]:
        """Yield an edge for each link by which a rank sends, with all bytes that go over it, and over its way, of one byte."""
        for bundle in self.bundles:
            carried = math.fsum(bundle.sizes.values())
            for source, destination in self.pairs(bundle.dimension, next(iter(bundle.sizes))):
                yield Edge(source, destination, carried)


def steps_of(phases: Sequence[Pairs], size: int) -> tuple[bool, dict[int, float]] | None:
    """Return whether steps along a dimension are cyclic, and the bytes of each; None where ranks do not do the same."""
    for cyclic in (True, False):
        if not cyclic and size & (size - 1):
            continue
        found: dict[int, float] = {}
        if all(_translated(pairs, size, cyclic, found) for pairs in phases):
            return cyclic, found
    return None


def _translated(pairs: Pairs, size: int, cyclic: bool, found: dict[int, float]) -> bool:
    """Add up the bytes of each step; return False where two ranks differ in them."""
    steps: dict[int, list[float]] = {}
    for (i, j), nbytes in pairs.items():
        steps.setdefault((j - i) % size if cyclic else i ^ j, []).append(nbytes)
    for step, sizes in steps.items():
        if len(sizes) != size or not math.isclose(min(sizes), max(sizes), rel_tol=1e-12):
            return False
        found[step] = found.get(step, 0.0) + sizes[0]
    return True
