"""The steady state of a step of many micro-batches: one period of it is simulated, and stands for those that are left out.

A schedule repeats itself between its warm-up and its cool-down (:mod:`triosim.folding.schedule_period`). A run of
the same schedule with fewer periods is watched: where two periods after each other take equally long, in which every rank
computes at the same instants, every transfer arrives, starts and ends at the same instants, and every host is as far ahead of
its GPU at the end as at the beginning, all periods between them and the cool-down would, because what happens next depends on
nothing but what is under way. Then each figure grows with every period that was left out by what it grew by in one of the two.
Where every second or every fourth period is equal, so many are taken for one. Where none are, every micro-batch is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import simpy

from triosim.engine import Engine, EngineOptions, Progress, Recording
from triosim.engine.intervals import Interval, Intervals
from triosim.engine.recording import RankRecord, TransferInterval, TransferIntervals, TransferKey
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.symmetry import Symmetry
from triosim.extrapolators.core.training_loop import PERIOD_BEGINS
from triosim.folding.schedule_period import period_of, shortened
from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator, FigureReporter, LinkCounter
from triosim.networks.topology import NodeRef
from triosim.tasks import Handle, TaskStream

#: By what part of a period's time two periods may differ that count as equal.
TOLERANCE = 1e-9
#: Periods that are simulated at least, beside those in which ranks of a pipeline are ahead of each other.
_LEAST = 6
#: Which part of the periods may be simulated to find a steady state, at first and after that failed: more saves too little.
_MOST_AT_FIRST, _MOST = 0.75, 0.5


class NoSteadyState(Exception):
    """Raised where no two periods of a shortened run are equal.

    Where some are, of which the number left out is no multiple, ``more`` periods are to be simulated.
    """

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.more = more


@dataclass(frozen=True, slots=True)
class ShortPlan:
    """A plan with fewer micro-batches: ``left_out`` periods less. ``ahead`` is by how many a rank may be ahead of another."""

    plan: ParallelPlan
    left_out: int
    ahead: int


def short_plans(plan: ParallelPlan) -> Generator[ShortPlan, int, None]:
    """Yield plans of more and more periods, up to half of the plan's; none for a schedule that does not repeat itself.

    A number that is sent is by how many periods the next is to be longer.
    """
    period = period_of(plan.program.schedule)
    if period is None or plan.task_writer is not None or len(plan.lowerings) > 1 or plan.lowerings[0][0].iterations > 1:
        return
    ahead = -(-len(period.begins) // period.micro_batches)
    count, most = _leaving_out_pairs(_LEAST + ahead, period.count), _MOST_AT_FIRST
    while count <= most * period.count:
        table = shortened(plan.program.schedule, period, count)
        if table is None:
            return
        lowerings = tuple(
            Lowering(replace(one.program, schedule=table), one.mesh, copy_input=one.copy_input)
            for one in plan.lowerings[0]
        )
        for lowering in lowerings:
            for index in replace(period, count=count).marks(0):
                lowering.slots[0][index].begins_period = True
        more = yield ShortPlan(replace(plan, lowerings=(lowerings,)), period.count - count, ahead)
        count = count + more if more else _leaving_out_pairs(count + count // 2, period.count)
        most = _MOST


def _leaving_out_pairs(count: int, periods: int) -> int:
    """Return the least number of periods from ``count`` on that leaves an even number of them out."""
    return count + (periods - count) % 2


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What a run has counted when a period begins on the watched rank; ``drawn`` periods had been drawn by its host.

    ``launching`` is for how many seconds more each host launches what it has drawn. A host that is slower than its GPU uses up
    what it is ahead before any GPU waits for it.
    """

    time: float
    drawn: int
    launching: tuple[float, ...]
    ranks: tuple[tuple[float, float, float], ...]  # seconds of computing, of being slowed, of waiting
    ended: tuple[int, ...]  # transfers of each rank
    transfers: Mapping[TransferKey, tuple[int, float]]
    computed: Mapping[int, Mapping[int, int]]
    links: Mapping[str, float]
    figures: Mapping[str, float]


