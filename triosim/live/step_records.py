"""The steps of a running script: when each ran, and, of those that differ, what the engine recorded of it.

At the end of each step the engine's recording is emptied, so that a run of many steps needs the memory of a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import simpy

from triosim.engine import Recording
from triosim.engine.intervals import Interval, Intervals
from triosim.engine.recording import RankRecord, TransferIntervals
from triosim.networks.base import Network
from triosim.networks.extensions import ErrorEstimator, FigureReporter, LinkCounter
from triosim.networks.topology import NodeRef

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

    ranks: Mapping[int, tuple[float, float, float]]
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
        if step.index == self._wanted or self._is_new(step):
            network = StepNetwork(
                self._network, _grown(self._before.links, counted.links), _grown(self._before.figures, counted.figures)
            )
            self.kept[step.index] = StepRecord(step, Recording(ranks, step.seconds, transfers=transfers), network)
        self._before = counted

    def _is_new(self, step: LiveStep) -> bool:
        """Whether the record of a step is to be kept. The first step sets up the script: it is like no other."""
        others = [one.step.seconds for one in self.kept.values() if one.step.index]
        return len(self.kept) < _KEPT and all(abs(step.seconds - one) > _EQUAL * one for one in others)

    def _counted(self) -> _Counted:
        network = self._network
        return _Counted(
            {one.rank: (one.compute_seconds, one.slowed_seconds, one.waiting_seconds) for one in self._recording.ranks},
            network.bytes_by_link() if isinstance(network, LinkCounter) else {},
            network.figures() if isinstance(network, FigureReporter) else {},
        )


class StepNetwork(Network, LinkCounter, FigureReporter, ErrorEstimator):
    """The network of a run, with the bytes that its links ``carried`` in one step, and what else it ``counted``."""

    def __init__(self, network: Network, carried: Mapping[str, float], counted: Mapping[str, float]) -> None:
        super().__init__(network.env, network.topology)
        self._network, self._carried, self._counted = network, dict(carried), counted

    def transfer(self, source: NodeRef, destination: NodeRef, nbytes: float) -> simpy.Event:
        """As the network does."""
        return self._network.transfer(source, destination, nbytes)

    def bytes_by_link(self) -> dict[str, float]:
        """Return the bytes that each link carried in the step."""
        return self._carried

    def figures(self) -> Mapping[str, float]:
        """Return what the network counted in the step."""
        return self._counted

    def relative_error(self, kind: str, gpus: int, nbytes: float) -> float:
        """Return the network's."""
        network = self._network
        return network.relative_error(kind, gpus, nbytes) if isinstance(network, ErrorEstimator) else 0.0


def _grown(before: Mapping[_Name, float], after: Mapping[_Name, float]) -> dict[_Name, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _rank_in(record: RankRecord, step: LiveStep, before: tuple[float, float, float] | None) -> RankRecord:
    """Return what a rank did in a step, and forget it. What began before the step counts from its beginning on."""
    transfers = TransferIntervals()
    began = step.began_s
    for one in record.communication.transfers:
        arrived, started = max(one.arrived, began), max(one.started, began)
        transfers.add(arrived - began, started - began, one.finished - began, one.axis, one.layers)
    record.communication.transfers = []
    record.iterations.clear()
    compute, slowed, waited = before or (0.0, 0.0, 0.0)
    return RankRecord(
        record.rank,
        _within(record.compute.take(), began),
        transfers,
        _within(record.launch_waits.take(), began),
        record.compute_seconds - compute,
        record.slowed_seconds - slowed,
        record.waiting_seconds - waited,
        step.seconds,
        [step.seconds],
    )


def _within(intervals: list[Interval], began: float) -> Intervals:
    found = Intervals()
    for start, end in intervals:
        if end > began:
            found.add(max(start, began) - began, end - began)
    return found
