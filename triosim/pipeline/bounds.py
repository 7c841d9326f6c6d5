"""The lower bound of a planned step: what no simulation of it can be faster than.

It is the longest path through the schedule of the pipeline in which transfers between stages are free, and each of these parts
takes what it takes at least:

- computing: the seconds of the operators of each rank, one after the other, none of which begins before its host has launched
  those ahead of it and itself; conditions make a GPU slower, never faster;
- collectives that the computation waits for (tensor, context and expert parallelism), and the hops of a ring: their time on the
  idle network, since others on their links only delay them; nothing for those with unequal shares or another transport than
  NCCL, and on a network that keeps circuits;
- gradients and parameters along the data axes: the times of a stage's collectives on the idle network, one after the other on
  each stream. Reductions begin with the action that completes the first gradient, and end before the optimizer;
- a parallelism that writes its tasks itself, and conditions under which GPUs differ or change: nothing, so that the bound is 0.

The bound of a captured step is what its slowest rank computes, its launches included: what waits for what is found out when it
is simulated.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import simpy

from triosim.conditions import Conditions
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks
from triosim.extrapolators.core.lowering import Lowering
from triosim.extrapolators.core.plan import ParallelPlan
from triosim.extrapolators.core.program import Await, Block, Communicate, SendToStage, TransferKey
from triosim.extrapolators.core.schedule_table import Action, ActionPhase, ScheduleTable, Slot
from triosim.extrapolators.core.training_loop import TrainingLoop
from triosim.networks.base import Network
from triosim.networks.extensions import ContentionFree, FoldableNetwork
from triosim.pipeline.planning import PlannedRun
from triosim.tasks import Collective, CollectiveKind, Handle, Task
from triosim.trace import Operator

#: Rounding: the engine adds the same times in another order.
_ROUNDED = 1.0 - 1e-9


class IdleCollectives:
    """The times of collectives and transfers on an idle network, each simulated once.

    A network on which they may be faster after others, as on circuits that are set up already, is given none: 0.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._are_least = isinstance(network, (FoldableNetwork, ContentionFree))
        self._known: dict[tuple[str, tuple[int, ...], float], float] = {}

    def seconds(self, kind: CollectiveKind, ranks: tuple[int, ...], nbytes: float) -> float:
        """Return how long a collective takes by itself."""
        if len(ranks) < 2 or not nbytes:
            return 0.0
        return self._timed((kind, ranks, nbytes), lambda: self._network.collective(kind, ranks, nbytes))

    def hop_seconds(self, ranks: tuple[int, ...], rank: int, nbytes: float) -> float:
        """Return how long a rank takes to send to the next one on a ring, and to receive from the one before."""
        if len(ranks) < 2:
            return 0.0
        place = ranks.index(rank)
        pairs = (rank, ranks[(place + 1) % len(ranks)]), (ranks[place - 1], rank)
        return max(
            self._timed(("send", pair, nbytes), partial(self._network.transfer, *pair, nbytes)) for pair in pairs
        )

    def _timed(self, key: tuple[str, tuple[int, ...], float], begin: Callable[[], simpy.Event]) -> float:
        if not self._are_least:
            return 0.0
        if key not in self._known:
            clock = self._network.env
            began = clock.now
            clock.run(until=begin())
            self._known[key] = clock.now - began
        return self._known[key]


def lower_bound(planned: PlannedRun, idle: IdleCollectives, schedule: ScheduleTable | None = None) -> float:
    """Return the seconds that a step takes at least; 0 where no part knows better.

    ``schedule`` is that of more micro-batches than are planned.
    """
    plan, conditions = planned.plan, planned.system.conditions
    if conditions != Conditions(interference=conditions.interference):
        return 0.0
    launches = planned.priced.launches is not None
    if isinstance(plan, CapturedPlan):
        return _ROUNDED * max(_computing(trace.operators, launches=launches) for trace, _ in plan.work)
    if not isinstance(plan, ParallelPlan) or plan.task_writer is not None:
        return 0.0
    return _ROUNDED * _LongestPath(plan, idle, schedule, launches=launches).seconds()


def _computing(operators: Iterable[Operator], *, launches: bool) -> float:
    """Return when operators have run that the host launches in this order, on whichever streams."""
    run = _Run()
    for operator in operators:
        if operator.communication is None:
            run = run.and_then(operator.seconds, (operator.host_seconds or 0.0) if launches else 0.0)
    return max(run.seconds, run.launched)


