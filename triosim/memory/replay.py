"""Replays a step's allocations through the caching allocator, several times over, to find what is reserved and whether it fits.

A training run does not begin in its steady state: in its first step the optimizer's states are allocated when the optimizer
first runs, from cached blocks that the activations left, and later steps find the cache of the steps before. So the replay
begins with an empty GPU and a first step without what only an earlier step can have left; then the captured step is repeated
until no more is reserved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

from triosim.memory.allocator.allocator import AllocationFailed, CachingAllocator
from triosim.memory.allocator.blocks import MemoryBlock
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import Lifetime, LifetimeEvent, Lifetimes

#: In every run that was tried the reserved memory settled within this many steps; no more are replayed.
MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The allocation that failed: the step of the run, the operator that ran, and the memory at that moment."""

    step: int
    operator: int
    layer: str
    category: str
    nbytes: int
    free: float
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class AllocatorCall:
    """A call of the allocator: to allocate, or to free, the ``nbytes`` of the lifetime with this number."""

    birth: bool
    number: int
    address: int
    nbytes: int
    stream: str


@dataclass(frozen=True, slots=True)
class Replay:
    """A run of the allocator over ``steps`` steps.

    ``allocated`` and ``reserved`` are those of the last whole step: before it, and after each of its events. ``repeats`` says
    that a step leaves exactly what the next one begins with; where it does not, one step was replayed, and later ones begin
    with ``left`` bytes more. ``calls`` are all calls of the allocator, from the empty GPU on, for a snapshot.
    """

    allocator: CachingAllocator
    steps: int
    repeats: bool
    left: int
    allocated: list[int]
    reserved: list[int]
    calls: list[AllocatorCall]
    out_of_memory: OutOfMemory | None = None

    @property
    def peak_allocated(self) -> int:
        """The most bytes in blocks in use (``torch.cuda.max_memory_allocated``)."""
        return self.allocator.peak_allocated

    @property
    def peak_reserved(self) -> int:
        """The most bytes in segments (``torch.cuda.max_memory_reserved``)."""
        return self.allocator.peak_reserved

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that are not in use even at the peak."""
        return 1.0 - self.peak_allocated / self.peak_reserved if self.peak_reserved else 0.0


def replay(
    lifetimes: Lifetimes, capacity: float = math.inf, settings: AllocatorSettings | None = None, steps: int = MOST_STEPS
) -> Replay:
    """Replay up to ``steps`` steps on a GPU with ``capacity`` bytes for the allocator; stop where memory runs out."""
    return _StepReplay(lifetimes, CachingAllocator(capacity, settings)).play(steps)


class _StepReplay:
    """Replays the steps of one run."""

    def __init__(self, lifetimes: Lifetimes, allocator: CachingAllocator) -> None:
        self.lifetimes = lifetimes
        self.allocator = allocator
        self.events = lifetimes.events
        self.blocks: dict[int, MemoryBlock] = {}
        self.calls: list[AllocatorCall] = []
        self.step = 0
        self.operator = -1
        self.failed: OutOfMemory | None = None
        self.kept_for, self.left, lost = _match_steps(lifetimes, self.events)
        self.repeats = not self.left and not lost

    def play(self, steps: int) -> Replay:
        allocated: list[int] = []
        reserved: list[int] = []
        with suppress(AllocationFailed):
            self._begin()
            for self.step in range(1, steps + 1):
                before = self.allocator.peak_reserved
                allocated, reserved = self._run_step()
                if not self.repeats or (self.step > 1 and self.allocator.peak_reserved == before):
                    break
                self._inherit()
        return Replay(self.allocator, self.step, self.repeats, self.left, allocated, reserved, self.calls, self.failed)

    def _begin(self) -> None:
        """Allocate what existed before the step, without what an earlier step left or the first step allocates itself."""
        for number in self.lifetimes.initial:
            item = self.lifetimes.items[number]
            if item.first_born is None and number not in self.kept_for:
                self._allocate(number)

    def _run_step(self) -> tuple[list[int], list[int]]:
        late: dict[int, list[int]] = defaultdict(list)
        for number in self.lifetimes.initial if self.step == 1 else ():
            clock = self.lifetimes.items[number].first_born
            if clock is not None and number not in self.kept_for:
                late[clock].append(number)
        allocated, reserved = [self.allocator.allocated], [self.allocator.reserved]
        for event in self.events:
            self.operator = event.operator
            for number in late.get(event.clock, ()):
                self._allocate(number)
            if event.birth:
                self._allocate(event.number)
            elif event.number in self.blocks:  # in the first step, what an earlier one left is not there
                self._free(event.number)
            allocated.append(self.allocator.allocated)
            reserved.append(self.allocator.reserved)
        return allocated, reserved

    def _inherit(self) -> None:
        """Hand what outlives the step to the next one, except what is freed without a record."""
        for number, item in enumerate(self.lifetimes.items):
            if item.freed_later:
                self._free(number)
        for heir, source in self.kept_for.items():
            self.blocks[heir] = self.blocks.pop(source)

    def _allocate(self, number: int) -> None:
        item = self.lifetimes.items[number]
        try:
            block = self.allocator.malloc(item.nbytes, item.stream, number)
        except AllocationFailed as failure:
            self.failed = self._out_of_memory(item, failure.free)
            raise
        self.blocks[number] = block
        self.calls.append(AllocatorCall(True, number, block.address, item.nbytes, item.stream))

    def _free(self, number: int) -> None:
        block = self.blocks.pop(number)
        self.calls.append(AllocatorCall(False, number, block.address, block.requested, block.segment.stream))
        self.allocator.free(block)

    def _out_of_memory(self, item: Lifetime, free: float) -> OutOfMemory:
        running = self.lifetimes.operators[self.operator].layer if self.operator >= 0 else ""
        return OutOfMemory(
            step=max(self.step, 1),
            operator=self.operator,
            layer=item.layer or running,
            category=item.category,
            nbytes=item.nbytes,
            free=free,
            allocated=self.allocator.allocated,
            reserved=self.allocator.reserved,
        )


def _match_steps(lifetimes: Lifetimes, events: list[LifetimeEvent]) -> tuple[dict[int, int], int, int]:
    """Match the initial lifetimes that the step ends with those that it begins and keeps, by size and stream, in order.

    Return the kept lifetime by number of the initial one that it becomes in the next step, and the bytes without a match: of
    kept lifetimes, and of initial ones.
    """
    kept: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        item = lifetimes.items[event.number]
        if event.birth and item.died is None and not item.freed_later:
            kept[item.nbytes, item.stream].append(event.number)
    kept_for: dict[int, int] = {}
    lost = 0
    for number in lifetimes.initial:
        item = lifetimes.items[number]
        if item.died is None:
            continue
        candidates = kept[item.nbytes, item.stream]
        if candidates:
            kept_for[number] = candidates.pop(0)
        else:
            lost += item.nbytes
    left = sum(nbytes * len(numbers) for (nbytes, _), numbers in kept.items())
    return kept_for, left, lost
