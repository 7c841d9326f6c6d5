"""The dry run of task streams: it draws them without a clock, to learn what the ranks will send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from triosim.errors import AsymmetryError
from triosim.tasks import (
    Batch,
    Collective,
    CollectiveKind,
    Communicator,
    Compute,
    Copy,
    DeepEP,
    Handle,
    Iteration,
    Record,
    Recv,
    Send,
    Synchronize,
    Task,
    TaskStream,
    Tier,
    Wait,
)
from triosim.units import format_ranks


@dataclass(frozen=True, slots=True)
class TransferPattern:
    """A collective of a group, or a transfer between two ranks where ``collective`` is None, whatever its size.

    All collectives with ``unequal`` shares are one pattern: some of the shares may be 0. ``transport`` is without their rows.
    A ``copy`` of a rank is between these two memories, as its task names them; ranks gather from a ``memory`` in its switches.
    """

    collective: CollectiveKind | None
    ranks: tuple[int, ...]
    root: int | None = None
    unequal: bool = False
    transport: DeepEP | None = None
    copy: tuple[str, str] | None = None
    memory: Tier | None = None

    @classmethod
    def of(cls, task: Collective) -> TransferPattern:
        """Return the pattern of a collective."""
        transport = None if task.transport is None else task.transport.with_rows(None)
        return cls(task.kind, task.group.ranks, task.root, task.shares is not None, transport, memory=task.memory)

    @property
    def reaches_memory(self) -> bool:
        """Whether it is between GPUs and memories."""
        return self.copy is not None or self.memory is not None

    def __str__(self) -> str:
        kind = self.collective or ("transfer" if self.copy is None else f"copy from {' to '.join(self.copy)}")
        return f"{kind} of ranks {format_ranks(self.ranks, most=8)}"


@dataclass(slots=True)
class PatternUse:
    """The size of the first transfer of a pattern, and the communicators that use the pattern."""

    nbytes: float
    communicators: set[Communicator] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The transfers of ranks in their first iteration.

    patterns: the patterns of what they send.
    received: source and destination of what they receive.
    recorded: the streams of the ranks that ended within the first iteration, which need not be drawn again.
    """

    patterns: Mapping[TransferPattern, PatternUse]
    received: Set[tuple[int, int]]
    recorded: Mapping[int, RecordedStream]


class RecordedStream:
    """The tasks of a stream that does not depend on the clock, which can be run again with new handles."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._positions: dict[Handle, int] = {}
        # By position of a task: the positions of the tasks that its fields name.
        self._references: dict[int, dict[str, tuple[int, ...]]] = {}
        self._referenced: set[int] = set()

    def add(self, rank: int, task: Task) -> Any:
        """Record a task, and return a stand-in for the engine's answer."""
        position = len(self._tasks)
        if task.after:
            self._refer(position, "after", task.after)
        if isinstance(task, (Wait, Synchronize)):
            self._refer(position, "handles", task.handles)
        elif isinstance(task, Iteration) and task.of:
            self._refer(position, "of", task.of)
        self._tasks.append(task)
        if isinstance(task, Synchronize):
            return _UnknownAnswer()
        handle = Handle(rank, task)
        self._positions[handle] = position
        return handle

    def _refer(self, position: int, name: str, handles: Sequence[Handle]) -> None:
        positions = tuple([self._positions[handle] for handle in handles])
        self._references.setdefault(position, {})[name] = positions
        self._referenced.update(positions)

    def stream(self) -> TaskStream:
        """Yield the tasks again."""
        handles: dict[int, Any] = {}
        for position, task in enumerate(self._tasks):
            references = self._references.get(position)
            if references is not None:
                again: dict[str, Any] = {
                    name: tuple([handles[one] for one in positions]) for name, positions in references.items()
                }
                task = replace(task, **again)
            answer = yield task
            if position in self._referenced:
                handles[position] = answer


class _UnknownAnswer:
    """The answer to a host that has waited, which is not known before the run."""

    def __getattr__(self, name: str) -> Any:
        raise AsymmetryError(f"the tasks of a rank depend on '{name}' of an answer that only the run gives")


def dry_run(streams: Mapping[int, TaskStream]) -> DryRun:
    """Return what ranks send in their first iteration; their streams are used up.

    Raises ``AsymmetryError`` for streams that depend on the clock or on other ranks.
    """
    patterns: dict[TransferPattern, PatternUse] = {}
    received: set[tuple[int, int]] = set()
    recorded: dict[int, RecordedStream] = {}
    for rank, stream in streams.items():
        recording = RecordedStream()
        task: Task | None = None
        answer: Any = None
        try:
            while not isinstance(task, Iteration):
                task = stream.send(answer)
                answer = recording.add(rank, task)
                if type(task) is Compute or type(task) is Wait:
                    continue  # most tasks
                for part in task.parts if isinstance(task, Batch) else (task,):
                    _add_pattern(patterns, received, part, rank)
            stream.send(answer)
            stream.close()
        except StopIteration:
            recorded[rank] = recording
    return DryRun(patterns, received, recorded)


def _add_pattern(
    patterns: dict[TransferPattern, PatternUse], received: set[tuple[int, int]], task: Any, rank: int
) -> None:
    if isinstance(task, Collective):
        if len(task.group.ranks) > 1:
            patterns.setdefault(TransferPattern.of(task), PatternUse(task.nbytes)).communicators.add(task.group)
    elif isinstance(task, Send):
        patterns.setdefault(TransferPattern(None, (rank, task.destination)), PatternUse(task.nbytes))
    elif isinstance(task, Copy):
        if task.seconds is None:
            ends = task.source, task.destination
            patterns.setdefault(TransferPattern(None, (rank,), copy=ends), PatternUse(task.nbytes))
    elif isinstance(task, Recv):
        received.add((task.source, rank))
    elif not isinstance(task, (Compute, Iteration, Record, Synchronize, Wait)):
        raise AsymmetryError(f"a {type(task).__name__} task may differ from rank to rank")