@dataclass(frozen=True, slots=True)
class _Run:
    """Operators and blocking collectives that follow on each other.

    They take the GPU ``seconds`` and their launches the host ``host`` seconds; they end ``launched`` seconds or later after the
    host begins to launch them.
    """

    seconds: float = 0.0
    host: float = 0.0
    launched: float = 0.0

    def and_then(self, seconds: float, host: float) -> _Run:
        """Return the run with one more operator."""
        launch = self.host + host
        return _Run(self.seconds + seconds, launch, max(self.launched, launch) + seconds)

    def then(self, other: _Run) -> _Run:
        """Return the run with another one after it."""
        launched = max(self.launched + other.seconds, self.host + other.launched)
        return _Run(self.seconds + other.seconds, self.host + other.host, launched)

    def or_later(self, other: _Run) -> _Run:
        """Return the run that ends when both have: another that began with it, to wait for which costs the host nothing."""
        return _Run(max(self.seconds, other.seconds), self.host, max(self.launched, other.launched))

    def and_beside(self, seconds: float) -> _Run:
        """Return when something ends that begins after the run, and that no host launches."""
        return _Run(self.seconds + seconds, self.host, self.launched + seconds)


@dataclass(frozen=True, slots=True)
class _Event:
    """What happens after a run: a transfer is sent or awaited, or a collective that ``lasts`` so long begins beside it.

    ``source`` is the stage that a transfer comes from; None for a collective that the action began itself, after those that it
    began on the same ``axis``.
    """

    run: _Run
    what: Literal["send", "await", "beside"]
    key: TransferKey
    lasts: float = 0.0
    source: int | None = None
    axis: str = ""


@dataclass(frozen=True, slots=True)
class _ActionProfile:
    """What an action does: its ``events``, and the run after the last. ``compute`` are the seconds of all its operators,
    ``awaited`` the events that wait for other stages."""

    events: tuple[_Event, ...]
    rest: _Run
    compute: float
    awaited: tuple[_Event, ...]

    @classmethod
    def of(cls, events: Sequence[_Event], rest: _Run, compute: float) -> _ActionProfile:
        """Return the profile of an action with these events."""
        events, rest = _without_own(events, rest)
        awaited = [event for event in events if event.what == "await" and event.source is not None]
        return cls(tuple(events), rest, compute, tuple(awaited))


def _without_own(events: Sequence[_Event], rest: _Run) -> tuple[Sequence[_Event], _Run]:
    """Return events with the collectives that an action begins, and itself awaits before its next transfer, in the runs.

    Events of which one is pending at a transfer are returned as they are.
    """
    found: list[_Event] = []
    run, pending = _Run(), dict[TransferKey, _Run]()
    free: dict[str, _Run] = {}  # when the collectives of an axis have ended
    for event in events:
        run = run.then(event.run)
        if event.what == "beside":
            begun = run.or_later(free.get(event.axis, run))
            pending[event.key] = free[event.axis] = begun.and_beside(event.lasts)
        elif event.what == "await" and event.source is None:
            run = run.or_later(pending.pop(event.key, run))
        elif pending:
            return events, rest
        else:
            found.append(replace(event, run=run))
            run = _Run()
            free.clear()  # all of them were awaited
    return found, run.then(rest)


