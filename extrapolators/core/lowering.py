"""Lowers a program to lists of instructions, which each rank runs one after the other.

The parts that all ranks at one position of the pipeline share (the operators between two communications, their ``Compute``
tasks, the receives that are posted) are made once, here; a ``TrainingLoop`` runs them for one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from statistics import median
from typing import Any, TypeVar

from triosim import gpus as catalogue
from triosim.compute.pricing.gradient_accumulation import additions
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import (
    Block,
    Gradient,
    Instruction,
    Program,
    ReceiveFromStage,
    SendToStage,
    TransferKey,
)
from triosim.extrapolators.core.schedule_table import HALVES, Action, Half
from triosim.tasks import Compute
from triosim.trace import Operator

HookedParameters = frozenset[int] | None  # those for whose gradients some hook is called; None for all
AccumulatedBytes = Callable[[Gradient], float]  # TrainingHooks.accumulated_bytes of all hooks
ParameterKey = Callable[[Block], Hashable]  # TrainingHooks.parameter_key of all hooks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOperators:
    """Run the operators of the list up to ``end``."""

    end: int


@dataclass(frozen=True, slots=True)
class GradientReady:
    """A gradient has been accumulated; it is ``complete`` unless later micro-batches add to it."""

    gradient: Gradient
    complete: bool


#: A block is one that begins.
LoweredInstruction = RunOperators | Instruction | Block | GradientReady


@dataclass(frozen=True, slots=True)
class InstructionList:
    """The operators of an action in order, and the instructions that say when they run; ``name`` identifies the operators.

    ``calls`` are the instructions that call hooks, each with how many operators run before it.
    """

    name: tuple[object, ...]
    operators: tuple[Operator, ...]
    steps: tuple[LoweredInstruction, ...]
    calls: tuple[tuple[int, Block | GradientReady], ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledAction:
    """An action of a pipeline rank, and the gradients that it adds to.

    Those of the parameters in ``complete`` are complete then, and those in ``begun`` are the first of a step.
    """

    pipeline_rank: int
    action: Action
    gradients: tuple[Gradient, ...]
    complete: frozenset[int]
    begun: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PostedReceive:
    """A receive from a pipeline rank: the transfer of a micro-batch."""

    pipeline_rank: int
    key: TransferKey
    micro_batch: int


@dataclass(slots=True)
class LoweredSlot:
    """A slot of the schedule: the receives that are posted before it, and the actions that run side by side in it.

    The run of one that ``begins_period`` is told of it.
    """

    receives: list[PostedReceive]
    actions: tuple[ScheduledAction, ...]
    begins_period: bool = False

    def earlier(self, micro_batches: int) -> LoweredSlot:
        """Return the slot for the micro-batches that are so many earlier."""
        if not micro_batches:
            return self
        return LoweredSlot(
            [replace(one, micro_batch=one.micro_batch - micro_batches) for one in self.receives],
            tuple([replace(one, action=one.action.earlier(micro_batches)) for one in self.actions]),
        )


class Lowering:
    """A program on a mesh, ready to be run by any rank.

    ``like`` is the lowering of a program that differs in shapes alone, and in those of no parameter: what follows from the
    structure of the two is found once.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        *,
        iterations: int = 1,
        copy_input: bool = False,
        like: Lowering | None = None,
    ) -> None:
        self.program = program
        self.mesh = mesh
        self.iterations = iterations
        self.copy_input = copy_input
        self.input_bytes = [float(sum(tensor.nbytes for tensor in stage.inputs)) for stage in program.stages]
        self.held = [program.held(pipeline_rank) for pipeline_rank in range(len(program.schedule.rows))]
        self.gradients: list[tuple[Gradient, ...]] = (
            [stage.gradients(program.gradient_dtype) for stage in self.held] if like is None else like.gradients
        )
        # By pipeline rank: pairs of an axis and the factory of a rank's hooks.
        self.hooks = [
            [(axis, make(stage, gradients)) for axis, make in program.hooks]
            for stage, gradients in zip(self.held, self.gradients, strict=True)
        ]
        self._transfers_of: dict[tuple[object, ...], list[Any]] = {}
        self.slots: list[list[LoweredSlot]] = like.slots if like is not None else self._find_slots()
        self._scripts: dict[tuple[object, ...], InstructionList] = {}
        self._computes: dict[tuple[object, ...], Compute] = {}
        # By id() of a task, which is kept with it: hashing its operators would cost more than making it.
        self._on_streams: dict[tuple[int, str], tuple[Compute, Compute]] = {}

    def pipeline_rank(self, rank: int) -> int:
        """Return a rank's coordinate along the pipeline; 0 without one."""
        axis = self.program.stage_axis
        return self.mesh.coordinate(axis, rank) if axis is not None else 0

    def compute(self, script: InstructionList, start: int, end: int) -> Compute:
        """Return the task that runs operators ``start`` to ``end`` - 1 of a list: one object for all ranks."""
        key = (script.name, start, end)
        task = self._computes.get(key)
        if task is None:
            task = self._computes[key] = Compute(script.operators[start:end])
        return task

    def on_stream(self, task: Compute, stream: str) -> Compute:
        """Return a computation on another stream: one object for all ranks."""
        key = (id(task), stream)
        if key not in self._on_streams:
            self._on_streams[key] = (task, replace(task, stream=stream))
        return self._on_streams[key][1]

    def script(
        self,
        act: ScheduledAction,
        parameter_key: ParameterKey | None,
        hooked: HookedParameters,
        hooked_each_time: HookedParameters,
        accumulated_bytes: AccumulatedBytes | None,
    ) -> InstructionList:
        """Return the instructions of an action.

        They have a block where one begins whose ``parameter_key`` is another than that of the block before it, and a
        ``GradientReady`` where the gradient of a ``hooked`` parameter is complete, or one of ``hooked_each_time`` is added to.
        With ``accumulated_bytes``, which are those of a gradient's sum over micro-batches (0 for none), they have the kernels
        that add gradients to sums.
        """
        stage, phase = act.action.stage, act.action.phase
        which = (act.action, hooked) if act.complete else ()
        name: tuple[object, ...] = (stage, phase)
        if accumulated_bytes is not None:
            name += ("adding", act.action) if act.begun else ("adding",)
        key = (act.pipeline_rank, name, parameter_key is not None, hooked_each_time, *which)
        script = self._scripts.get(key)
        if script is None:
            ready: dict[int, list[GradientReady]] = {}
            for gradient in act.gradients:
                complete = gradient.parameter.id in act.complete
                called = hooked if complete else hooked_each_time
                if called is None or gradient.parameter.id in called:
                    ready.setdefault(gradient.ready, []).append(GradientReady(gradient, complete))
            added = {} if accumulated_bytes is None else self.additions(act, accumulated_bytes)
            script = _script(name, self.program.part(stage, phase), parameter_key, ready, added)
            self._scripts[key] = script
        return script

    def additions(self, act: ScheduledAction, accumulated_bytes: AccumulatedBytes) -> dict[int, list[Operator]]:
        """Return the kernels that add an action's gradients to the sums so far, by the operator that completes the gradient.

        There are none where products of the software stack add what they make, nor on a GPU that is not in the catalogue: no
        trace says how long they take there.
        """
        program = self.program
        fused = program.stack is not None and program.stack.gradient_sums != "kernels"
        if fused or catalogue.get(program.gpu) is None:
            return {}
        sums = [(one, accumulated_bytes(one)) for one in act.gradients if one.parameter.id not in act.begun]
        added = [(one, nbytes) for one, nbytes in sums if nbytes]
        made = additions([(one.parameter, nbytes) for one, nbytes in added], program.model, program.gpu)
        found: dict[int, list[Operator]] = {}
        for (gradient, _), kernel in zip(added, made, strict=True):
            launched = replace(kernel, layer=gradient.layer, host_seconds=self._launch_seconds)
            found.setdefault(gradient.ready, []).append(launched)
        return found

    @cached_property
    def _launch_seconds(self) -> float | None:
        """What a kernel that is in no trace costs the host: as much as the median operator of the backward pass."""
        operators = (one for stage in self.program.stages for block in stage.backward for one in block.operators)
        return median([one.host_seconds for one in operators if one.host_seconds and one.seconds] or [0.0]) or None

    def optimizer(self, pipeline_rank: int) -> InstructionList:
        """Return the instructions of a pipeline rank's optimizer."""
        key = ("optimizer", pipeline_rank)
        script = self._scripts.get(key)
        if script is None:
            script = self._scripts[key] = _script(key, self.held[pipeline_rank].optimizer, None, {}, {})
        return script

    def _find_slots(self) -> list[list[LoweredSlot]]:
        """Return the slots of each pipeline rank, with the receives that are posted before each."""
        program = self.program
        stage_of = {
            op.id: n for n, stage in enumerate(program.stages) for one in stage.backward for op in one.operators
        }
        found = []
        for pipeline_rank, slots in enumerate(program.schedule.rows):
            added: dict[tuple[int, Half], list[Gradient]] = {}  # by stage and half of the backward pass
            for gradient in self.gradients[pipeline_rank]:
                half: Half = "weight" if gradient.ready in program.weight_part else "input"
                added.setdefault((stage_of[gradient.ready], half), []).append(gradient)
            schedule = program.schedule
            act = partial(_act, pipeline_rank, schedule.first(pipeline_rank), schedule.last(pipeline_rank), added)
            found.append([LoweredSlot([], tuple(map(act, slot))) for slot in slots])
        self._post_receives(found)
        return found

    def _post_receives(self, lowered: list[list[LoweredSlot]]) -> None:
        """Decide in which slot each pipeline rank posts which receives.

        They are posted in the order in which the other side sends, as NCCL matches them, and at the latest one slot before
        they are needed: while one micro-batch is computed, the data of the next one arrive. Where the order of sending is
        not that of using, some are posted earlier, so that nobody waits for a send that is behind another.
        """
        schedule = self.program.schedule
        needed: dict[tuple[int, TransferKey, int], int] = {}
        for pipeline_rank, slots in enumerate(lowered):
            for index, slot in enumerate(slots):
                for act in slot.actions:
                    for receive in self._transfers(act.action, ReceiveFromStage):
                        needed[pipeline_rank, receive.key, act.action.micro_batch] = index
        # By pipeline rank, in the order of sending: the slot that needs a receive, and this one.
        coming: list[list[tuple[int, PostedReceive]]] = [[] for _ in lowered]
        for source, slots in enumerate(lowered):
            for action in (act.action for slot in slots for act in slot.actions):
                for send in self._transfers(action, SendToStage):
                    pipeline_rank = schedule.rank_of(send.stage, action.micro_batch)
                    if pipeline_rank != source:
                        when = needed[pipeline_rank, send.key, action.micro_batch]
                        coming[pipeline_rank].append((when, PostedReceive(source, send.key, action.micro_batch)))
        for pipeline_rank, entries in enumerate(coming):
            soonest: dict[int, int] = {}  # by the pipeline rank that sends
            times = []
            for when, posted in reversed(entries):
                soonest[posted.pipeline_rank] = min(soonest.get(posted.pipeline_rank, when), when)
                times.append(soonest[posted.pipeline_rank])
            for when, (_, posted) in sorted(zip(reversed(times), entries, strict=True), key=lambda entry: entry[0]):
                lowered[pipeline_rank][max(when - 1, 0)].receives.append(posted)

    def _transfers(self, action: Action, kind: type[T]) -> list[T]:
        """Return the sends or receives of an action, in order."""
        key = (action.stage, action.phase, kind)
        if key not in self._transfers_of:
            blocks = self.program.part(action.stage, action.phase)
            self._transfers_of[key] = [item for block in blocks for item in block.items if isinstance(item, kind)]
        return self._transfers_of[key]


