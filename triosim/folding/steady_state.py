"""The steady state of a step of many micro-batches: a period of it stands for those that are left out.

A schedule repeats itself between its warm-up and its cool-down (:mod:`triosim.folding.schedule_period`). The run is watched:
where two periods after each other take equally long, in which every rank computes at the same instants, every transfer arrives,
starts and ends at the same instants, and every host is as far ahead of its GPU at the end as at the beginning, all periods that
follow would be the same up to the cool-down, because what happens next depends on nothing but what is under way. From then on
ranks leave out the periods that no host has drawn yet, and each figure grows with every one by what it grew by in one of the
two. Where only every so many periods are equal, so many are taken for one. Where none are, every micro-batch is simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from triosim.engine import Engine, EngineOptions, Progress, Recording
from triosim.engine.intervals import Interval, Intervals
from triosim.engine.recording import RankRecord, TransferInterval, TransferIntervals, TransferKey
from triosim.extrapolators.core.lowering import LoweredSlot, Lowering
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.extrapolators.core.training_loop import PERIOD_BEGINS, TrainingLoop
from triosim.folding.finished_network import FinishedNetwork
from triosim.folding.schedule_period import SchedulePeriod, period_of, shortened
from triosim.networks.base import Network
from triosim.networks.extensions import FigureReporter, LinkCounter
from triosim.tasks import Handle, TaskStream

#: By what part of a period's time two periods may differ that count as equal.
TOLERANCE = 1e-9
#: How many periods are compared at most: those of a steady state are equal every few of them.
_MOST_COMPARED = 40


class PeriodsLeftOut:
    """The periods of a schedule that the ranks of a run leave out: ``count`` of them from ``first`` on; none at first."""

    def __init__(self, plan: ParallelPlan, period: SchedulePeriod) -> None:
        self._plan, self._period = plan, period
        self._drawn = 0  # the last period that some rank has begun to draw
        self._first, self._count = period.count, 0

    @classmethod
    def most(cls, plan: ParallelPlan, period: SchedulePeriod) -> PeriodsLeftOut:
        """Return as many periods as may be left out; what is run without them tells what ranks send."""
        found = cls(plan, period)
        for drawn in range(1, period.count):
            found._drawn = drawn
            if found.leave_out(1):
                break
        return found

    def tasks(self, rank: int, *, marked: bool = False) -> TaskStream:
        """Yield the tasks of a rank; the begins of its periods may be ``marked``."""
        lowering = self._plan.lowerings[0][self._plan.variant(rank)]
        slots = self._slots(lowering, lowering.pipeline_rank(rank), marked=marked)
        yield from TrainingLoop(lowering, rank, slots=slots).tasks()

    def leave_out(self, length: int) -> int:
        """Leave out what no rank has drawn yet, each time ``length`` periods; return how often."""
        first, period = self._drawn + 1, self._period
        for times in range((period.count - 1 - first) // length, 0, -1):
            count = times * length
            if self._is_periodic(first, count) and shortened(self._plan.program.schedule, period, period.count - count):
                self._first, self._count = first, count
                return times
        return 0

    def _slots(self, lowering: Lowering, pipeline_rank: int, *, marked: bool) -> Iterator[LoweredSlot]:
        """Yield the slots of a pipeline rank that are not left out, with micro-batches numbered as if there were no others."""
        slots, period = lowering.slots[pipeline_rank], self._period
        index = less = 0
        while index < len(slots):
            number, within = divmod(index - period.begins[pipeline_rank], period.slots[pipeline_rank])
            begins = not within and 0 <= number < period.count
            if begins and not less and number == self._first:
                index += self._count * period.slots[pipeline_rank]
                less = self._count * period.micro_batches
                continue
            if begins and not less:
                self._drawn = max(self._drawn, number)
            slot = slots[index].earlier(less)
            yield replace(slot, begins_period=True) if begins and marked else slot
            index += 1

    def _is_periodic(self, first: int, count: int) -> bool:
        """Whether ranks do and post the same around the first period that is left out as around the one after the last."""
        less = count * self._period.micro_batches
        for slots, begin, length in zip(
            self._plan.lowerings[0][0].slots, self._period.begins, self._period.slots, strict=True
        ):
            since, until = begin + (first - 1) * length, begin + (first + 1) * length
            later = slots[since + count * length : until + count * length]
            if [slot.earlier(less) for slot in later] != slots[since:until]:
                return False
        return True


def watched_period(plan: ParallelPlan) -> SchedulePeriod | None:
    """Return the period of a plan's schedule; None where it has none, or where ranks do not follow it once."""
    if plan.task_writer is not None or len(plan.lowerings) > 1 or plan.lowerings[0][0].iterations > 1:
        return None
    return period_of(plan.program.schedule)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What a run has counted when a period begins on the watched rank.

    ``launching`` is for how many seconds more each host launches what it has drawn. A host that is slower than its GPU uses up
    what it is ahead before any GPU waits for it.
    """

    time: float
    launching: tuple[float, ...]
    ranks: tuple[tuple[float, float, float], ...]  # seconds of computing, of being slowed, of waiting
    ended: tuple[int, ...]  # transfers of each rank
    transfers: Mapping[TransferKey, tuple[int, float]]
    computed: Mapping[int, Mapping[int, int]]
    links: Mapping[str, float]
    figures: Mapping[str, float]


class WatchedEngine(Engine):
    """An engine that runs a plan whose schedule has a ``period``, and leaves out what repeats itself.

    ``repeated`` is its network, which has carried what all periods send.
    """

    def __init__(
        self,
        plan: ParallelPlan,
        period: SchedulePeriod,
        network: Network,
        options: EngineOptions,
        progress: Progress | None,
        symmetry: Symmetry | None,
    ) -> None:
        super().__init__(network.env, network, options, progress=progress, symmetry=symmetry)
        self.repeated: Network = network
        self._left_out = PeriodsLeftOut(plan, period)
        self._snapshots: deque[_Snapshot] = deque(maxlen=_MOST_COMPARED)
        self._repetition: _Repetition | None = None
        self._watching = True

    def run(self, streams: Mapping[int, TaskStream]) -> Recording:
        """Run the plan's tasks of the ranks that have streams, and add the periods that they leave out."""
        first, *others = sorted(streams)
        left_out = self._left_out
        watched = self._watched(left_out.tasks(first, marked=True))
        recording = super().run({first: watched, **{rank: left_out.tasks(rank) for rank in others}})
        found = self._repetition
        if found is None:
            return recording
        self.repeated = RepeatedNetwork(self.network, found.before, found.after, found.times)
        return _extended(recording, found)

    def _watched(self, stream: TaskStream) -> TaskStream:
        answer: Any = None
        with suppress(StopIteration):
            while True:
                task = stream.send(answer)
                answer = yield task
                if task is PERIOD_BEGINS and answer.done:
                    self._observe(answer)
                elif task is PERIOD_BEGINS:
                    answer.callbacks.append(self._observe)

    def _observe(self, _: Handle) -> None:
        """Leave out periods from now on, if the last ones were equal."""
        if not self._watching:
            return
        # What was computed until the last period began is recorded when that ends.
        found = list(self._snapshots)
        self._snapshots.append(self._snapshot())
        for length in range(1, len(found) // 2):
            before, between, after = found[-1 - 2 * length :: length]
            if _equal(self.recording, before, between, after):
                times = self._left_out.leave_out(length)
                self._repetition = _Repetition(before, between, times) if times else None
                self._watching = False
                return

    def _snapshot(self) -> _Snapshot:
        recording, network = self.recording, self.network
        return _Snapshot(
            self.env.now,
            tuple(max(rank.host_time - self.env.now, 0.0) for rank in self.ranks.values()),
            tuple((one.compute_seconds, one.slowed_seconds, one.waiting_seconds) for one in recording.ranks),
            tuple(len(one.communication.transfers) for one in recording.ranks),
            {key: (one.count, one.seconds) for key, one in recording.transfers.items()},
            {key: dict(counts) for key, (_, counts) in recording.compute_counts.items()},
            network.bytes_by_link() if isinstance(network, LinkCounter) else {},
            network.figures() if isinstance(network, FigureReporter) else {},
        )


@dataclass(frozen=True, slots=True)
class _Repetition:
    """What happened from ``before`` to ``after``, and was left out ``times`` times."""

    before: _Snapshot
    after: _Snapshot
    times: int


class RepeatedNetwork(FinishedNetwork, LinkCounter, FigureReporter):
    """The network of a run whose periods were not all simulated; it has carried what all of them send."""

    def __init__(self, network: Network, before: _Snapshot, after: _Snapshot, times: int) -> None:
        super().__init__(network)
        self._before, self._after, self._times = before, after, times

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link would have carried."""
        found = self._network.bytes_by_link() if isinstance(self._network, LinkCounter) else {}
        return self._grown(found, self._before.links, self._after.links)

    def figures(self) -> Mapping[str, float]:
        """Return what the network would have counted."""
        found = self._network.figures() if isinstance(self._network, FigureReporter) else {}
        return self._grown(found, self._before.figures, self._after.figures)

    def _grown(
        self, found: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]
    ) -> dict[str, float]:
        return {
            name: value + self._times * (after.get(name, 0.0) - before.get(name, 0.0)) for name, value in found.items()
        }


def _equal(recording: Recording, before: _Snapshot, between: _Snapshot, after: _Snapshot) -> bool:
    """Whether the ranks did the same at the same instants in two periods."""
    seconds = between.time - before.time
    near = TOLERANCE * seconds

    def same(first: Sequence[float], second: Sequence[float]) -> bool:
        return len(first) == len(second) and all(abs(a - b) <= near for a, b in zip(first, second, strict=True))

    if seconds <= 0 or abs(after.time - between.time - seconds) > near:
        return False
    if not (same(before.launching, between.launching) and same(between.launching, after.launching)):
        return False
    for rank, record in enumerate(recording.ranks):
        transfers = record.communication.transfers
        first = transfers[before.ended[rank] : between.ended[rank]]
        second = transfers[between.ended[rank] : after.ended[rank]]
        if [one[3:] for one in first] != [one[3:] for one in second]:
            return False
        if not same(_times(first, before.time), _times(second, between.time)):
            return False
        computed = record.compute.merged()
        if not same(_during(computed, before.time, seconds, near), _during(computed, between.time, seconds, near)):
            return False
    return True


def _times(transfers: Sequence[TransferInterval], since: float) -> list[float]:
    return [time - since for one in transfers for time in one[:3]]


def _during(intervals: Sequence[Interval], since: float, seconds: float, least: float) -> list[float]:
    """Return the starts and ends of intervals in a period, from its beginning; what is shorter than ``least`` is left out.

    Gaps as short as that are left out too: an operator that begins as the one before it ends may do so a rounding later.
    """
    times: list[float] = []
    for start, end in intervals:
        start, end = max(start - since, 0.0), min(end - since, seconds)
        if times and start - times[-1] <= least:
            times[-1] = max(end, times[-1])
        elif end - start > least:
            times += [start, end]
    return times


def _extended(recording: Recording, repetition: _Repetition) -> Recording:
    """Return the recording with a period repeated.

    Its intervals are stretched over all repetitions, so that what they cover, alone and in common, is what all would cover.
    """
    before, after, times = repetition.before, repetition.after, repetition.times
    since, seconds = before.time, after.time - before.time

    def later(time: float) -> float:
        return time + times * min(max(time - since, 0.0), seconds)

    ranks = [
        _stretched(record, later, tuple(times * (b - a) for a, b in zip(*grown, strict=True)))
        for record, *grown in zip(recording.ranks, before.ranks, after.ranks, strict=True)
    ]
    for key, counted in recording.transfers.items():
        (count, spent), (more, longer) = before.transfers.get(key, (0, 0.0)), after.transfers.get(key, (0, 0.0))
        counted.count += times * (more - count)
        counted.seconds += times * (longer - spent)
    for task, (_, counts) in recording.compute_counts.items():
        old, new = before.computed.get(task, {}), after.computed.get(task, {})
        for rank in counts:
            counts[rank] += times * (new.get(rank, 0) - old.get(rank, 0))
    return replace(recording, ranks=ranks, end=later(recording.end), is_stretched=True)


def _stretched(record: RankRecord, later: Callable[[float], float], grown: Sequence[float]) -> RankRecord:
    def intervals(found: Intervals) -> Intervals:
        made = Intervals()
        for start, end in found.merged():
            made.add(later(start), later(end))
        return made

    transfers = TransferIntervals()
    transfers.transfers = [
        one._replace(arrived=later(one.arrived), started=later(one.started), finished=later(one.finished))
        for one in record.communication.transfers
    ]
    return RankRecord(
        record.rank,
        intervals(record.compute),
        transfers,
        intervals(record.launch_waits),
        record.compute_seconds + grown[0],
        record.slowed_seconds + grown[1],
        record.waiting_seconds + grown[2],
        later(record.finished),
        [later(time) for time in record.iterations],
    )