class WatchedEngine(Engine):
    """An engine that runs a short plan and records the long one's run; its network is the ``RepeatedNetwork``.

    ``run`` raises ``NoSteadyState`` where no two periods are equal.
    """

    def __init__(
        self,
        short: ShortPlan,
        network: Network,
        options: EngineOptions,
        progress: Progress | None,
        symmetry: Symmetry | None,
    ) -> None:
        super().__init__(network.env, network, options, progress=progress, symmetry=symmetry)
        self.short = short
        self.repeated: Network = network
        self._snapshots: list[_Snapshot] = []
        self._drawn = 0

    def run(self, streams: Mapping[int, TaskStream]) -> Recording:
        """Run the streams, and add the periods that they leave out."""
        first = min(streams)
        recording = super().run({**streams, first: self._watched(streams[first])})
        found, most = self._snapshots, len(self._snapshots) - self.short.ahead
        last = max((index for index, one in enumerate(found) if one.drawn <= most), default=0)
        for length in range(1, (last - 1) // 2 + 1):
            for index in range(last - 2 * length, 0, -1):
                before, between, after = found[index : index + 2 * length + 1 : length]
                if _equal(recording, before, between, after):
                    times, more = divmod(self.short.left_out, length)
                    if more:
                        raise NoSteadyState(more)
                    self.repeated = RepeatedNetwork(self.network, before, between, times)
                    return _extended(recording, before, between, times)
        raise NoSteadyState

    def _watched(self, stream: TaskStream) -> TaskStream:
        answer: Any = None
        with suppress(StopIteration):
            while True:
                task = stream.send(answer)
                begins = task is PERIOD_BEGINS
                self._drawn += begins
                answer = yield task
                if begins and answer.done:
                    self._observe(answer)
                elif begins:
                    answer.callbacks.append(self._observe)

    def _observe(self, _: Handle) -> None:
        recording, network = self.recording, self.network
        self._snapshots.append(
            _Snapshot(
                self.env.now,
                self._drawn,
                tuple(max(rank.host_time - self.env.now, 0.0) for rank in self.ranks.values()),
                tuple((one.compute_seconds, one.slowed_seconds, one.waiting_seconds) for one in recording.ranks),
                tuple(len(one.communication.transfers) for one in recording.ranks),
                {key: (one.count, one.seconds) for key, one in recording.transfers.items()},
                {key: dict(counts) for key, (_, counts) in recording.compute_counts.items()},
                network.bytes_by_link() if isinstance(network, LinkCounter) else {},
                network.figures() if isinstance(network, FigureReporter) else {},
            )
        )


class RepeatedNetwork(Network, LinkCounter, FigureReporter, ErrorEstimator):
    """The network of a run whose periods were not all simulated; it has carried what all of them send."""

    def __init__(self, network: Network, before: _Snapshot, after: _Snapshot, times: int) -> None:
        super().__init__(network.env, network.topology)
        self._network, self._before, self._after, self._times = network, before, after, times

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """As the network does."""
        return self._network.transfer(source, destination, nbytes)

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link would have carried."""
        found = self._network.bytes_by_link() if isinstance(self._network, LinkCounter) else {}
        return self._grown(found, self._before.links, self._after.links)

    def figures(self) -> Mapping[str, float]:
        """Return what the network would have counted."""
        found = self._network.figures() if isinstance(self._network, FigureReporter) else {}
        return self._grown(found, self._before.figures, self._after.figures)

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return the network's."""
        network = self._network
        return network.relative_error(kind, gpus, nbytes) if isinstance(network, ErrorEstimator) else 0.0

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


def _extended(recording: Recording, before: _Snapshot, after: _Snapshot, times: int) -> Recording:
    """Return the recording with a period repeated.

    Its intervals are stretched over all repetitions, so that what they cover, alone and in common, is what all would cover.
    """
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
        TransferInterval(later(arrived), later(started), later(finished), axis, layers)
        for arrived, started, finished, axis, layers in record.communication.transfers
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
