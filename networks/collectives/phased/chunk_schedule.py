"""Which dimension each chunk of a collective visits when: in order, or balanced over the dimensions (Themis).

In order, every chunk goes along the dimensions as they are numbered, and the slowest one limits them all. Themis (Rashidi, Won,
Srinivasan, Sridharan, Krishna, ISCA 2022; ASTRA-sim 2.0, V-A) keeps the load of each dimension in seconds, and lets each chunk
of a reduce-scatter visit them from the least loaded to the most loaded one, because its data shrink on the way; an all-gather
goes the other way, and an all-reduce there and back. Of the chunks that wait for a dimension, the smallest goes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from triosim.networks.collectives.phased.grid import Grid

ChunkOrder = Literal["in-order", "themis"]
#: Dimensions whose loads differ by less than this part of a chunk are visited in order (Themis, section IV).
_NEGLIGIBLE = 1 / 16


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """The chunks that visit the dimensions in one order; ``grid`` has the dimensions of the collective in that order."""

    grid: Grid
    order: tuple[int, ...]
    chunks: tuple[int, ...]


class Step(NamedTuple):
    """One phase of one chunk; it begins after the steps before it in its ``queue``."""

    chunk: int
    phase: int
    queue: int


def in_order(grid: Grid, chunks: int) -> list[ChunkGroup]:
    """Return all chunks as one group, which visits the dimensions as they are numbered."""
    return [ChunkGroup(grid, tuple(range(len(grid.shape))), tuple(range(chunks)))]


def balanced(grid: Grid, chunks: int, seconds: Sequence[float]) -> list[ChunkGroup]:
    """Return the chunks by the order in which they visit the dimensions, so that all dimensions are as loaded.

    ``seconds`` is what each dimension takes for all data, if they come to it first.
    """
    natural = tuple(range(len(grid.shape)))
    loads = [0.0] * len(natural)
    found: dict[tuple[int, ...], list[int]] = {}
    for chunk in range(chunks):
        least = min(natural, key=loads.__getitem__)
        is_even = max(loads) - loads[least] < _NEGLIGIBLE * seconds[least] / chunks
        order = natural if is_even else tuple(sorted(natural, key=loads.__getitem__))
        found.setdefault(order, []).append(chunk)
        share = 1 / chunks
        for dimension in order:
            loads[dimension] += seconds[dimension] * share
            share /= grid.shape[dimension]
    return [ChunkGroup(_permuted(grid, order), order, tuple(members)) for order, members in found.items()]


def _permuted(grid: Grid, order: tuple[int, ...]) -> Grid:
    """Return a grid of the same ranks whose dimensions are in another order."""
    places = [0]
    for dimension in order:  # the first one is the fastest
        step = grid.before(dimension)
        places = [place + step * at for at in range(grid.shape[dimension]) for place in places]
    return replace(
        grid,
        places=[grid.places[place] for place in places],
        shape=tuple(grid.shape[dimension] for dimension in order),
        exchanges=tuple(grid.exchanges[dimension] for dimension in order),
        line_topologies=tuple(grid.line_topologies[dimension] for dimension in order if grid.line_topologies),
    )


def one_after_the_other(chunks: int, phase_count: int) -> Iterator[Step]:
    """Yield the steps of chunks that all go through the same phases; each phase takes them in order."""
    for chunk in range(chunks):
        for phase in range(phase_count):
            yield Step(chunk, phase, phase)


class Task(NamedTuple):
    """A phase of a chunk: the queue that it waits in, which does one at a time, and its seconds there."""

    queue: int
    seconds: float


def smallest_first(tasks: Sequence[Sequence[Task]]) -> tuple[list[Step], float]:
    """Return the steps in the order in which they begin, given those of each chunk, and when the last one ends.

    Of those that wait for a queue, the shortest goes first, so that the queues after it have work early (Themis, section IV).
    """
    waiting: dict[int, list[tuple[float, float, int, int]]] = {}
    busy: set[int] = set()
    ends: list[tuple[float, int, int]] = []
    steps: list[Step] = []
    now = 0.0

    def arrive(chunk: int, phase: int) -> None:
        queue, seconds = tasks[chunk][phase]
        heapq.heappush(waiting.setdefault(queue, []), (seconds, now, chunk, phase))

    def begin(queue: int) -> None:
        if queue not in busy and waiting.get(queue):
            seconds, _, chunk, phase = heapq.heappop(waiting[queue])
            busy.add(queue)
            steps.append(Step(chunk, phase, queue))
            heapq.heappush(ends, (now + seconds, chunk, phase))

    for chunk in range(len(tasks)):
        arrive(chunk, 0)
    for queue in list(waiting):
        begin(queue)
    while ends:
        now, chunk, phase = heapq.heappop(ends)
        queue = tasks[chunk][phase].queue
        busy.discard(queue)
        if phase + 1 < len(tasks[chunk]):
            arrive(chunk, phase + 1)
            begin(tasks[chunk][phase + 1].queue)
        begin(queue)
    return steps, now
