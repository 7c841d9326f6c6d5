"""Algorithms that run in phases, one along each dimension of a network, each phase in rounds: the base of most algorithms.

With shape n1 x ... x nD, an all-gather goes along dimension D, ..., 2, 1, a reduce-scatter along 1, 2, ..., D, and an
all-reduce is the one after the other, so that dimension i moves 2 (ni - 1)/ni S/(n1 ... n(i-1)) bytes a rank (Cho et al.
2019; ASTRA-sim 2.0, IV-B). An algorithm of one dimension is a single block. Cut into C chunks, these follow each other
through the phases; the slowest dimension is then busy nearly all the time. Chunks may also visit the dimensions in orders of
their own, which keep all dimensions busy (``chunk_schedule``).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from triosim.networks.collectives.algorithm import (
    WITH_ROOT,
    CollectiveOperation,
    Cost,
    Edge,
    OperationAlgorithm,
    Ranks,
    SteadyState,
    Transfer,
    busiest,
    latency_of,
)
from triosim.networks.collectives.phased.carried_pieces import MOST_KEPT, CarriedPieces
from triosim.networks.collectives.phased.chunk_schedule import (
    ChunkGroup,
    ChunkOrder,
    Step,
    Task,
    balanced,
    in_order,
    one_after_the_other,
    smallest_first,
)
from triosim.networks.collectives.phased.exchanges import (
    DoublingExchange,
    Exchange,
    LineExchange,
    RingExchange,
    Rounds,
    SwitchExchange,
)
from triosim.networks.collectives.phased.grid import Grid, Pieces, Spreading
from triosim.networks.collectives.phased.symmetric import LinkShare, SymmetricCollective, steps_of
from triosim.networks.topology import Topology
from triosim.tasks import CollectiveKind

MOST_PAIRS = 1_000_000  # of members of a line, to see whether all do the same
_SPREADING: dict[CollectiveKind, Spreading] = {
    "reduce_scatter": "all_gather",
    "reduce": "broadcast",
    "gather": "scatter",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "all_to_all": "all_to_all",
}


@dataclass(frozen=True)
class Phase:
    """The exchange along one dimension; ``root`` is a position, for kinds that have one.

    ``backward`` reverses the order of the rounds and the direction of their messages; ``unit`` is the bytes of a position.
    """

    dimension: int
    spreading: Spreading
    exchange: Exchange
    size: int
    root: int
    backward: bool
    unit: float

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of the exchange, not reversed."""
        if self.spreading == "all_gather":
            return self.exchange.reduce_scatter(self.size) if self.backward else self.exchange.all_gather(self.size)
        if self.spreading == "broadcast":
            return self.exchange.broadcast(self.size, self.root)
        if self.spreading == "scatter":
            return self.exchange.scatter(self.size, self.root)
        return self.exchange.all_to_all(self.size)

    @property
    def pair_count(self) -> int:
        """An upper bound of the number of ``pairs``."""
        straight = self.spreading == "all_to_all" or not isinstance(self.exchange, (RingExchange, DoublingExchange))
        return self.size * (self.size if straight else 2 * self.size.bit_length())

    def behind_a_switch(self) -> tuple[int, float]:
        """Return the number of rounds of halving and doubling, and the bytes of the member that sends or receives most."""
        rounds = (self.size - 1).bit_length()
        if self.spreading == "broadcast":
            return rounds, rounds * self.unit
        return 1 if self.spreading == "all_to_all" else rounds, (self.size - 1) * self.unit

    def pairs(self) -> dict[tuple[int, int], float]:
        """Return the bytes from position to position in all rounds."""
        found: dict[tuple[int, int], float] = {}
        for messages in self.rounds:
            for i, j, what in messages:
                ends = (j, i) if self.backward else (i, j)
                found[ends] = found.get(ends, 0.0) + self.unit * (len(what) if self.spreading != "broadcast" else 1)
        return found


def phases(kind: CollectiveKind, grid: Grid, nbytes: float, root: int) -> list[Phase]:
    """Return the phases of a collective; ``root`` is a place."""
    if kind == "all_reduce":
        return [*phases("reduce_scatter", grid, nbytes, root), *phases("all_gather", grid, nbytes, root)]
    spreading = _SPREADING[kind]
    backward = spreading != kind
    found = []
    for dimension, size in enumerate(grid.shape):
        before = grid.before(dimension)
        unit = {
            "all_gather": nbytes / (before * size),
            "broadcast": nbytes,
            "scatter": nbytes * before / len(grid.places),
            "all_to_all": nbytes / size,
        }[spreading]
        at = root // before % size
        found.append(Phase(dimension, spreading, grid.exchanges[dimension], size, at, backward, unit))
    return found if backward or kind == "all_to_all" else found[::-1]


