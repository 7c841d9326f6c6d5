"""The steps of a running script: when each ran, and, of those that differ, what the engine recorded of it.

At the end of each step the engine's recording is emptied, so that a run of many steps needs the memory of a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from triosim.engine import Recording
from triosim.engine.intervals import Interval
from triosim.engine.recording import HostWait, RankRecord, TransferInterval, operator_times
from triosim.live.network.step_network import LinkClock, StepNetwork
from triosim.networks.base import Network
from triosim.networks.extensions import FigureReporter, LinkCounter
from triosim.tasks import Compute, Handle

#: Steps whose times differ by no more than this are recorded once.
_EQUAL = 1e-3
#: Of so many steps the recording is kept.
_KEPT = 8

_Name = TypeVar("_Name")


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A step of the script: it began when the one before it ended, on the last of the running ranks."""

    index: int
    began_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of one step: what each rank did, on a clock that begins with it, and the network with what that carried."""

    step: LiveStep
    recording: Recording
    network: StepNetwork


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the engine had counted when a step began, of each rank and of the network."""

    ranks: Mapping[int, tuple[float, float]]
    links: Mapping[str, float]
    figures: Mapping[str, float]


class StepRecords:
    """Records the steps of a run in which ``hosts`` scripts run; ``wanted`` is one whose record is kept in any case."""

    def __init__(self, recording: Recording, network: Network, hosts: int, wanted: int | None = None) -> None:
        self.steps: list[LiveStep] = []
        self.kept: dict[int, StepRecord] = {}  # by index
        self._recording, self._network = recording, network
        self._hosts, self._wanted = hosts, wanted
        self._running: dict[int, int] = {}  # by index: how many hosts have ended that step
        self._began = 0.0
        self._before = self._counted()
        self._links = LinkClock(network)

    def ended(self, index: int) -> None:
        """Note that a step ended on one of the hosts, now."""
        self._running[index] = self._running.get(index, 0) + 1
        if self._running[index] < self._hosts:
            return
        del self._running[index]
        over = self._network.env.timeout(0.0)  # what else ends at this instant belongs to the step
        over.callbacks.append(lambda _: self._over(index))

    def _over(self, index: int) -> None:
        """Note that a step ended on all hosts."""
        now = self._network.env.now
        step = LiveStep(index, self._began, now - self._began)
        self.steps.append(step)
        self._record(step)
        self._began = now

    def near(self, step: LiveStep) -> list[LiveStep]:
        """Return the steps whose record is kept, those that took most nearly as long as this one first, step 0 last."""
        steps = (one.step for one in self.kept.values())
        return sorted(steps, key=lambda one: (one.index == 0, abs(one.seconds - step.seconds)))

    def _record(self, step: LiveStep) -> None:
        """Empty the recording, and keep what it held where no step was like this one."""
        counted = self._counted()
        ranks = [_rank_in(record, step, self._before.ranks.get(record.rank)) for record in self._recording.ranks]
        transfers, self._recording.transfers = self._recording.transfers, {}
        self._recording.compute_counts = {}
        handles = self._move(step, ranks)
        times = self._links.cut(step.began_s, step.began_s + step.seconds)
        if step.index == self._wanted or self._is_new(step):
            carried, figures = _grown(self._before.links, counted.links), _grown(self._before.figures, counted.figures)
            recording = Recording(ranks, step.seconds, transfers=transfers, handles=handles)
            self.kept[step.index] = StepRecord(step, recording, StepNetwork(self._network, carried, figures, times))
        self._before = counted

    def close(self) -> None:
        """Note what has ended since the last step did, as far as it began in that."""
        if self.steps:
            self._move(None, [])

    def _move(self, step: LiveStep | None, ranks: Sequence[RankRecord]) -> list[Handle] | None:
        """Move what has ended from the recording to the ``ranks`` of the step that ends; return its tasks, if they are kept.

        What began in the step before belongs to that, too.
        """
        index = len(self.steps) - 1 if step is None else step.index - 1
        before = self.kept.get(index)
        handles = _ended(self._recording)
        for place, record in enumerate(self._recording.ranks):
            done = _Done.taken_from(record)
            if step is not None:
                done.add_to(ranks[place], step)
            if before is not None:
                done.add_to(before.recording.ranks[place], before.step)
        if before is not None and handles is not None and before.recording.handles is not None:
            end = before.step.began_s + before.step.seconds
            early = [one for one in handles if _begin(one) < end]
            before.recording.handles += [_on_clock_of(before.step, one) for one in early]
        return None if handles is None or step is None else [_on_clock_of(step, one) for one in handles]

    def _is_new(self, step: LiveStep) -> bool:
        """Whether the record of a step is to be kept. The first step sets up the script: it is like no other."""
        others = [one.step.seconds for one in self.kept.values() if one.step.index]
        return len(self.kept) < _KEPT and all(abs(step.seconds - one) > _EQUAL * one for one in others)

    def _counted(self) -> _Counted:
        network = self._network
        return _Counted(
            {one.rank: (one.compute_seconds, one.slowed_seconds) for one in self._recording.ranks},
            network.bytes_by_link() if isinstance(network, LinkCounter) else {},
            network.figures() if isinstance(network, FigureReporter) else {},
        )


