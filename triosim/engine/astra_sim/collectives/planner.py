"""How a collective is cut into chunks, and through which phases, in which dimensions, each chunk goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from triosim.chakra.inputs.system_file import Algorithm, SystemFile
from triosim.chakra.nodes import CollectiveType
from triosim.engine.astra_sim.collectives.algorithm import AlgorithmRun
from triosim.engine.astra_sim.collectives.double_binary_tree import TreeRun
from triosim.engine.astra_sim.collectives.halving_doubling import HalvingDoublingRun
from triosim.engine.astra_sim.collectives.lines import Line, TreePlace, trees
from triosim.engine.astra_sim.collectives.ring import DirectRun, RingRun
from triosim.engine.astra_sim.collectives.scheduler import Phase
from triosim.engine.astra_sim.faults import Stopped, Thrown


class DimensionPlan:
    """One dimension as a rank sees it: the ranks in it, and the algorithm."""

    def __init__(self, algorithm: Algorithm, ranks: Sequence[int], rank: int, *, local: bool = False) -> None:
        self.size = len(ranks)
        self._algorithm = algorithm
        self._line = Line(ranks, rank, local=local)
        self._turn = count()

    def run(self, kind: CollectiveType, size: int, *, clockwise: bool) -> AlgorithmRun:
        """Return the algorithm of a phase of so many bytes. Trees take turns, and reduce and spread whatever is asked."""
        if self._algorithm.name == "doubleBinaryTree":
            return TreeRun(self._trees[next(self._turn) % 2], size)
        if self._algorithm.name == "halvingDoubling":
            return HalvingDoublingRun(kind, self._line, size)
        if self._algorithm.name == "direct":
            return DirectRun(kind, self._line, size, window=self._algorithm.window)
        return RingRun(kind, self._line, size, clockwise=clockwise)

    @cached_property
    def _trees(self) -> tuple[TreePlace, TreePlace]:
        """The rank's places in the two trees, asked for by the first collective that needs them."""
        return trees(self._line)


@dataclass(frozen=True, slots=True)
class Plan:
    """The dimensions of a collective, and which of them it takes part in."""

    dimensions: tuple[DimensionPlan, ...]
    involved: Sequence[bool]

    def taken(self) -> list[int]:
        """Return the dimensions that take part."""
        if len(self.dimensions) > len(self.involved):
            raise Stopped(f"{len(self.dimensions)} dimensions, of which ASTRA-sim knows four where a node does not say")
        return [d for d, one in enumerate(self.dimensions) if one.size > 1 and self.involved[d]]


def global_dimensions(algorithms: Sequence[Algorithm], sizes: Sequence[int], rank: int) -> tuple[DimensionPlan, ...]:
    """Return the dimensions of a collective of all ranks. A list that is shorter than the network leaves the rest out."""
    if len(algorithms) > len(sizes):
        raise Stopped(f"{len(algorithms)} implementations for {len(sizes)} dimensions")
    found: list[DimensionPlan] = []
    stride = 1
    for algorithm, size in zip(algorithms, sizes, strict=False):
        if algorithm.spans_all:
            total = _product(sizes)
            return (*found, DimensionPlan(algorithm, range(total), rank))
        start = rank - rank // stride % size * stride
        found.append(DimensionPlan(algorithm, range(start, start + stride * size, stride), rank))
        stride *= size
    return tuple(found)


def global_rings(sizes: Sequence[int], dimensions: int | None) -> Iterator[Mapping[int, tuple[int, int]]]:
    """Yield the ranks after and before each rank in the rings of the first dimensions; in the one of all ranks for None."""
    total, stride = _product(sizes), 1
    if dimensions is None:
        yield {rank: ((rank + 1) % total, (rank - 1) % total) for rank in range(total)}
    for size in sizes[: dimensions or 0]:
        found = {}
        for rank in range(total):
            place = rank // stride % size
            start = rank - place * stride
            found[rank] = start + (place + 1) % size * stride, start + (place - 1) % size * stride
        yield found
        stride *= size


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


class Queues:
    """The queues of the dimensions, given out in turn; the second half runs rings backwards."""

    def __init__(self, dimensions: int, per_dimension: int) -> None:
        self._per_dimension = per_dimension
        self._all = [count() for _ in range(dimensions)]
        self._first = [count() for _ in range(dimensions)]
        self._last = [count() for _ in range(dimensions)]

    def any(self, dimension: int) -> tuple[int, bool]:
        """Return the next queue, and whether it runs clockwise."""
        turn = next(self._all[dimension]) % self._per_dimension
        return self._number(dimension, turn), self._per_dimension == 1 or turn < self._per_dimension // 2

    def first(self, dimension: int) -> tuple[int, bool]:
        """Return the next of the first half."""
        half = self._per_dimension // 2
        return self._number(dimension, next(self._first[dimension]) % half if half else 0), True

    def last(self, dimension: int) -> tuple[int, bool]:
        """Return the next of the second half."""
        half = self._per_dimension // 2
        return self._number(dimension, half + next(self._last[dimension]) % (self._per_dimension - half)), False

    def _number(self, dimension: int, turn: int) -> int:
        return dimension * self._per_dimension + turn


def chunks(kind: CollectiveType, size: int, system: SystemFile, ranks: int) -> tuple[int, int]:
    """Return the bytes of a chunk, and how many there are: a remainder adds a whole one.

    Unless all is gathered, a chunk has at least as many bytes as the system has ranks.
    """
    if not system.splits:
        raise Stopped("preferred-dataset-splits is 0 or absent, by which ASTRA-sim divides")
    chunk = size // system.splits
    if kind is not CollectiveType.ALL_GATHER and chunk < ranks:
        return ranks, system.splits
    if not chunk:
        raise Stopped(
            f"an all-gather of {size} bytes in {system.splits} splits, which never ends: give at least a byte each"
        )
    return chunk, -(-size // chunk)


def phases(kind: CollectiveType, chunk: int, plan: Plan, queues: Queues, aware: bool | None) -> Iterator[Phase]:
    """Yield the phases of one chunk. ``aware`` all-reduces scatter up to the last dimension and gather down again."""
    if aware is None and kind is CollectiveType.ALL_REDUCE:
        raise Stopped(
            "collective-optimization is absent, which ASTRA-sim reads nevertheless: write baseline or localBWAware"
        )
    taken = plan.taken()
    if kind is CollectiveType.ALL_REDUCE and aware and taken:
        steps = [(CollectiveType.REDUCE_SCATTER, d, queues.first) for d in taken[:-1]]
        steps.append((CollectiveType.ALL_REDUCE, taken[-1], queues.first))
        steps += [(CollectiveType.ALL_GATHER, d, queues.last) for d in reversed(taken[:-1])]
    else:
        order = reversed(taken) if kind is CollectiveType.ALL_GATHER else taken
        steps = [(kind, d, queues.any) for d in order]
    for step, dimension, queue in steps:
        number, clockwise = queue(dimension)
        run = plan.dimensions[dimension].run(step, chunk, clockwise=clockwise)
        yield Phase(run, number)
        chunk = run.final_size


def checked(algorithms: Sequence[Algorithm], kind: CollectiveType) -> Sequence[Algorithm]:
    """Return the implementations of a collective. Raises ``Thrown`` where there is none."""
    if not algorithms:
        raise Thrown(f"there is no implementation of {kind.name}: write it into system.json")
    return algorithms
