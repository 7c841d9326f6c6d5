"""The recording of a run: when each rank computed and communicated, and how often each task and transfer ran.

Communication time runs from a rank's arrival at a transfer or collective until it ends; waiting time is the part of it until
the last member has arrived. All times are seconds on the simulation's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from triosim.engine.intervals import Interval, Intervals, length, overlap
from triosim.tasks import Batch, Compute, Handle, Layers, Recv, Send
from triosim.trace import Operator

#: Smaller differences of times come from another order of adding.
_ROUNDING = 1e-9


class TransferInterval(NamedTuple):
    """A transfer or collective on one rank: its arrival, that of the last member, and the end.

    ``axis`` is the communicator's name or the task's label ("dp", "pp"). ``on_host`` is whether the CPU computes meanwhile,
    and nothing travels.
    """

    arrived: float
    started: float
    finished: float
    axis: str
    layers: Layers | None = None
    on_host: bool = False


class TransferIntervals:
    """The transfers and collectives of a rank, in the order in which they ended."""

    __slots__ = ("transfers",)

    def __init__(self) -> None:
        self.transfers: list[TransferInterval] = []

    def add(
        self,
        arrived: float,
        started: float,
        finished: float,
        axis: str = "",
        layers: Layers | None = None,
        on_host: bool = False,
    ) -> None:
        """Add a transfer, unless it took no time."""
        if finished > arrived:
            self.transfers.append(TransferInterval(arrived, started, finished, axis, layers, on_host))

    def merged(self) -> list[Interval]:
        """Return when at least one transfer ran or waited, as disjoint intervals in order."""
        union = Intervals()
        for transfer in self.transfers:
            union.add(transfer.arrived, transfer.finished)
        return union.merged()


class HostWait(NamedTuple):
    """A wait of a host for work of its GPU, in seconds: for that of a stream, or for all of the ``device``."""

    begin: float
    end: float
    device: bool = False


@dataclass(slots=True)
class RankRecord:
    """The record of one rank.

    compute, communication: when it computed and communicated.
    launch_waits: when its compute units waited for a launch, whether or not something else ran on the GPU meanwhile.
    compute_seconds: the sum of the times of its operators, of which ``slowed_seconds`` are due to interference and faults.
    iterations: when each iteration ended.
    host_waits: when its host waited for its GPU, if a timeline was asked for.
    """

    rank: int
    compute: Intervals = field(default_factory=Intervals)
    communication: TransferIntervals = field(default_factory=TransferIntervals)
    launch_waits: Intervals = field(default_factory=Intervals)
    compute_seconds: float = 0.0
    slowed_seconds: float = 0.0
    waiting_seconds: float = 0.0
    finished: float = 0.0
    iterations: list[float] = field(default_factory=list)
    host_waits: list[HostWait] = field(default_factory=list)

    def add_launch_wait(self, launched: float, now: float) -> None:
        """Record the wait before a Compute task that starts now, if it starts at the moment of its launch."""
        if launched == now:
            self.launch_waits.add(self.compute.end(), now)

    def idle_launch_wait(self) -> float:
        """Return the seconds in which the rank waited for its host and did nothing else."""
        waiting = self.launch_waits.merged()
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
    now, longer = handle.started, _stretch(handle, task)
    for operator in task.operators:
        end = now + longer * operator.seconds
        yield operator, now, end
        now = end


def _stretch(handle: Handle, task: Compute) -> float:
    """Return how many times as long as at full speed a task took whose operators followed on from each other."""
    if handle.started is None or handle.finished is None or task.seconds <= 0:
        return 1.0
    longer = (handle.finished - handle.started) / task.seconds
    return longer if longer > 1.0 + _ROUNDING else 1.0


def matched_sends(by_rank: Mapping[int, Iterable[Handle]]) -> Iterator[tuple[Handle, Handle]]:
    """Yield each send with its receive: matched by pair, tag and order, as the engine does."""
    sent: dict[tuple[int, int, int], deque[Handle]] = {}
    received: dict[tuple[int, int, int], deque[Handle]] = {}
    for rank, handles in by_rank.items():
        for handle in handles:
            task = handle.task
            for part in task.parts if isinstance(task, Batch) else (task,):
                if isinstance(part, Send):
                    sent.setdefault((rank, part.destination, part.tag), deque()).append(handle)
                elif isinstance(part, Recv):
                    received.setdefault((part.source, rank, part.tag), deque()).append(handle)
    for channel, senders in sent.items():
        yield from zip(senders, received.get(channel, ()), strict=False)


@dataclass(slots=True)
class TransferCount:
    """The number of transfers of one kind and size, and the sum of their seconds from the last arrival to the end."""

    count: int = 0
    seconds: float = 0.0


#: kind ("all_reduce", "send", "copy", ...), the communicator's name or the label, the group's size, bytes.
TransferKey = tuple[str, str, int, float]


@dataclass(slots=True)
class Recording:
    """The record of a run.

    compute_counts: by ``id`` of a Compute task, the task and how often each rank ran it. The key is an ``id`` because equal
        ranks share their task objects, and hashing the operators of a task takes long; the task in the value keeps the
        ``id`` its own.
    transfers: how often each kind and size of transfer ran, and for how long.
    handles: every task, in order of issue, if a timeline was asked for; of some ranks alone if it was of these.
    represented: the ranks that each simulated rank represents, itself among them; None where all ranks are simulated.
    is_stretched: whether one period stands for several, so that intervals have the right lengths and not the right number.
    is_stopped: whether the run was stopped at ``end``, before its tasks had ended.
    """

    ranks: list[RankRecord]
    end: float = 0.0
    compute_counts: dict[int, tuple[Compute, dict[int, int]]] = field(default_factory=dict)
    transfers: dict[TransferKey, TransferCount] = field(default_factory=dict)
    handles: list[Handle] | None = None
    represented: Mapping[int, Sequence[int]] | None = None
    is_stretched: bool = False
    is_stopped: bool = False

    def count_transfer(self, key: TransferKey, seconds: float, multiplicity: int = 1) -> None:
        """Count a transfer or collective that has ended, as often as folding says."""
        counted = self.transfers.setdefault(key, TransferCount())
        counted.count += multiplicity
        counted.seconds += seconds * multiplicity

    def count_compute(self, rank: int, task: Compute) -> None:
        """Count a computation that has ended on a rank."""
        _, counts = self.compute_counts.setdefault(id(task), (task, {}))
        counts[rank] = counts.get(rank, 0) + 1

    def expanded(self, represented: Mapping[int, Sequence[int]]) -> Recording:
        """Return the recording of all ranks, given the ranks that each simulated rank represents."""
        ranks = [replace(record, rank=rank) for record in self.ranks for rank in represented[record.rank]]
        return replace(self, ranks=sorted(ranks, key=lambda record: record.rank), represented=represented)
