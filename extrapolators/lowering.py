"""Lowering: a program becomes the task stream of one rank, which reads like the training loop that it stands for.

What all ranks of a stage have in common (which operators run between which communications, and the ``Compute`` tasks of
these) is made once, in ``Lowering``; a ``Loop`` is one rank's way through it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import (
    Action,
    Await,
    Block,
    Communicate,
    Gradient,
    Program,
    Receive,
    Send,
)
from triosim.extrapolators.reaction import Reaction
from triosim.tasks import COLLECTIVES, Compute, Copy, Handle, Iteration, Recv, Task, TaskStream, Wait
from triosim.tasks import Send as SendTask
from triosim.trace import Operator, Phase

Arriving = dict[str, Handle]
Heard = frozenset[int] | None  # gradients that some reaction acts upon, by their parameters; None for all

_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Run:
    """The operators of a phase up to ``end`` run now."""

    end: int


#: What a script is made of. A tuple of gradients are those that are complete at this point, a block one that begins.
Step = Run | Communicate | Send | Await | Block | tuple[Gradient, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A phase of a stage: its operators in a row, and what happens between them."""

    operators: tuple[Operator, ...]
    steps: tuple[Step, ...]
    receives: tuple[Receive, ...]


class Lowering:
    """A program on a mesh, ready to be run by any rank."""

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        *,
        iterations: int = 1,
        copy_input: bool = False,
    ) -> None:
        self.program = program
        self.mesh = mesh
        self.iterations = iterations
        self.copy_input = copy_input
        self.input_bytes = [float(sum(tensor.nbytes for tensor in stage.inputs)) for stage in program.stages]
        self._gradients = [stage.gradients(program.gradient_dtype) for stage in program.stages]
        # One entry a stage: pairs of an axis and what makes a rank's reaction.
        self.reactions = [
            [(axis, make(stage, gradients)) for axis, make in program.reactions]
            for stage, gradients in zip(program.stages, self._gradients, strict=True)
        ]
        self._scripts: dict[tuple[int, Phase, bool, Heard], Script] = {}
        self._computes: dict[tuple[int, Phase, int, int], Compute] = {}

    def loop(self, rank: int) -> Loop:
        """Return the training loop of one rank."""
        return Loop(self, rank)

    def stage(self, rank: int) -> int:
        """Return the number of the stage that a rank runs."""
        axis = self.program.stage_axis
        return self.mesh.coordinate(axis, rank) if axis is not None else 0

    def compute(self, stage: int, phase: Phase, script: Script, start: int, end: int) -> Compute:
        """Return the task that runs some operators of a script in a row: one object, whatever rank asks."""
        key = (stage, phase, start, end)
        task = self._computes.get(key)
        if task is None:
            task = self._computes[key] = Compute(script.operators[start:end])
        return task

    def script(self, stage: int, phase: Phase, *, blocks: bool, gradients: Heard) -> Script:
        """Return a phase as steps; with ``blocks`` it stops where a block begins, and where one of ``gradients`` is ready."""
        key = (stage, phase, blocks, gradients)
        script = self._scripts.get(key)
        if script is None:
            ready: dict[int, list[Gradient]] = {}
            for gradient in self._gradients[stage]:
                if gradients is None or gradient.parameter.id in gradients:
                    ready.setdefault(gradient.ready, []).append(gradient)
            script = self._scripts[key] = _script(getattr(self.program.stages[stage], phase), blocks, ready)
        return script