def _phase_count(kind: CollectiveKind, grid: Grid) -> int:
    return len(grid.shape) * (2 if kind == "all_reduce" else 1)


def lines(grid: Grid, phase: Phase, root: int) -> Iterator[tuple[int, ...]]:
    """Yield the grid places of each line along a phase's dimension; with a root, only of the lines that hold its data."""
    before, size = grid.before(phase.dimension), grid.shape[phase.dimension]
    rooted = phase.spreading in ("broadcast", "scatter")
    for after in range(len(grid.places) // (before * size)):
        for first in (root % before,) if rooted else range(before):
            start = first + after * before * size
            yield tuple(range(start, start + before * size, before))


class PhasedAlgorithm(OperationAlgorithm):
    """An algorithm that arranges the group in a grid, which the subclass chooses, and exchanges data along its dimensions.

    The data are cut into ``chunks``, which follow each other through the phases, unless there is a single phase in which every
    rank is always busy.
    """

    proportional = True

    def __init__(self, chunks: int = 1, chunk_order: ChunkOrder = "in-order") -> None:
        self.chunks = chunks
        self.chunk_order = chunk_order
        self._carried: dict[tuple[CollectiveKind, Ranks, int], tuple[Grid, CarriedPieces]] = {}

    @abstractmethod
    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the grid of a group. Raises ``OptionError`` for a group that cannot be arranged in one."""

    def transfers_of(self, operation: CollectiveOperation, topology: Topology) -> Iterator[Transfer]:
        """Yield the transfers of a collective."""
        grid, root = self._arranged(operation, topology)
        busy = len(grid.shape) == 1 and operation.root is None and not isinstance(grid.exchanges[0], LineExchange)
        groups = in_order(grid, 1) if busy else self._groups(operation, grid, topology)
        return _laid_out(operation, groups, root, self._steps(operation.kind, groups, topology))

    def _arranged(self, operation: CollectiveOperation, topology: Topology) -> tuple[Grid, int]:
        """Return the grid of a collective, and the place of its root in it."""
        grid = self.grid(operation.ranks, topology)
        return grid, 0 if operation.root is None else list(grid.places).index(operation.root)

    def _groups(self, operation: CollectiveOperation, grid: Grid, topology: Topology) -> list[ChunkGroup]:
        """Return the chunks by the order in which they visit the dimensions; kinds whose data do not shrink go in order."""
        scatters = operation.kind in ("all_reduce", "reduce_scatter", "all_gather") and operation.shares is None
        if self.chunk_order == "in-order" or len(grid.shape) == 1 or not scatters:
            return in_order(grid, self.chunks)
        seconds = [0.0] * len(grid.shape)  # of each dimension, if all data come to it first
        for phase in phases(operation.kind, grid, 1.0, 0):
            seconds[phase.dimension] += _alone(phase, grid, topology, 0).seconds * grid.before(phase.dimension)
        return balanced(grid, self.chunks, seconds)

    def _steps(self, kind: CollectiveKind, groups: Sequence[ChunkGroup], topology: Topology) -> Iterable[Step]:
        """Return the phases of all chunks, in the order in which each rank begins them."""
        if len(groups) == 1:
            return one_after_the_other(len(groups[0].chunks), _phase_count(kind, groups[0].grid))
        return smallest_first(self._tasks(kind, groups, topology))[0]

    def _tasks(self, kind: CollectiveKind, groups: Sequence[ChunkGroup], topology: Topology) -> list[list[Task]]:
        """Return the phases of each chunk of a collective of one byte, in which each dimension is a queue.

        On a line, data that spread and data that are gathered go opposite ways, which are two queues.
        """
        found: dict[int, list[Task]] = {}
        for group in groups:
            row = [
                Task(
                    2 * group.order[phase.dimension] + (phase.backward and isinstance(phase.exchange, LineExchange)),
                    _alone(phase, group.grid, topology, 0).seconds,
                )
                for phase in phases(kind, group.grid, 1.0 / self.chunks, 0)
            ]
            found.update(dict.fromkeys(group.chunks, row))
        return [found[chunk] for chunk in range(self.chunks)]

    def steady_state(self, operation: CollectiveOperation, topology: Topology) -> SteadyState:
        """Return the steady state, in which all dimensions are busy, and the time to fill and drain them."""
        grid, root = self._arranged(operation, topology)
        groups = self._groups(operation, grid, topology)
        latency, _, fill = self._times(operation, groups, topology, root)
        if operation.shares is not None:  # filled in the time that equal shares need
            return SteadyState(self._carried_in(operation, grid, root).edges(operation), latency, fill)
        edges: dict[tuple[int, int], float] = {}
        for group in groups:
            places = group.grid.places
            for phase in phases(operation.kind, group.grid, self._part(operation.nbytes, group), root):
                pairs = phase.pairs()
                for line in lines(group.grid, phase, root):
                    for (i, j), size in pairs.items():
                        ends = places[line[i]], places[line[j]]
                        edges[ends] = edges.get(ends, 0.0) + size
        return SteadyState(tuple(Edge(*ends, size) for ends, size in edges.items()), latency, fill)

    def _carried_in(self, operation: CollectiveOperation, grid: Grid, root: int) -> CarriedPieces:
        """Return which pieces go over which edge, as found for an earlier collective of the group if there was one."""
        key = operation.kind, operation.ranks, root
        known, found = self._carried.get(key, (None, None))
        if found is None or known != grid:
            steps = one_after_the_other(1, _phase_count(operation.kind, grid))
            found = CarriedPieces(_laid_out(operation._replace(shares=None), in_order(grid, 1), root, steps))
            if sum(one.count for _, one in self._carried.values()) + found.count > MOST_KEPT:
                self._carried.clear()
            self._carried[key] = grid, found
        return found

    def cost(self, operation: CollectiveOperation, topology: Topology) -> Cost:
        """Return the time on idle links; where all lines of a dimension are equal, one of them is looked at."""
        if operation.shares is not None:
            return super().cost(operation, topology)
        grid, root = self._arranged(operation, topology)
        latency, busy, fill = self._times(operation, self._groups(operation, grid, topology), topology, root)
        return Cost(latency, busy + fill)

    def _part(self, nbytes: float, group: ChunkGroup) -> float:
        """Return the bytes of a group's chunks."""
        return nbytes * (len(group.chunks) / self.chunks)

    def symmetric(self, operation: CollectiveOperation, topology: Topology) -> SymmetricCollective | None:
        """Return the collective as one rank sees it, where all ranks do the same over equal links; else None."""
        grid, kind = self.grid(operation.ranks, topology), operation.kind
        if not grid.line_topologies or kind in WITH_ROOT:
            return None
        groups = self._groups(operation, grid, topology)
        by_dimension: dict[int, list[Phase]] = {}
        for group in groups:
            for phase in phases(kind, group.grid, self._part(1.0, group), 0):
                by_dimension.setdefault(group.order[phase.dimension], []).append(phase)
        cyclic: list[bool] = []
        link_shares: list[LinkShare] = []
        for dimension, size in enumerate(grid.shape):
            along = by_dimension[dimension]
            found = None if along[0].pair_count > MOST_PAIRS else steps_of([phase.pairs() for phase in along], size)
            if found is None or isinstance(along[0].exchange, LineExchange):
                return None
            block, members = grid.line_topologies[dimension]
            behind_a_switch = isinstance(along[0].exchange, DoublingExchange)
            link = block.route(0, 1) if behind_a_switch else block.route(members[0], members[1])
            together = [found[1]] if behind_a_switch else [{step: nbytes} for step, nbytes in found[1].items()]
            cyclic.append(found[0])
            link_shares += [LinkShare(dimension, link[0].bandwidth, sizes) for sizes in together]
        latency, _, fill = self._times(operation._replace(nbytes=1.0), groups, topology, 0)
        return SymmetricCollective(grid, tuple(cyclic), tuple(link_shares), latency, fill)

    def _times(
        self, operation: CollectiveOperation, groups: Sequence[ChunkGroup], topology: Topology, root: int
    ) -> tuple[float, float, float]:
        """Return three times: the latency, how long the slowest dimension is busy, and how long filling and draining takes."""
        latencies: list[float] = []
        timed: list[tuple[int, float]] = []
        by_dimension: dict[int, float] = {}
        edges_along: dict[int, list[Edge]] = {}  # by dimension: on a line, phases use opposite links
        for group in groups:
            latencies.append(0.0)
            for phase in phases(operation.kind, group.grid, self._part(operation.nbytes, group), root):
                dimension = group.order[phase.dimension]
                found = _alone(phase, group.grid, topology, root)
                latencies[-1] += found.latency
                timed.append((dimension, found.seconds))
                if found.edges is None:
                    by_dimension[dimension] = by_dimension.get(dimension, 0.0) + found.seconds
                else:
                    edges_along.setdefault(dimension, []).extend(found.edges)
                    by_dimension[dimension] = busiest(edges_along[dimension], found.where)
        slowest = max(by_dimension, key=lambda dimension: by_dimension[dimension])
        busy = by_dimension[slowest]
        if len(groups) == 1:
            return latencies[0], busy, _filling(timed, slowest) / self.chunks
        end = smallest_first(self._tasks(operation.kind, groups, topology))[1] * operation.nbytes
        return max(latencies), busy, max(0.0, end - busy)


class _Alone(NamedTuple):
    """A phase on idle links: the latency of its rounds, the seconds of its bytes, and the edges on the links of ``where``.

    Behind a switch, where all members send as much, edges are not looked at.
    """

    latency: float
    seconds: float
    edges: list[Edge] | None
    where: Topology


def _alone(phase: Phase, grid: Grid, topology: Topology, root: int) -> _Alone:
    """Return what a phase takes on idle links; where all lines of its dimension are equal, one of them is looked at."""
    where, ends = topology, None
    if grid.line_topologies:
        where, members = grid.line_topologies[phase.dimension]
        ends = [members]
    if ends is not None and isinstance(phase.exchange, SwitchExchange):
        link = where.route(0, 1)
        hops, most = phase.behind_a_switch()
        return _Alone(hops * math.fsum(one.latency for one in link), most / link[0].bandwidth, None, where)
    if ends is None:
        ends = [tuple(grid.places[place] for place in line) for line in lines(grid, phase, root)]
    hops = sum(1 for messages in phase.rounds if messages)
    edges = [Edge(line[i], line[j], size) for (i, j), size in phase.pairs().items() for line in ends]
    late = {latency_of(where, source, destination) for source, destination, _ in edges}
    return _Alone(hops * max(late, default=0.0), busiest(edges, where), edges, where)


def _filling(timed: Sequence[tuple[int, float]], slowest: int) -> float:
    """Return the seconds of the phases before and after those of the slowest dimension, given the dimension of each.

    The first chunk reaches the slowest dimension through the phases before it; the last chunk leaves through those after.
    """
    at = [place for place, (dimension, _) in enumerate(timed) if dimension == slowest]
    return math.fsum(seconds for _, seconds in (*timed[: at[0]], *timed[at[-1] + 1 :]))


class SingleBlock(PhasedAlgorithm):
    """An algorithm that exchanges data among all ranks of a group at once, in an order of them."""

    exchange: Exchange

    def __init__(self) -> None:
        super().__init__()

    def grid(self, group: Sequence[int], topology: Topology) -> Grid:
        """Return the group as one block."""
        return Grid(tuple(self.order(group, topology)), (len(group),), (self.exchange,))

    def order(self, group: Sequence[int], topology: Topology) -> Sequence[int]:
        """Return the ranks by their position in the exchange."""
        return group


@dataclass(frozen=True)
class _Laid:
    """A group of chunks, its phases, and the pieces of its data."""

    grid: Grid
    phases: list[Phase]
    pieces: Pieces


def _laid_out(
    operation: CollectiveOperation, groups: Sequence[ChunkGroup], root: int, steps: Iterable[Step]
) -> Iterator[Transfer]:
    """Yield the transfers of all steps; a rank begins a step when it has done the one before in the queue and in the chunk."""
    kind, chunks = operation.kind, sum(len(group.chunks) for group in groups)
    laid: dict[int, _Laid] = {}
    for group in groups:
        order = phases(kind, group.grid, operation.nbytes, root)
        laid.update(
            dict.fromkeys(group.chunks, _Laid(group.grid, order, Pieces(operation.divided(chunks), group.grid)))
        )
    reduces = kind in ("all_reduce", "reduce_scatter", "reduce")
    number = 0
    queued: dict[int, dict[int, tuple[int, ...]]] = {}  # the last transfers of each rank, by queue
    of_chunk: dict[int, dict[int, tuple[int, ...]]] = {}
    for chunk, place, queue in steps:
        grid, phase, pieces = laid[chunk].grid, laid[chunk].phases[place], laid[chunk].pieces
        last = of_chunk.pop(chunk, {})
        for rank, earlier in queued.get(queue, {}).items():
            last[rank] = last.get(rank, ()) + earlier
        every = list(lines(grid, phase, root))
        for messages in reversed(phase.rounds) if phase.backward else phase.rounds:
            fresh: dict[int, list[int]] = {}
            senders = set()
            for line in every:
                for i, j, what in messages:
                    source, destination = grid.places[line[i]], grid.places[line[j]]
                    if phase.backward:
                        source, destination = destination, source
                    found, size = pieces.of(phase.spreading, phase.dimension, line, what, chunk)
                    action: Literal["copy", "reduce"] = "reduce" if reduces and phase.backward else "copy"
                    yield Transfer(source, destination, found, size, action, last.get(source, ()))
                    senders.add(source)
                    fresh.setdefault(source, []).append(number)
                    fresh.setdefault(destination, []).append(number)
                    number += 1
            for rank, numbers in fresh.items():  # a send has waited for all before it, a receive has not
                last[rank] = tuple(numbers) if rank in senders else (*last.get(rank, ()), *numbers)
        queued[queue] = dict(last)
        if place + 1 < len(laid[chunk].phases):
            of_chunk[chunk] = last
