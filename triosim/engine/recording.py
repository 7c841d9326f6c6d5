"""What the engine records of a run: per rank when it computed and when it communicated, and how often each task ran.

Intervals are (start, end) in seconds on the simulation's clock, in order, merged where they touch. The words are those of
the design: communication time runs from a rank's arrival at a transfer or collective until it is through; its waiting part
is the time until the last partner arrived; it is exposed where the rank computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from triosim.tasks import Compute, Handle, Layers
from triosim.trace import Operator

Interval = tuple[float, float]


class Intervals:
    """Points of time as a union of intervals, added in any order, merged when they are asked for."""

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        self._raw: list[Interval] = []

    def add(self, start: float, end: float) -> None:
        """Add one interval; one that follows on from the last is merged at once, which keeps busy streams short."""
        raw = self._raw
        if raw and raw[-1][1] == start:
            raw[-1] = (raw[-1][0], end)
        elif end > start:
            raw.append((start, end))

    def end(self) -> float:
        """Return the end of what was added last, 0 before anything was."""
        return self._raw[-1][1] if self._raw else 0.0

    def merged(self) -> list[Interval]:
        """Return the union as disjoint intervals in order."""
        result: list[Interval] = []
        for start, end in sorted(self._raw):
            if result and start <= result[-1][1]:
                if end > result[-1][1]:
                    result[-1] = (result[-1][0], end)
            else:
                result.append((start, end))
        return result


class Span(NamedTuple):
    """A transfer as one rank sees it: from its arrival to the last partner's, and from there until it is through.

    ``axis`` is its communicator's name or its label ("dp", "pp").
    """

    arrived: float
    started: float
    finished: float
    axis: str
    layers: Layers | None


class Transfers:
    """A rank's transfers and collectives, in the order in which they were through."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(
        self, arrived: float, started: float, finished: float, axis: str = "", layers: Layers | None = None
    ) -> None:
        """Add one; what takes no time leaves no trace."""
        if finished > arrived:
            self.spans.append(Span(arrived, started, finished, axis, layers))

    def merged(self) -> list[Interval]:
        """Return when any of them was on its way, as disjoint intervals in order."""
        union = Intervals()
        for span in self.spans:
            union.add(span.arrived, span.finished)
        return union.merged()


def length(intervals: list[Interval]) -> float:
    """Return the seconds that disjoint intervals cover."""
    return sum(end - start for start, end in intervals)


def overlap(first: list[Interval], second: list[Interval]) -> float:
    """Return the seconds that two unions of disjoint, ordered intervals have in common."""
    common = 0.0
    i = j = 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if end > start:
            common += end - start
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


@dataclass(slots=True)
class RankRecord:
    """What one rank did. ``compute_seconds`` is the sum of its operators' times, as they ran.

    ``slowed_seconds`` of them are due to what else went on: without that they would have been less.

    ``launching`` is when its compute units waited for the host, whatever else went on meanwhile.
    """

    rank: int
    compute: Intervals = field(default_factory=Intervals)
    communication: Transfers = field(default_factory=Transfers)
    launching: Intervals = field(default_factory=Intervals)
    compute_seconds: float = 0.0
    slowed_seconds: float = 0.0
    waiting_seconds: float = 0.0
    finished: float = 0.0
    iterations: list[float] = field(default_factory=list)

    def begins(self, launched: float, now: float) -> None:
        """Note that a compute task begins; if that is the moment at which it was launched, the host was what it waited for."""
        if launched == now:
            self.launching.add(self.compute.end(), now)

    def launch_wait(self) -> float:
        """Return the seconds in which the rank waited for its host, and did nothing else."""
        waiting = self.launching.merged()
        if not waiting:
            return 0.0
        busy = Intervals()
        for start, end in (*self.compute.merged(), *self.communication.merged()):
            busy.add(start, end)
        return max(0.0, length(waiting) - overlap(waiting, busy.merged()))


def operator_times(handle: Handle) -> Iterator[tuple[Operator, float, float]]:
    """Yield each operator of a finished Compute task with its start and end."""
    task = handle.task
    if not isinstance(task, Compute) or handle.started is None:
        return
    if handle.operator_starts is not None:
        starts = handle.operator_starts
        ends = handle.operator_ends or [
            start + operator.seconds for operator, start in zip(task.operators, starts, strict=True)
        ]
        yield from zip(task.operators, starts, ends, strict=True)
        return
    now = handle.started
    for operator in task.operators:
        yield operator, now, now + operator.seconds
        now += operator.seconds


@dataclass(slots=True)
class TransferCount:
    """All transfers of one kind and size: how many, and how long from the last arrival to the end, in all."""

    count: int = 0
    seconds: float = 0.0


#: kind ("all_reduce", "send", "copy", ...), the communicator's name or the label, the group's size, bytes.
TransferKey = tuple[str, str, int, float]


@dataclass(slots=True)
class Recording:
    """What a run left behind. ``handles`` holds every task of every rank, in order of issue, when a timeline was asked for.

    ``computed`` counts runs by the ranks that were simulated, each of which ``stands_for`` those that did the same.
    """

    ranks: list[RankRecord]
    end: float = 0.0
    computed: dict[int, tuple[Compute, dict[int, int]]] = field(default_factory=dict)  # id(task): task, runs by rank
    transfers: dict[TransferKey, TransferCount] = field(default_factory=dict)
    handles: list[Handle] | None = None
    stands_for: Mapping[int, Sequence[int]] | None = None

    def count(self, key: TransferKey, seconds: float, times: int = 1) -> None:
        """Count one transfer or collective that is over, and stands for so many."""
        counted = self.transfers.setdefault(key, TransferCount())
        counted.count += times
        counted.seconds += seconds * times

    def ran(self, rank: int, task: Compute) -> None:
        """Count one run of a computation on a rank."""
        _, runs = self.computed.setdefault(id(task), (task, {}))
        runs[rank] = runs.get(rank, 0) + 1

    def unfold(self, stands_for: Mapping[int, Sequence[int]]) -> None:
        """Let each rank that was simulated stand for several, itself among them."""
        ranks = [replace(record, rank=rank) for record in self.ranks for rank in stands_for[record.rank]]
        self.ranks = sorted(ranks, key=lambda record: record.rank)
        self.stands_for = stands_for