class Loop:
    """The training loop of one rank. A loop is used once; ``tasks`` is all of it."""

    def __init__(self, lowering: Lowering, rank: int) -> None:
        self._lowering = lowering
        self._mesh = lowering.mesh
        self._rank = rank
        self._stage = lowering.stage(rank)
        program = lowering.program
        self._reactions = [
            make(lowering.mesh.group(axis, rank), rank) for axis, make in lowering.reactions[self._stage]
        ]
        self._actions = [
            action
            for action in program.schedule(self._stage, len(program.stages), program.micro_batches)
            if program.training or action.phase == "forward"
        ]
        self._hears_blocks = any(type(r).parameters_needed is not Reaction.parameters_needed for r in self._reactions)
        self._heard = _heard(self._reactions)
        self._each_time = [reaction for reaction in self._reactions if reaction.each_micro_batch]
        self._heard_each_time = _heard(self._each_time)

    def tasks(self) -> TaskStream:
        """Every iteration of the rank."""
        for _ in range(self._lowering.iterations):
            yield from self.step()
            yield Iteration()

    def step(self) -> TaskStream:
        """One step: every micro-batch forward and backward as scheduled, then the optimizer."""
        for reaction in self._reactions:
            yield from _all(reaction.step_begins())
        last_backward = max((i for i, a in enumerate(self._actions) if a.phase == "backward"), default=-1)
        arriving = yield from self._post(self._actions[0].phase)
        for index, action in enumerate(self._actions):
            # While one micro-batch is computed, what the next one needs arrives: its receives are posted first.
            following: Action | None = self._actions[index + 1] if index + 1 < len(self._actions) else None
            posted = (yield from self._post(following.phase)) if following else {}
            if action.phase == "forward":
                yield from self.forward(arriving)
            else:
                yield from self.backward(arriving, last=index == last_backward)
            arriving = posted
        if self._lowering.program.training:
            yield from self.optimizer()

    def forward(self, arriving: Arriving | None = None) -> TaskStream:
        """The forward pass of one micro-batch."""
        nbytes = self._lowering.input_bytes[self._stage]
        if self._lowering.copy_input and nbytes:
            copied = yield Copy("host", "device", nbytes)
            yield Wait((copied,))
        yield from self._run("forward", arriving or {})
        for reaction in self._reactions:
            yield from _all(reaction.forward_ends())

    def backward(self, arriving: Arriving | None = None, *, last: bool = True) -> TaskStream:
        """The backward pass of one micro-batch; gradients are complete in the ``last`` one."""
        if last:
            yield from self._run("backward", arriving or {}, self._reactions, self._heard)
        else:
            yield from self._run("backward", arriving or {}, self._each_time, self._heard_each_time)

    def optimizer(self) -> TaskStream:
        """What is pending is waited for, then the parameters are updated."""
        for reaction in self._reactions:
            yield from _all(reaction.before_optimizer())
        if all(reaction.runs_optimizer for reaction in self._reactions):
            arriving = yield from self._post("optimizer")
            yield from self._run("optimizer", arriving)
        for reaction in self._reactions:
            yield from _all(reaction.after_optimizer())

    def _post(self, phase: Phase) -> Generator[Task, Any, Arriving]:
        """Post the receives of a phase, in the order in which the other stages send."""
        arriving: Arriving = {}
        axis = self._lowering.program.stage_axis
        if axis is None:
            return arriving
        for item in self._lowering.script(self._stage, phase, blocks=False, gradients=_NOTHING).receives:
            peer = self._mesh.neighbour(axis, self._rank, item.stage)
            arriving[item.key] = yield Recv(peer, stream=f"receive from {peer}", label=axis)
        return arriving

    def _run(
        self, phase: Phase, arriving: Arriving, listening: Sequence[Reaction] = (), gradients: Heard = _NOTHING
    ) -> TaskStream:
        """Go through a phase. Operators run in a row until something else must be done between them.

        ``listening`` are the reactions that hear of ``gradients``.
        """
        blocks = self._hears_blocks and phase != "optimizer"
        script = self._lowering.script(self._stage, phase, blocks=blocks, gradients=gradients)
        start = end = 0

        def computed() -> TaskStream:
            nonlocal start
            if start < end:
                first, start = start, end
                yield self._lowering.compute(self._stage, phase, script, first, end)

        for step in script.steps:
            if isinstance(step, Run):
                end = step.end
                continue
            for tasks in self._does(step, arriving, listening):
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

    def _does(self, step: Step, arriving: Arriving, listening: Sequence[Reaction]) -> Generator[TaskStream, None, None]:
        """What a step other than computing comes to."""
        if isinstance(step, tuple):
            reactions = (
                reaction.gradient_ready(gradient)
                for gradient in step
                for reaction in listening
                if reaction.acts_on is None or gradient.parameter.id in reaction.acts_on
            )
        elif isinstance(step, Block):
            reactions = (reaction.parameters_needed(step) for reaction in self._reactions)
        else:
            yield self._communicate(step, arriving)
            return
        for tasks in reactions:
            if tasks is not None:
                yield tasks

    def _communicate(self, step: Run | Communicate | Send | Await, arriving: Arriving) -> TaskStream:
        if isinstance(step, Communicate):
            group = self._mesh.group(step.axis, self._rank, step.parts)
            if len(group.ranks) == 1:
                return
            # A stream for each axis, as PyTorch has for each process group: gradients on their way do not hold it up.
            handle = yield COLLECTIVES[step.kind](step.nbytes, group, stream=f"{step.axis} communication")
            if step.key is None:
                yield Wait((handle,))
            else:
                arriving[step.key] = handle
        elif isinstance(step, Await):
            if step.key in arriving:
                yield Wait((arriving.pop(step.key),))
        elif isinstance(step, Send):
            axis = self._lowering.program.stage_axis
            assert axis is not None, "only a schedule sends between stages"
            peer = self._mesh.neighbour(axis, self._rank, step.stage)
            yield SendTask(peer, step.nbytes, stream=f"send to {peer}", label=axis)


def _heard(reactions: Sequence[Reaction]) -> Heard:
    """The gradients that some reaction acts upon."""
    sets = [r.acts_on for r in reactions if type(r).gradient_ready is not Reaction.gradient_ready]
    if len(sets) == 1:
        return sets[0]  # itself, of which the hash is known
    return None if None in sets else _NOTHING.union(*(one for one in sets if one is not None))


def _all(tasks: TaskStream | None) -> TaskStream:
    """Yield a reaction's tasks, if it has any."""
    if tasks is not None:
        yield from tasks


def _script(blocks: tuple[Block, ...], stops: bool, ready: dict[int, list[Gradient]]) -> Script:
    operators: list[Operator] = []
    steps: list[Step] = []
    receives: list[Receive] = []

    def run() -> None:
        if operators and not (steps and isinstance(steps[-1], Run) and steps[-1].end == len(operators)):
            steps.append(Run(len(operators)))

    for block in blocks:
        if stops:
            run()
            steps.append(block)
        for item in block.items:
            if isinstance(item, Operator):
                operators.append(item)
                if item.id in ready:
                    run()
                    steps.append(tuple(ready[item.id]))
            elif isinstance(item, Receive):
                receives.append(item)
            else:
                run()
                steps.append(item)
    run()
    return Script(tuple(operators), tuple(steps), tuple(receives))
