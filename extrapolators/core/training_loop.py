"""The training loop of one rank: turns a lowered program into its task stream, and reads like the loop that it simulates."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from triosim.extrapolators.core.hooks import RankContext, TrainingHooks
from triosim.extrapolators.core.lowering import (
    GradientReady,
    HookedParameters,
    Instruction,
    InstructionList,
    Lowering,
    RunOperators,
    ScheduledAction,
)
from triosim.extrapolators.core.memory_tracker import UNTRACKED, MemoryTracker
from triosim.extrapolators.core.program import Await, Block, Communicate, ExchangeWithRank, SendToStage, TransferKey
from triosim.extrapolators.core.schedule_table import ActionPhase
from triosim.tasks import (
    COLLECTIVES,
    COMPUTE_STREAM,
    Batch,
    Communicator,
    Compute,
    Copy,
    Handle,
    Iteration,
    Record,
    Recv,
    Send,
    Task,
    TaskStream,
    Wait,
)

_NOTHING: frozenset[int] = frozenset()
_OPTIMIZER = -1  # the micro-batch of what comes once


class TrainingLoop:
    """The training loop of one rank, to be used once: ``tasks`` is all of it, the other methods are its parts.

    With a ``tracker`` of memory, operators are reported to it instead of becoming tasks.
    """

    def __init__(self, lowering: Lowering, rank: int, tracker: MemoryTracker | None = None) -> None:
        self._lowering = lowering
        self._mesh = lowering.mesh
        self._rank = rank
        self._pipeline_rank = lowering.pipeline_rank(rank)
        self._hooks = [
            make(RankContext(lowering.mesh.group(axes, rank), rank, tracker or UNTRACKED))
            for axes, make in lowering.hooks[self._pipeline_rank]
        ]
        self._tracker = tracker
        self._parameter_hooks = [
            one for one in self._hooks if type(one).parameters_needed is not TrainingHooks.parameters_needed
        ]
        self._each_time = [hooks for hooks in self._hooks if hooks.each_micro_batch]
        self._heard, self._heard_each_time = _heard(self._hooks), _heard(self._each_time)
        self._arriving: dict[tuple[TransferKey, int], Handle] = {}  # by key and micro-batch
        # By id() of an instruction, which the lowering keeps: hashing its layers and shares would cost more than it saves.
        self._made: dict[int, Task | None] = {}

    def tasks(self) -> TaskStream:
        """Every iteration of the rank."""
        for _ in range(self._lowering.iterations):
            yield from self.step()
            yield Iteration()

    def step(self) -> TaskStream:
        """One step: every micro-batch forward and backward as scheduled, then the optimizer."""
        for hooks in self._hooks:
            yield from _all(hooks.step_begins())
        axis = self._lowering.program.stage_axis
        for turn in self._lowering.turns[self._pipeline_rank]:
            for posted in turn.receives:
                assert axis is not None, "only a pipeline sends between stages"
                peer = self._mesh.neighbour(axis, self._rank, posted.pipeline_rank)
                handle = yield Recv(peer, stream=f"receive from {peer}", label=axis)
                if self._tracker is not None:
                    self._tracker.receive_posted(posted)
                self._arriving[posted.key, posted.micro_batch] = handle
            if len(turn.acts) == 1:
                yield from self._act(turn.acts[0])
            else:
                yield from self._side_by_side(turn.acts)
        if self._lowering.program.training:
            yield from self.optimizer()

    def forward(self) -> TaskStream:
        """The forward pass of one micro-batch, where there is one stage."""
        yield from self._act(self._only("forward", last=False))

    def backward(self, *, last: bool = True) -> TaskStream:
        """The backward pass of one micro-batch, where there is one stage; gradients are complete in the ``last`` one."""
        yield from self._act(self._only("backward", last=last))

    def optimizer(self) -> TaskStream:
        """Wait for what is pending, then update the parameters."""
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

    def _only(self, phase: ActionPhase, *, last: bool) -> ScheduledAction:
        """The last action of a phase, or what another one would be."""
        acts = [
            act for turn in self._lowering.turns[self._pipeline_rank] for act in turn.acts if act.action.phase == phase
        ]
        return acts[-1] if last else replace(acts[-1], complete=_NOTHING)

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
        needs = self._needs if self._parameter_hooks and action.phase != "weight" else None  # which needs no parameters
        script = self._lowering.script(act, needs=needs, heard=self._heard, each_time=self._heard_each_time)
        yield from self._run(script, action.micro_batch)
        if action.phase == "forward":
            for hooks in self._hooks:
                yield from _all(hooks.forward_ends())

    def _needs(self, block: Block) -> Hashable:
        return tuple(hooks.parameter_key(block) for hooks in self._parameter_hooks)

    def _side_by_side(self, acts: Sequence[ScheduledAction]) -> TaskStream:
        """Several actions at once, each on a stream of its own.

        They begin together and end together: what they make is sent when all are through. The compute units take turns, so
        that computation gains nothing; while one of them communicates, the other computes.
        """
        begun = yield Record()
        running: dict[str, TaskStream] = {}
        for number, act in enumerate(acts):
            stream = COMPUTE_STREAM if not number else f"{COMPUTE_STREAM} {number + 1}"
            running[stream] = self._act(act)
            if number:
                yield Wait((begun,), stream=stream)
        streams = tuple(running)
        answers: dict[str, Handle | None] = dict.fromkeys(streams)
        made: dict[str, list[Send]] = {stream: [] for stream in streams}
        while running:
            for stream, tasks in tuple(running.items()):
                try:
                    task = tasks.send(answers[stream])
                except StopIteration:
                    del running[stream]
                    continue
                if isinstance(task, Send):
                    made[stream].append(task)
                    answers[stream] = None
                else:
                    answers[stream] = yield self._on(stream, task)
        ends = []
        for stream in streams[1:]:
            ends.append((yield Record(stream=stream)))
        yield Wait(tuple(ends))
        yield from (sent for sends in made.values() for sent in sends)  # a generator, which can be answered

    def _on(self, stream: str, task: Task) -> Task:
        """A task of the compute stream on another one, or issued by that."""
        if stream == COMPUTE_STREAM:
            return task
        if isinstance(task, Compute):
            return self._lowering.aside(task, stream)
        if isinstance(task, (Record, Wait)):
            return replace(task, stream=stream) if task.stream == COMPUTE_STREAM else task
        if getattr(task, "issuer", None) == COMPUTE_STREAM:
            return replace(task, issuer=stream)  # type: ignore[call-arg]  # it has one
        return task

    def _run(self, script: InstructionList, micro_batch: int) -> TaskStream:
        """Run instructions. Consecutive operators are one task, as long as nothing happens between them."""
        start = end = 0

        def computed() -> TaskStream:
            nonlocal start
            if start < end:
                first, start = start, end
                if self._tracker is not None:
                    self._tracker.operators_ran(script, first, end, micro_batch)
                else:
                    yield self._lowering.compute(script, first, end)

        for step in script.steps:
            if isinstance(step, RunOperators):
                end = step.end
                continue
            if self._tracker is None and isinstance(step, Communicate) and step.key is None:
                together = self._together(step)
                if together is not None:
                    if start < end:
                        first, start = start, end
                        yield self._lowering.compute(script, first, end)
                    yield Wait(((yield together),))
                continue
            if self._tracker is not None and not isinstance(step, (GradientReady, Block)):
                continue  # what is sent takes no memory but its own
            for tasks in self._does(step, micro_batch):
                if self._tracker is not None:
                    yield from computed()  # the hooks allocate after them
                # Drawn by hand, so that the operators so far run before its first task, and only if it has one.
                answer = None
                while True:
                    try:
                        task = tasks.send(answer)
                    except StopIteration:
                        break
                    yield from computed()
                    answer = yield task
        yield from computed()

    def _does(self, step: Instruction, micro_batch: int) -> Iterable[TaskStream]:
        """Yield the tasks of an instruction other than to run operators."""
        if isinstance(step, Block):
            needed = [hooks.parameters_needed(step) for hooks in self._parameter_hooks]
            return [tasks for tasks in needed if tasks is not None]
        if isinstance(step, GradientReady):
            return self._gradient_ready(step)
        return (self._communicate(step, micro_batch),)

    def _gradient_ready(self, step: GradientReady) -> Iterator[TaskStream]:
        """What the hooks do with a gradient, one after the other."""
        for hooks in self._hooks if step.complete else self._each_time:
            if hooks.hooked_parameters is None or step.gradient.parameter.id in hooks.hooked_parameters:
                tasks = hooks.gradient_ready(step.gradient)
                if tasks is not None:
                    yield tasks

    def _communicate(
        self, step: RunOperators | Communicate | SendToStage | ExchangeWithRank | Await, micro_batch: int
    ) -> TaskStream:
        if isinstance(step, Communicate):
            task = self._together(step)
            if task is not None and step.key is not None:
                self._arriving[step.key, micro_batch] = yield task
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

    def _together(self, step: Communicate) -> Task | None:
        """Return what a group does together, one object for all micro-batches; None for a group of one rank."""
        if id(step) not in self._made:
            group = self._mesh.group(step.axis, self._rank, step.parts)
            # A stream for each axis, as PyTorch has for each process group: gradients on their way do not hold it up.
            stream = f"{step.axis} communication"
            if len(group.ranks) == 1:
                self._made[id(step)] = None
            elif step.kind == "rotate":
                self._made[id(step)] = self._rotate(step, group, stream)
            else:
                self._made[id(step)] = COLLECTIVES[step.kind](
                    step.nbytes, group, stream=stream, layers=step.layers, shares=step.shares
                )
        return self._made[id(step)]

    def _rotate(self, step: Communicate, group: Communicator, stream: str) -> Batch:
        """Send to the next rank of a group, and receive from the one before."""
        position = group.ranks.index(self._rank)
        after, before = group.ranks[(position + 1) % len(group.ranks)], group.ranks[position - 1]
        sent = Send(after, step.nbytes, stream=stream, label=step.axis, layers=step.layers)
        return Batch((sent, Recv(before, stream=stream, label=step.axis)), stream=stream, label=step.axis)

    def _send(self, pipeline_rank: int, step: SendToStage | ExchangeWithRank) -> Send:
        axis = self._lowering.program.stage_axis
        assert axis is not None, "only a pipeline sends between stages"
        peer = self._mesh.neighbour(axis, self._rank, pipeline_rank)
        return Send(peer, step.nbytes, stream=f"send to {peer}", label=axis, layers=step.layers)


def _heard(hooks: Sequence[TrainingHooks]) -> HookedParameters:
    """The parameters for whose gradients some hooks are called."""
    sets = [r.hooked_parameters for r in hooks if type(r).gradient_ready is not TrainingHooks.gradient_ready]
    if len(sets) == 1:
        return sets[0]  # itself, of which the hash is known
    return None if None in sets else _NOTHING.union(*(one for one in sets if one is not None))


def _all(tasks: TaskStream | None) -> TaskStream:
    """Yield the tasks of a hook, if it has any."""
    if tasks is not None:
        yield from tasks