def _grown(before: Mapping[_Name, float], after: Mapping[_Name, float]) -> dict[_Name, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _rank_in(record: RankRecord, step: LiveStep, before: tuple[float, float] | None) -> RankRecord:
    """Return the record of a rank in a step, with what was counted of it, and no times yet."""
    compute, slowed = before or (0.0, 0.0)
    found = RankRecord(record.rank, finished=step.seconds, iterations=[step.seconds])
    found.compute_seconds, found.slowed_seconds = record.compute_seconds - compute, record.slowed_seconds - slowed
    return found


@dataclass(frozen=True, slots=True)
class _Done:
    """What a rank has done, on the clock of the run."""

    compute: Sequence[Interval]
    launch_waits: Sequence[Interval]
    transfers: Sequence[TransferInterval]
    host_waits: Sequence[HostWait]

    @classmethod
    def taken_from(cls, record: RankRecord) -> _Done:
        """Return what has ended, and forget it."""
        transfers, record.communication.transfers = record.communication.transfers, []
        record.iterations.clear()
        waits, record.host_waits = record.host_waits, []
        return cls(record.compute.take(), record.launch_waits.take(), transfers, waits)

    def add_to(self, rank: RankRecord, step: LiveStep) -> None:
        """Add to the record of a step what happened in it, on its own clock."""

        def moved(seconds: float) -> float:
            return min(max(seconds - step.began_s, 0.0), step.seconds)

        for known, intervals in ((rank.compute, self.compute), (rank.launch_waits, self.launch_waits)):
            for start, end in intervals:
                known.add(moved(start), moved(end))
        for one in self.transfers:
            arrived, started, finished = moved(one.arrived), moved(one.started), moved(one.finished)
            rank.communication.add(*one._replace(arrived=arrived, started=started, finished=finished))
            rank.waiting_seconds += started - arrived
        waits = (wait._replace(begin=moved(wait.begin), end=moved(wait.end)) for wait in self.host_waits)
        rank.host_waits += [wait for wait in waits if wait.end > wait.begin]


def _ended(recording: Recording) -> list[Handle] | None:
    """Return the tasks that have ended, and forget them; None where no timeline is kept."""
    if recording.handles is None:
        return None
    ended = [one for one in recording.handles if one.done]
    recording.handles[:] = [one for one in recording.handles if not one.done]
    return ended


def _begin(handle: Handle) -> float:
    """Return when an ended task began to wait or to run."""
    return next((one for one in (handle.arrived, handle.started) if one is not None), handle.finished or 0.0)


def _on_clock_of(step: LiveStep, handle: Handle) -> Handle:
    """Return an ended task on the clock of a step, from whose beginning to whose end it counts."""

    def moved(seconds: float | None) -> float | None:
        return None if seconds is None else min(max(seconds - step.began_s, 0.0), step.seconds)

    found = Handle(handle.rank, handle.task)
    found.arrived, found.started, found.finished = moved(handle.arrived), moved(handle.started), moved(handle.finished)
    found.layers, found.received, found.sequence_numbers = handle.layers, handle.received, handle.sequence_numbers
    found.dependents = None
    if isinstance(handle.task, Compute):
        times = list(operator_times(handle))
        found.operator_starts = tuple([moved(start) or 0.0 for _, start, _ in times])
        found.operator_ends = tuple([moved(end) or 0.0 for *_, end in times])
    return found
