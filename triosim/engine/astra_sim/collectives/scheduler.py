"""The queues of a rank's dimensions: so many chunks run in each at once, the others wait in order of arrival."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from triosim.engine.astra_sim.bus import Bus, Way
from triosim.engine.astra_sim.clock import Clock
from triosim.engine.astra_sim.collectives.algorithm import AlgorithmRun
from triosim.engine.astra_sim.messages import Messages, Tags


@dataclass(slots=True)
class Dataset:
    """A collective of one rank: it is over when so many chunks are."""

    chunks: int
    finished: Callable[[Any], None]
    argument: Any

    def chunk_finished(self) -> None:
        """Note that a chunk is over."""
        self.chunks -= 1
        if not self.chunks:
            self.finished(self.argument)


@dataclass(slots=True)
class Phase:
    """A phase of a chunk: its algorithm, and the queue that it waits in."""

    run: AlgorithmRun
    queue: int


@dataclass(slots=True)
class _Queue:
    """Chunks of which the first ``running`` have begun."""

    chunks: list[Chunk] = field(default_factory=list)
    running: int = 0


class Scheduler:
    """Takes chunks through their phases, and is what their algorithms send and receive by.

    ``queueing`` is for how many ns chunks have waited in each queue.
    """

    def __init__(self, rank: int, bus: Bus, messages: Messages, clock: Clock, at_once: int) -> None:
        self.rank, self.bus, self.messages, self._clock = rank, bus, messages, clock
        self._at_once = at_once
        self._queues: dict[int, _Queue] = {}
        self.queueing: Counter[int] = Counter()

    def add(self, dataset: Dataset, tag: int, phases: Sequence[Phase]) -> None:
        """Take a chunk to its first phase."""
        self.proceed(Chunk(self, dataset, tag, deque(phases)))

    def proceed(self, chunk: Chunk) -> None:
        """Take a chunk to its next phase, or end it; what waited for its place begins."""
        left = chunk.phase
        if not chunk.phases:
            chunk.dataset.chunk_finished()  # the rank may issue its next collective within
        if left is not None:
            self._queues[left.queue].chunks.remove(chunk)
        if chunk.phases:
            chunk.phase = chunk.phases.popleft()
            chunk.phase.run.stage = chunk
            self._queues.setdefault(chunk.phase.queue, _Queue()).chunks.append(chunk)
            chunk.queued = self._clock.now
        if left is not None:
            self._queues[left.queue].running -= 1
            self._begin(self._queues[left.queue])
        if chunk.phase is not left:
            assert chunk.phase is not None
            self._begin(self._queues[chunk.phase.queue])

    def _begin(self, queue: _Queue) -> None:
        while queue.running < min(self._at_once, len(queue.chunks)):
            chunk = queue.chunks[queue.running]
            queue.running += 1
            assert chunk.phase is not None
            self.queueing[chunk.phase.queue] += self._clock.now - chunk.queued
            chunk.begin()


class Chunk:
    """A part of a collective on its way through its phases."""

    __slots__ = ("_scheduler", "_tag", "dataset", "phase", "phases", "queued")

    def __init__(self, scheduler: Scheduler, dataset: Dataset, tag: int, phases: deque[Phase]) -> None:
        self._scheduler, self.dataset, self._tag, self.phases = scheduler, dataset, tag, phases
        self.phase: Phase | None = None
        self.queued = 0  # since when it waits in its queue

    def begin(self) -> None:
        """Start the phase's algorithm."""
        self._run.start()

    def move(self, size: int, way: Way, *, reduced: bool, fast: bool) -> None:
        """Move a message over the rank's bus."""
        self._scheduler.bus.move(size, way, self._moved, reduced=reduced, fast=fast)

    def send(self, destination: int, size: int) -> None:
        """Send a message of the collective."""
        self._scheduler.messages.send(self._scheduler.rank, destination, size, (Tags.COLLECTIVE, self._tag), None)

    def receive(self, source: int, size: int) -> None:
        """Await a message of the collective."""
        called = (self._received, None)
        self._scheduler.messages.receive(source, self._scheduler.rank, size, (Tags.COLLECTIVE, self._tag), called)

    def finish(self) -> None:
        """End the phase."""
        self._scheduler.proceed(self)

    @property
    def _run(self) -> AlgorithmRun:
        assert self.phase is not None
        return self.phase.run

    def _moved(self, _: Any) -> None:
        self._run.moved()

    def _received(self, _: Any) -> None:
        self._run.received()