class _LongestPath:
    """The longest path through the actions of all pipeline ranks, each of which one rank stands for."""

    def __init__(
        self, plan: ParallelPlan, idle: IdleCollectives, schedule: ScheduleTable | None, *, launches: bool
    ) -> None:
        self._plan = plan
        self._launches = launches
        self._idle = idle
        self._schedule = plan.program.schedule if schedule is None else schedule
        axis, mesh = plan.program.stage_axis, plan.mesh
        rows = range(len(self._schedule.rows))
        self._ranks = [0 if axis is None else mesh.neighbour(axis, 0, row) for row in rows]
        self._lowerings = [plan.lowerings[0][plan.variant(rank)] for rank in self._ranks]
        self._sources = {  # the stage that sends each transfer
            item.key: number
            for number, stage in enumerate(plan.program.stages)
            for block in (*stage.forward, *stage.backward)
            for _, item in block.instructions
            if isinstance(item, SendToStage)
        }
        self._profiles: list[dict[tuple[int, ActionPhase, bool], _ActionProfile]] = [{} for _ in rows]
        self._first = [frozenset(self._schedule.first(row).values()) for row in rows]
        self._last = [frozenset(self._schedule.last(row).values()) for row in rows]  # in which gradients are complete
        self._sent: dict[tuple[TransferKey, int], float] = {}  # by transfer and micro-batch
        self._now = [0.0 for _ in rows]
        self._host = [0.0 for _ in rows]  # when the hosts have launched what was run so far
        self._first_gradient: dict[int, float] = {}  # by pipeline rank: when the last backward passes begin

    def seconds(self) -> float:
        """Return the length of the path, to the end of the slowest rank's optimizer."""
        self._run()
        return max(map(self._end, range(len(self._now))))

    # ---- the schedule -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Run every rank's slots, each as soon as what it awaits was sent."""
        left = [deque(slots) for slots in self._schedule.rows]
        progress = True
        while progress:
            progress = False
            for row, slots in enumerate(left):
                while slots and self._has_run(row, slots[0]):
                    slots.popleft()
                    progress = True

    def _has_run(self, row: int, slot: Slot) -> bool:
        """Run a slot; return whether it could, since all was sent that it awaits."""
        profiles = [self._profile(row, action) for action in slot]
        awaited = [
            self._sent.get((event.key, action.micro_batch))
            for action, profile in zip(slot, profiles, strict=True)
            for event in profile.awaited
            if self._is_received(row, action, event)
        ]
        if None in awaited:
            return False
        if row not in self._first_gradient and not self._last[row].isdisjoint(slot):
            self._first_gradient[row] = self._now[row]
        if len(slot) == 1:
            self._now[row] = self._run_action(row, slot[0], profiles[0], self._now[row])
            return True
        # Side by side, one computes while the other communicates; all results are sent at the end.
        computed = self._now[row] + math.fsum(profile.compute for profile in profiles)
        self._now[row] = max(computed, *(when for when in awaited if when is not None), 0.0)
        for action, profile in zip(slot, profiles, strict=True):
            for event in profile.events:
                if event.what == "send":
                    self._sent[event.key, action.micro_batch] = self._now[row]
        return True

    def _is_received(self, row: int, action: Action, event: _Event) -> bool:
        """Whether an awaited transfer comes from another rank."""
        return event.source is not None and self._schedule.rank_of(event.source, action.micro_batch) != row

    def _run_action(self, row: int, action: Action, profile: _ActionProfile, now: float) -> float:
        """Return when an action ends that begins now."""
        beside: dict[TransferKey, float] = {}
        free: dict[str, float] = {}  # when the collectives of an axis beside the computation have ended
        for event in profile.events:
            now, key = self._after(row, event.run, now), event.key
            if event.what == "send":
                self._sent[key, action.micro_batch] = now
            elif event.what == "beside":
                free[event.axis] = beside[key] = max(free.get(event.axis, 0.0), now) + event.lasts
            elif event.source is None:
                now = max(now, beside[key])
            elif self._is_received(row, action, event):
                now = max(now, self._sent[key, action.micro_batch])
        return self._after(row, profile.rest, now)

    def _after(self, row: int, run: _Run, now: float) -> float:
        """Return when a run ends that begins now, and let the host launch it."""
        ends = max(now + run.seconds, self._host[row] + run.launched)
        self._host[row] += run.host
        return ends

    # ---- what an action does ------------------------------------------------------------------------------------

    def _profile(self, row: int, action: Action) -> _ActionProfile:
        known, is_first = self._profiles[row], action in self._first[row]
        key = (action.stage, action.phase, is_first)
        profile = known.get(key)
        if profile is None:
            added, first = self._additions(row, action), (action.stage, action.phase, True)
            if not added and first in known:
                return known.setdefault(key, known[first])
            blocks = self._lowerings[row].program.part(action.stage, action.phase)
            profile = known[key] = self._profile_of(self._ranks[row], blocks, added)
        return profile

    def _additions(self, row: int, action: Action) -> Mapping[int, Sequence[Operator]]:
        """Return the kernels that add an action's gradients to those of other micro-batches, by the operator ahead of them."""
        lowering, rank = self._lowerings[row], self._ranks[row]
        if action in self._first[row] or action.phase == "forward":
            return {}
        every = (act for slot in lowering.slots[row] for act in slot.actions if not act.begun)
        alike = (act for act in every if (act.action.stage, act.action.phase) == (action.stage, action.phase))
        found = next(alike, None)
        return {} if found is None else lowering.additions(found, TrainingLoop(lowering, rank).accumulated_bytes)

    def _profile_of(
        self, rank: int, blocks: Sequence[Block], added: Mapping[int, Sequence[Operator]]
    ) -> _ActionProfile:
        events: list[_Event] = []
        run, compute = _Run(), 0.0
        beside: set[TransferKey] = set()
        for item in (item for block in blocks for item in block.items):
            event: _Event | None = None
            if isinstance(item, Operator):
                for one in (item, *added.get(item.id, ())):
                    run = run.and_then(one.seconds, self._launched(one))
                    compute += one.seconds
            elif isinstance(item, Communicate) and item.key is None:
                run = run.and_then(self._seconds_of(item, rank), 0.0)
            elif isinstance(item, Communicate) and item.key is not None:
                if seconds := self._seconds_of(item, rank):
                    beside.add(item.key)
                    event = _Event(run, "beside", item.key, seconds, axis=item.axis)
            elif isinstance(item, SendToStage):
                event = _Event(run, "send", item.key)
            elif isinstance(item, Await) and (item.key in beside or item.key in self._sources):
                event = _Event(run, "await", item.key, source=self._sources.get(item.key))
            if event is not None:
                events.append(event)
                run = _Run()
        return _ActionProfile.of(events, run, compute)

    def _launched(self, operator: Operator) -> float:
        """Return what an operator's launch costs the host."""
        return (operator.host_seconds or 0.0) if self._launches else 0.0

    def _seconds_of(self, item: Communicate, rank: int) -> float:
        if item.shares is not None or item.transport is not None:
            return 0.0
        ranks = self._plan.mesh.group(item.axis, rank, item.parts).ranks
        if item.kind == "rotate":
            return self._idle.hop_seconds(ranks, rank, item.nbytes)
        return self._idle.seconds(item.kind, ranks, item.nbytes)

    # ---- the data axes and the optimizer ------------------------------------------------------------------------

    def _end(self, row: int) -> float:
        """Return when a rank has updated its parameters."""
        lowering, rank = self._lowerings[row], self._ranks[row]
        if not self._plan.training:
            return self._now[row]
        hooks = [make(RankContext(lowering.mesh.group(axes, rank), rank)) for axes, make in lowering.hooks[row]]
        reduced = self._collectives(_reductions(hooks, lowering, row))
        begins = self._first_gradient.get(row, 0.0)
        updates = max(self._now[row], begins + reduced)
        updates += self._collectives(task for one in hooks for task in _tasks(one.before_optimizer()))
        if all(one.runs_optimizer for one in hooks):
            run = _Run()
            for operator in (one for block in lowering.held[row].optimizer for one in block.operators):
                run = run.and_then(operator.seconds, self._launched(operator))
            updates = self._after(row, run, updates)
        return updates + self._collectives(task for one in hooks for task in _tasks(one.after_optimizer()))

    def _collectives(self, tasks: Iterator[Task]) -> float:
        """Return what collectives take at least: the most of one stream, on which they run one after the other."""
        streams: dict[str, float] = {}
        for task in tasks:
            if isinstance(task, Collective) and task.stream and task.shares is None and task.transport is None:
                seconds = self._idle.seconds(task.kind, task.group.ranks, task.nbytes)
                streams[task.stream] = streams.get(task.stream, 0.0) + seconds
        return max(streams.values(), default=0.0)


def _reductions(hooks: Sequence[TrainingHooks], lowering: Lowering, row: int) -> Iterator[Task]:
    """Yield the collectives of a rank's gradients in its last micro-batch."""
    for gradient in lowering.gradients[row]:
        for one in hooks:
            if one.hooked_parameters is None or gradient.parameter.id in one.hooked_parameters:
                yield from _tasks(one.gradient_ready(gradient))


def _tasks(stream: Generator[Task, Any, None] | None) -> Iterator[Task]:
    """Yield the tasks of a hook, which is answered with handles that nobody waits for."""
    if stream is None:
        return
    answer: Handle | None = None
    while True:
        try:
            task = stream.send(answer)
        except StopIteration:
            return
        yield task
        answer = Handle(0, task)
