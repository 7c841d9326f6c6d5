"""The training loop of one rank: turns a lowered program into its task stream, and reads like the loop that it simulates."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from triosim.extrapolators.core.hooks import RankContext, TrainingHooks
from triosim.extrapolators.core.lowering import (
    GradientReady,
    HookedParameters,
    InstructionList,
    LoweredInstruction,
    LoweredSlot,
    Lowering,
    RunOperators,
    ScheduledAction,
)
from triosim.extrapolators.core.memory import UNTRACKED, LoadActivations, MemoryTracker, StoreActivations
from triosim.extrapolators.core.program import (
    Await,
    Block,
    Communicate,
    ExchangeWithRank,
    Gradient,
    SendToStage,
    TransferKey,
)
from triosim.extrapolators.core.schedule_table import ActionPhase
from triosim.tasks import (
    COLLECTIVES,
    COMPUTE_STREAM,
    Batch,
    Collective,
    Communicator,
    Compute,
    Copy,
    Handle,
    Iteration,
    Layers,
    Record,
    Recv,
    Send,
    Task,
    TaskStream,
    Wait,
)

_OPTIMIZER = -1  # stands for the micro-batch of the optimizer

#: The task that says that a period of the schedule begins.
PERIOD_BEGINS = Record()


class TrainingLoop:
    """The training loop of one rank, to be used once: ``tasks`` is all of it, the other methods are its parts.

    With a ``tracker`` of memory, operators are reported to it instead of becoming tasks. ``slots`` are those that the rank runs
    in place of the schedule's.
    """

    def __init__(
        self,
        lowering: Lowering,
        rank: int,
        tracker: MemoryTracker | None = None,
        slots: Iterable[LoweredSlot] | None = None,
    ) -> None:
        self._lowering = lowering
        self._mesh = lowering.mesh
        self._rank = rank
        self._pipeline_rank = lowering.pipeline_rank(rank)
        self._slots = lowering.slots[self._pipeline_rank] if slots is None else slots
        self._hooks: list[TrainingHooks] = []
        for axes, make in lowering.hooks[self._pipeline_rank]:
            group = lowering.mesh.group(axes, rank)
            self._hooks.append(make(RankContext(group, rank, tracker or UNTRACKED, tuple(self._hooks))))
        self._tracker = tracker
        self._parameter_hooks = [
            one for one in self._hooks if type(one).parameters_needed is not TrainingHooks.parameters_needed
        ]
        self._each_time = [hooks for hooks in self._hooks if hooks.each_micro_batch]
        self._hooked, self._hooked_each_time = _hooked(self._hooks), _hooked(self._each_time)
        self._arriving: dict[tuple[TransferKey, int], Handle] = {}  # by key and micro-batch
        # By id() of an instruction, which the lowering keeps: hashing its layers and shares would cost more than it saves.
        self._collectives: dict[int, Task | None] = {}

    def tasks(self) -> TaskStream:
        """Yield the tasks of every iteration."""
        for _ in range(self._lowering.iterations):
            yield from self.step()
            yield Iteration()

    def step(self) -> TaskStream:
        """One step: every micro-batch forward and backward as scheduled, then the optimizer."""
        for hooks in self._hooks:
            yield from _all(hooks.step_begins())
        axis = self._lowering.program.stage_axis
        for slot in self._slots:
            if slot.begins_period:
                yield PERIOD_BEGINS
            for posted in slot.receives:
                assert axis is not None, "only a pipeline sends between stages"
                peer = self._mesh.neighbour(axis, self._rank, posted.pipeline_rank)
                handle = yield Recv(peer, stream=f"receive from {peer}", label=axis)
                if self._tracker is not None:
                    self._tracker.receive_posted(posted)
                self._arriving[posted.key, posted.micro_batch] = handle
            if len(slot.actions) == 1:
                yield from self._act(slot.actions[0])
            else:
                yield from self._side_by_side(slot.actions)
        if self._lowering.program.training:
            yield from self.optimizer()

    def forward(self) -> TaskStream:
        """The forward pass of one micro-batch, where there is one stage."""
        yield from self._act(self._only("forward"))

    def backward(self, *, first: bool = True, last: bool = True) -> TaskStream:
        """The backward pass of one micro-batch, where there is one stage.

        Gradients begin in the ``first`` one, and are complete in the ``last`` one.
        """
        yield from self._act(self._only("backward", first=first, last=last))

    def optimizer(self) -> TaskStream:
        """Wait for the pending collectives, then update the parameters."""
        for hooks in self._hooks:
            yield from _all(hooks.before_optimizer())
        if all(hooks.runs_optimizer for hooks in self._hooks):
            yield from self._run(self._lowering.optimizer(self._pipeline_rank), _OPTIMIZER)
        for hooks in self._hooks:
            yield from _all(hooks.after_optimizer())

    @property
    def hooks(self) -> Sequence[TrainingHooks]:
        """The hooks of each parallelism that has some."""
        return self._hooks

    def _only(self, phase: ActionPhase, *, first: bool = False, last: bool = False) -> ScheduledAction:
        """Return the action of a phase with which the gradients of all parameters begin, or are complete."""
        slots = self._lowering.slots[self._pipeline_rank]
        found = [act for slot in slots for act in slot.actions if act.action.phase == phase][-1 if last else 0]
        every, none = frozenset(one.parameter.id for one in found.gradients), frozenset[int]()
        return replace(found, begun=every if first else none, complete=every if last else none)

    def _act(self, act: ScheduledAction) -> TaskStream:
        """Run one action of the schedule."""
        action = act.action
        if self._tracker is not None:
            self._tracker.action_begins(act)
        if action.phase == "forward":
            nbytes = self._lowering.input_bytes[action.stage]
            if self._lowering.copy_input and nbytes:
                copied = yield Copy("host", "device", nbytes, label="input")
                yield Wait((copied,))
        # The weight part of a backward pass needs no parameters.
        key = self._parameter_key if self._parameter_hooks and action.phase != "weight" else None
        # To memory, a sum of gradients is what the rank keeps.
        accumulated_bytes = self.accumulated_bytes if self._tracker is None else None
        script = self._lowering.script(act, key, self._hooked, self._hooked_each_time, accumulated_bytes)
        yield from self._run(script, action.micro_batch)
        if action.phase == "forward":
            for hooks in self._hooks:
                yield from _all(hooks.forward_ends())

    def accumulated_bytes(self, gradient: Gradient) -> float:
        """Return the bytes of a gradient's sum over micro-batches; 0 where each is reduced."""
        if any(hooks.reduces_each_time(gradient) for hooks in self._hooks):
            return 0.0
        return min((hooks.accumulated_bytes(gradient) for hooks in self._hooks), default=gradient.nbytes)

    def _parameter_key(self, block: Block) -> Hashable:
        return tuple(hooks.parameter_key(block) for hooks in self._parameter_hooks)

    def _side_by_side(self, acts: Sequence[ScheduledAction]) -> TaskStream:
        """Run several actions at once, each on a stream of its own; they compute in turn, each up to its next collective.

        They begin together and end together: their results are sent when all have run. Computation gains nothing; while one
        action communicates, the other computes, as in DualPipe and in Megatron-Core's ``combined_1f1b``.
        """
        computed = yield Record()
        running: dict[str, TaskStream] = {}
        for number, act in enumerate(acts):
            stream = COMPUTE_STREAM if not number else f"{COMPUTE_STREAM} {number + 1}"
            running[stream] = self._act(act)
            yield Wait((computed,), stream=stream)
        streams = tuple(running)
        answers: dict[str, Handle | None] = dict.fromkeys(streams)
        sends: list[Send] = []
        while running:
            for stream, tasks in tuple(running.items()):
                turn = yield from self._turn(stream, tasks, answers, sends)
                if turn is None:
                    del running[stream]
                    continue
                for other in running:
                    if other != stream:
                        yield Wait((turn,), stream=other)
        ends = []
        for stream in streams[1:]:
            ends.append((yield Record(stream=stream)))
        yield Wait(tuple(ends))
        yield from (send for send in sends)  # a generator, which can be answered

    def _turn(
        self, stream: str, tasks: TaskStream, answers: dict[str, Handle | None], sends: list[Send]
    ) -> Generator[Task, Any, Handle | None]:
        """Yield the tasks of an action up to its next collective, and return what fires when all before it has run.

        The ``answers`` to the tasks of each action, and what it ``sends``, are kept. Return None where the action is over.
        """
        while True:
            try:
                task = tasks.send(answers[stream])
            except StopIteration:
                return None
            if isinstance(task, Send):
                sends.append(task)
                answers[stream] = None
                continue
            computed: Handle | None = None
            if isinstance(task, Collective) and task.blocks:
                computed = yield Record(stream=stream)
            answers[stream] = yield self._on(stream, task)
            if computed is not None:
                return computed

    def _on(self, stream: str, task: Task) -> Task:
        """Return a task of the compute stream on another stream, or a task that is issued from it."""
        if stream == COMPUTE_STREAM:
            return task
        if isinstance(task, Compute):
            return self._lowering.on_stream(task, stream)
        if isinstance(task, (Record, Wait)):
            return replace(task, stream=stream) if task.stream == COMPUTE_STREAM else task
        if getattr(task, "issuer", None) == COMPUTE_STREAM:
            return replace(task, issuer=stream)  # type: ignore[call-arg]  # it has one
        return task

    def _run(self, script: InstructionList, micro_batch: int) -> TaskStream:
        """Return the tasks of a list of instructions; with a tracker, those of its hooks."""
        if self._tracker is not None:
            return self._track(script, micro_batch, self._tracker)
        return self._compute(script, micro_batch)

    def _compute(self, script: InstructionList, micro_batch: int) -> TaskStream:
        """Yield the tasks of instructions. Consecutive operators are one task, unless a task comes between them."""
        start = end = 0
        for step in script.steps:
            if isinstance(step, RunOperators):
                end = step.end
                continue
            if isinstance(step, Communicate) and step.key is None:
                task = self._collective(step)
                if task is not None:
                    if start < end:
                        yield self._lowering.compute(script, start, end)
                        start = end
                    if isinstance(task, Collective):  # which blocks by itself
                        yield task
                    else:
                        yield Wait(((yield task),))
                continue
            is_hook = isinstance(step, (Block, GradientReady))
            for tasks in self._hooks_of(step) if is_hook else (self._communicate(step, micro_batch),):
                task = next(tasks, None)
                if task is not None:
                    if start < end:
                        yield self._lowering.compute(script, start, end)
                        start = end
                    yield from _resumed(tasks, task)
        if start < end:
            yield self._lowering.compute(script, start, end)

    def _track(self, script: InstructionList, micro_batch: int, tracker: MemoryTracker) -> TaskStream:
        """Report operators to the tracker, and yield the tasks of the hooks between them."""
        start = 0
        for end, step in script.calls:
            for tasks in self._hooks_of(step):
                if start < end:
                    tracker.operators_ran(script, start, end, micro_batch)  # ahead of what the hooks allocate
                    start = end
                yield from tasks
        end = len(script.operators)
        if start < end:
            tracker.operators_ran(script, start, end, micro_batch)

    def _hooks_of(self, step: LoweredInstruction) -> Iterator[TaskStream]:
        """Yield the tasks of each hook that an instruction calls."""
        if isinstance(step, Block):
            yield from [found for one in self._parameter_hooks if (found := one.parameters_needed(step)) is not None]
        elif isinstance(step, GradientReady):
            for hooks in self._hooks if step.complete else self._each_time:
                if hooks.hooked_parameters is None or step.gradient.parameter.id in hooks.hooked_parameters:
                    tasks = hooks.gradient_ready(step.gradient)
                    if tasks is not None:
                        yield tasks

    def _communicate(self, step: LoweredInstruction, micro_batch: int) -> TaskStream:
        """Yield the tasks of a transfer, or of a collective that does not block."""
        if isinstance(step, Communicate):
            task = self._collective(step)
            if task is not None and step.key is not None:
                self._arriving[step.key, micro_batch] = yield task
        elif isinstance(step, StoreActivations):
            yield from self._move(step, micro_batch)
        elif isinstance(step, Await):
            if (step.key, micro_batch) in self._arriving:
                yield Wait((self._arriving.pop((step.key, micro_batch)),))
        elif isinstance(step, SendToStage):
            pipeline_rank = self._lowering.program.schedule.rank_of(step.stage, micro_batch)
            if pipeline_rank != self._pipeline_rank:
                yield self._send(pipeline_rank, step)
        elif isinstance(step, ExchangeWithRank):
            sent = self._send(step.pipeline_rank, step)
            peer = sent.destination
            self._arriving[step.key, micro_batch] = yield Recv(peer, stream=f"receive from {peer}", label=sent.label)
            yield sent

    def _move(self, step: StoreActivations, micro_batch: int) -> TaskStream:
        """Copy activations out of the GPU, or back into it."""
        source, destination = "device", step.tier
        if isinstance(step, LoadActivations):
            source, destination = destination, source
        stream, layers = f"activations to {destination}", Layers.of(step.layer)
        copied = yield Copy(source, destination, step.nbytes, stream, label="activations", layers=layers)
        self._arriving[step.key, micro_batch] = copied

    def _collective(self, step: Communicate) -> Task | None:
        """Return the task of a collective, one object for all micro-batches; None for a group of one rank."""
        if id(step) not in self._collectives:
            group = self._mesh.group(step.axis, self._rank, step.parts)
            # A stream for each axis, as PyTorch has for each process group: all-reduces of gradients do not delay it.
            stream = f"{step.axis} communication"
            task: Task | None = None
            if len(group.ranks) > 1 and step.kind == "rotate":
                task = self._rotate(step, group, stream)
            elif len(group.ranks) > 1 and step.kind != "rotate":
                task = COLLECTIVES[step.kind](
                    step.nbytes,
                    group,
                    stream,
                    shares=step.shares,
                    layers=step.layers,
                    transport=step.transport,
                    blocks=step.key is None,
                )
            self._collectives[id(step)] = task
        return self._collectives[id(step)]

    def _rotate(self, step: Communicate, group: Communicator, stream: str) -> Batch:
        """Return the task that sends to the next rank of a group, and receives from the one before."""
        position = group.ranks.index(self._rank)
        after, before = group.ranks[(position + 1) % len(group.ranks)], group.ranks[position - 1]
        sent = Send(after, step.nbytes, stream=stream, label=step.axis, layers=step.layers)
        return Batch((sent, Recv(before, stream=stream, label=step.axis)), stream=stream, label=step.axis)

    def _send(self, pipeline_rank: int, step: SendToStage | ExchangeWithRank) -> Send:
        axis = self._lowering.program.stage_axis
        assert axis is not None, "only a pipeline sends between stages"
        peer = self._mesh.neighbour(axis, self._rank, pipeline_rank)
        return Send(peer, step.nbytes, stream=f"send to {peer}", label=axis, layers=step.layers)


def _hooked(hooks: Sequence[TrainingHooks]) -> HookedParameters:
    """Return the parameters for whose gradients some hooks are called."""
    sets = [one.hooked_parameters for one in hooks if type(one).gradient_ready is not TrainingHooks.gradient_ready]
    if len(sets) == 1:
        return sets[0]  # the same object, whose hash is known
    return None if None in sets else frozenset[int]().union(*(one for one in sets if one is not None))


def _resumed(tasks: TaskStream, task: Task) -> TaskStream:
    """Yield a task that was drawn from a stream, and then the rest of the stream."""
    with suppress(StopIteration):
        while True:
            task = tasks.send((yield task))


def _all(tasks: TaskStream | None) -> TaskStream:
    """Yield the tasks of a hook, if it has any."""
    if tasks is not None:
        yield from tasks