def _act(
    pipeline_rank: int,
    first: Mapping[tuple[int, Half], Action],
    last: Mapping[tuple[int, Half], Action],
    added: Mapping[tuple[int, Half], Sequence[Gradient]],
    action: Action,
) -> ScheduledAction:
    """Return an action with its gradients.

    ``added`` are those of each stage and half of the backward pass, ``first`` the actions that begin them, and ``last`` those
    that complete them.
    """
    gradients = {half: added.get((action.stage, half), ()) for half in HALVES[action.phase]}

    def parameters(actions: Mapping[tuple[int, Half], Action]) -> frozenset[int]:
        return frozenset(
            one.parameter.id
            for half, some in gradients.items()
            if actions[action.stage, half] == action
            for one in some
        )

    every = tuple(one for some in gradients.values() for one in some)
    return ScheduledAction(pipeline_rank, action, every, parameters(last), parameters(first))


def _script(
    name: tuple[object, ...],
    blocks: tuple[Block, ...],
    parameter_key: ParameterKey | None,
    ready: Mapping[int, list[GradientReady]],
    added: Mapping[int, list[Operator]],
) -> InstructionList:
    operators: list[Operator] = []
    steps: list[LoweredInstruction] = []
    calls: list[tuple[int, Block | GradientReady]] = []
    ran = 0

    def add(end: int, step: LoweredInstruction | None = None) -> None:
        """Add an instruction once so many operators have run."""
        nonlocal ran
        if end > ran:
            ran = end
            steps.append(RunOperators(end))
        if step is not None:
            steps.append(step)
        if isinstance(step, (Block, GradientReady)):
            calls.append((end, step))

    before: Hashable = None
    for block in blocks:
        if parameter_key is not None and (used := parameter_key(block)) != before:
            before = used
            add(len(operators), block)
        ends = _extend(operators, block, added)
        for count, step in _instructions(block, ready):
            add(ends[count], step)
    add(len(operators))
    return InstructionList(name, tuple(operators), tuple(steps), tuple(calls))


def _extend(operators: list[Operator], block: Block, added: Mapping[int, list[Operator]]) -> Sequence[int]:
    """Append a block's operators, each with those ``added`` after it; return how many there are after so many of the block."""
    ends = range(len(operators), len(operators) + len(block.operators) + 1)
    if added.keys().isdisjoint(block.operator_ids):
        operators.extend(block.operators)
        return ends
    shifted = [len(operators)]
    for operator in block.operators:
        operators += [operator, *added.get(operator.id, ())]
        shifted.append(len(operators))
    return shifted


def _instructions(
    block: Block, ready: Mapping[int, list[GradientReady]]
) -> Iterable[tuple[int, Instruction | GradientReady]]:
    """Return the instructions of a block and the gradients that its operators complete, each after so many operators."""
    if ready.keys().isdisjoint(block.operator_ids):
        return block.instructions
    completed = [
        (count, one) for count, operator in enumerate(block.operators, 1) for one in ready.get(operator.id, ())
    ]
    return sorted((*completed, *block.instructions), key=itemgetter(0))
