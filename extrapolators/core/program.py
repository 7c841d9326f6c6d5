"""The program: one GPU's step as data, which parallelisms transform before it becomes any rank's tasks.

A program has stages (one, until a pipeline divides it), a stage has blocks of its forward pass, its backward pass and its
optimizer, and a block has items: operators, symbolic collectives on an axis of the mesh, and transfers between stages.
"Symbolic" because a block is written once for all ranks: which ranks an axis joins is known when it is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

from triosim import gpus
from triosim.compute.compute_model import ComputeModel
from triosim.compute.models.roofline import STAND_IN
from triosim.compute.pricing.repricing import reprice
from triosim.config.stacks import Stack
from triosim.errors import TraceError
from triosim.extrapolators.core.memory import StoreActivations
from triosim.extrapolators.core.mesh import ExpertReplicas, GroupAxes
from triosim.extrapolators.core.schedule_table import ActionPhase, ScheduleTable
from triosim.operators.tensor_uses import TensorUses, distinct
from triosim.tasks import CollectiveKind, DeepEP, Layers
from triosim.trace import DTYPE_BYTES, Operator, Phase, Tensor

if TYPE_CHECKING:
    from triosim.extrapolators.core.hooks import RankContext, TrainingHooks


class TransferKey(NamedTuple):
    """Identifies a transfer to wait for: its content, and the operator (or tensor between stages) that needs it.

    ``part`` numbers the rounds of a ring; ``again`` marks a transfer that recomputation repeats.
    """

    what: str
    number: int
    part: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Communicate:
    """A collective of the ranks along ``axis``. Without a ``key`` it blocks; with one, ``Await`` waits for it.

    - ``kind``: "rotate" sends to the next rank along the axis, and receives from the one before.
    - ``parts``: into how many groups of neighbours the axis is divided, each with a collective of its own.
    - ``of_weights``: whether it reduces a parameter's gradient, which no other operator of the backward pass waits for.
    - ``layers``: by default those of its block.
    - ``operator``: the one that needs it, by default the one ahead of it; it is recomputed with that operator.
    - ``tensors`` of that operator: its bytes are divided as these are.
    - ``shares``: unequal shares in bytes, in the order of the ranks; of an all-to-all, those from each to each, by sender.
    - ``transport``: what carries an all-to-all where that is not NCCL.
    """

    kind: CollectiveKind | Literal["rotate"]
    nbytes: float
    axis: str
    key: TransferKey | None = None
    parts: int = 1
    of_weights: bool = False
    layers: Layers | None = None
    operator: int | None = None
    tensors: tuple[int, ...] = ()
    shares: tuple[float, ...] | None = None
    transport: DeepEP | None = None

    def divided(self, before: Mapping[int, Operator], after: Mapping[int, Operator]) -> Communicate:
        """Return the collective with the bytes that it has when operators, by id, are in other shapes."""
        if not self.tensors or self.operator is None:
            return self
        old, new = (
            sum(t.nbytes for t in (*op.inputs, *op.outputs) if t.id in self.tensors)
            for op in (before[self.operator], after[self.operator])
        )
        if new == old:
            return self
        shares = None if self.shares is None else tuple(share * new / old for share in self.shares)
        transport = None if self.transport is None else self.transport.scaled(new / old)
        return replace(self, nbytes=self.nbytes * new / old, shares=shares, transport=transport)

    def awaited(self) -> Await:
        """Return the item that waits for it, where it has a key."""
        assert self.key is not None
        return Await(self.key)


@dataclass(frozen=True, slots=True)
class SendToStage:
    """A tensor that is sent to another stage, which receives it by ``key``; the GPU goes on meanwhile.

    Where that stage runs depends on the schedule and the micro-batch. If it is on the same rank, nothing is sent.
    """

    stage: int
    nbytes: float
    key: TransferKey
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class ReceiveFromStage:
    """A tensor that is received from another stage; ``Await`` waits for it."""

    stage: int
    key: TransferKey


@dataclass(frozen=True, slots=True)
class ExchangeWithRank:
    """Bytes that are sent to another pipeline rank, and as many that are received; ``Await`` waits for these."""

    pipeline_rank: int
    nbytes: float
    key: TransferKey
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """The computation waits for the transfer of this key."""

    key: TransferKey


#: What a rank does between operators.
Instruction = Communicate | SendToStage | ExchangeWithRank | Await | StoreActivations
BlockItem = Operator | Instruction | ReceiveFromStage


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive items of one layer in one phase."""

    layer: str
    phase: Phase
    items: tuple[BlockItem, ...]
    _operators: tuple[Operator, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _operator_ids: frozenset[int] | None = field(default=None, init=False, repr=False, compare=False)
    _tensors: TensorUses | None = field(default=None, init=False, repr=False, compare=False)
    _instructions: tuple[tuple[int, Instruction], ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators among the items."""
        if self._operators is None:
            found = tuple([item for item in self.items if isinstance(item, Operator)])
            object.__setattr__(self, "_operators", self.items if len(found) == len(self.items) else found)
        assert self._operators is not None
        return self._operators

    @property
    def operator_ids(self) -> frozenset[int]:
        """The ids of the operators, and of those that collectives among the items belong to."""
        if self._operator_ids is None:
            belonging = (item.operator for item in self.items if isinstance(item, Communicate))
            found = (number for number in (*(one.id for one in self.operators), *belonging) if number is not None)
            object.__setattr__(self, "_operator_ids", frozenset(found))
        assert self._operator_ids is not None
        return self._operator_ids

    @property
    def tensors(self) -> TensorUses:
        """The tensors that the operators read and write."""
        if self._tensors is None:
            found = TensorUses.of(self.operators, updates=self.phase == "optimizer")
            object.__setattr__(self, "_tensors", found)
        assert self._tensors is not None
        return self._tensors

    @property
    def instructions(self) -> tuple[tuple[int, Instruction], ...]:
        """The items beside operators, each after so many of these; those that send name the block's layer.

        Receives, which are posted ahead, are left out.
        """
        if self._instructions is None:
            object.__setattr__(self, "_instructions", tuple(self._find_instructions()))
        assert self._instructions is not None
        return self._instructions

    def _find_instructions(self) -> Iterator[tuple[int, Instruction]]:
        count, layers = 0, Layers.of(self.layer)
        for item in self.items:
            if isinstance(item, Operator):
                count += 1
            elif isinstance(item, (Communicate, SendToStage, ExchangeWithRank)) and item.layers is None:
                yield count, replace(item, layers=layers)
            elif not isinstance(item, ReceiveFromStage):
                yield count, item

    def of(self, items: tuple[BlockItem, ...]) -> Block:
        """Return the block with other items: itself where they are equal."""
        return self if items == self.items else Block(self.layer, self.phase, items)

    @property
    def seconds(self) -> float:
        """The time of the operators."""
        return sum(operator.seconds for operator in self.operators)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a parameter: complete after operator ``ready`` of the backward pass.

    ``layer`` is the first that uses the parameter.
    """

    parameter: Tensor
    nbytes: float
    ready: int
    layer: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that a GPU runs together: ``forward`` and ``backward`` for each micro-batch, ``optimizer`` once a step."""

    forward: tuple[Block, ...]
    backward: tuple[Block, ...] = ()
    optimizer: tuple[Block, ...] = ()
    _parameters: tuple[Tensor, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _gradients: dict[str | None, tuple[Gradient, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, forward first."""
        return (*self.forward, *self.backward, *self.optimizer)

    def with_optimizer(self, optimizer: tuple[Block, ...]) -> Stage:
        """Return the stage with another optimizer: what is known of its passes stays known."""
        found = replace(self, optimizer=optimizer)
        object.__setattr__(found, "_parameters", self.parameters)
        object.__setattr__(found, "_gradients", self._gradients)
        return found

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The network's inputs that this stage uses."""
        return distinct(
            t for block in self.forward for op in block.operators for t in op.inputs if t.category == "input"
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters that the forward pass uses, as this rank has them, each storage once."""
        found = self._find_parameters() if self._parameters is None else self._parameters
        object.__setattr__(self, "_parameters", found)
        return found

    def _find_parameters(self) -> tuple[Tensor, ...]:
        repeated = frozenset[int]().union(*(block.tensors.repeated for block in self.forward))
        used = (use.tensor for block in self.forward for use in block.tensors.uses)
        return distinct(tensor for tensor in used if tensor.id not in repeated)

    def gradients(self, dtype: str | None = None) -> tuple[Gradient, ...]:
        """Return the gradients in the order in which they become ready, in bytes of ``dtype`` or of the parameter's.

        The operator that completes a gradient is the last that writes it, or else, in a trace that does not link gradients
        to parameters, the last that differentiates a user of the parameter. A parameter without either is frozen.
        """
        found = self._gradients[dtype] = self._gradients.get(dtype) or self._find_gradients(dtype)
        return found

    def _find_gradients(self, dtype: str | None) -> tuple[Gradient, ...]:
        storage_of: dict[int, int] = {}  # of each id that a parameter goes by (its transposed view is another)
        users: dict[int, list[int]] = {}  # forward operator: storages of its parameters
        layers: dict[int, str] = {}  # of each storage
        for block in self.forward:
            for operator, layer, tensor in block.tensors.uses:
                storage_of[tensor.id] = tensor.storage
                users.setdefault(operator, []).append(tensor.storage)
                layers.setdefault(tensor.storage, layer)
        written: dict[int, tuple[int, int]] = {}
        linked: dict[int, tuple[int, int]] = {}
        before = 1
        for block in self.backward:
            for position, operator, parameter in block.tensors.written:
                if parameter in storage_of:
                    written[storage_of[parameter]] = (before + position, operator)
            for position, operator, forward in block.tensors.differentiated:
                for storage in users.get(forward, ()):
                    linked[storage] = (before + position, operator)
            before += len(block.operators)
        found = []
        for tensor in self.parameters:
            ready = written.get(tensor.storage) or linked.get(tensor.storage)
            if ready is not None:
                nbytes = tensor.numel * DTYPE_BYTES[dtype or tensor.dtype]
                found.append((ready[0], Gradient(tensor, float(nbytes), ready[1], layers[tensor.storage])))
        # What one operator completes is ready in the reverse of its inputs' order: the bias before the weight.
        found.reverse()
        found.sort(key=lambda entry: entry[0])
        return tuple(gradient for _, gradient in found)

    def forward_blocks_of_backward(self) -> list[int]:
        """Return the index of the forward block to which each backward block belongs.

        A backward operator belongs to the block of the operator that it differentiates. One that does not say (the sum of the
        gradients of a tensor that is used twice) goes where its result is read, or else with its layer or the operators around
        it. Raises ``TraceError`` where neither forward operators nor layers are known.
        """
        block_of = {op.id: i for i, block in enumerate(self.forward) for op in block.operators}
        layers = {block.layer: i for i, block in enumerate(self.forward)}
        readers: dict[int, int] = {}  # storage: the block of the next operator that reads it
        found: list[int | None] = []
        for block in reversed(self.backward):
            index = _first(block_of.get(op.forward) for op in block.operators if op.forward is not None)
            if index is None:
                index = _first(readers.get(tensor.storage) for op in block.operators for tensor in op.outputs)
            if index is None:
                index = layers.get(block.layer)
            if index is not None:
                readers.update((tensor.storage, index) for op in block.operators for tensor in op.inputs)
            found.append(index)
        found.reverse()
        current = _first(found)
        if current is None:
            if not found:
                return []
            raise TraceError(
                "the backward operators name neither forward operators nor layers, so they cannot be divided into stages",
                fix="capture the trace with its execution graph, or simulate inference",
            )
        return [current := current if index is None else index for index in found]


#: Makes the hooks of one rank.
RankHooksFactory = Callable[["RankContext"], "TrainingHooks"]
#: Makes hooks in two steps: from a stage and its gradients what its ranks share, and then the hooks of each rank.
HooksFactory = Callable[["Stage", "tuple[Gradient, ...]"], RankHooksFactory]


@dataclass(frozen=True, slots=True)
class Program:
    """One step of a replica. Operators are in the shapes of one micro-batch and carry the times of these shapes.

    - ``stages``, and the ``schedule`` by which micro-batches go through them. In a pipeline, ``stage_axis`` is its axis,
      ``stage_starts`` are the first blocks of the stages, and ``optimizers`` those of the pipeline's ranks.
    - ``weight_part``: the backward operators that compute gradients of parameters alone, where a schedule runs them apart.
    - ``hooks``: pairs of an axis (or several, taken as one) and the factory of each rank's hooks along it.
    - ``data_axes``: the axes whose ranks have the same parameters and see other data, so that gradients are summed over all of
      them together; ``sharded_axes`` are those over which the optimizer is sharded.
    - ``experts``: the storages of experts' parameters, which only the ranks at equal coordinates of ``expert_axis`` share.
    - ``kept_until``: the storages that recomputation keeps until a backward operator runs, by its id.
    - ``stack`` is the software stack that the step was described for; None of a captured one.
    - ``batch_size`` is that of a micro-batch. Operators are priced for ``gpu`` by ``model``, repeated layers once if
      ``deduplicate`` is set. ``slowdown`` is by how many times longer an operator takes on a rank, where stages are balanced
      over unequal GPUs.
    - ``buffers`` are what each rank holds for its communication all the time: the bytes by name.
    - ``iteration`` is the one that the program is for, where something is drawn at random; ``coordinates`` are those of
      the ranks that run it, along axes whose ranks run different programs.
    """

    stages: tuple[Stage, ...]
    model: ComputeModel
    schedule: ScheduleTable
    stage_axis: str | None = None
    optimizers: tuple[tuple[Block, ...], ...] = ()
    weight_part: frozenset[int] = frozenset()
    hooks: tuple[tuple[GroupAxes, HooksFactory], ...] = ()
    data_axes: tuple[str, ...] = ()
    sharded_axes: tuple[str, ...] = ()
    experts: frozenset[int] = frozenset()
    expert_axis: str = ""
    kept_until: Mapping[int, frozenset[int]] = field(default_factory=dict)
    gradient_dtype: str | None = None
    training: bool = True
    notes: tuple[str, ...] = ()
    gpu: str = ""
    stack: Stack | None = None
    batch_size: int = 0
    deduplicate: bool = True
    slowdown: Callable[[int, Operator], float] | None = None
    buffers: tuple[tuple[str, float], ...] = ()
    iteration: int = 0
    coordinates: tuple[tuple[str, int], ...] = ()
    stage_starts: tuple[int, ...] | None = None

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of all stages and phases: all forward ones, then backward, then the optimizer's."""
        return tuple([operator for block in self.blocks for operator in block.operators])

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all stages and phases, in the same order."""
        phases = ("forward", "backward", "optimizer")
        stages = (getattr(stage, phase) for phase in phases for stage in self.stages)
        return tuple(chain.from_iterable((*stages, *self.optimizers)))

    def replica_axes(self, axes: tuple[str, ...], *, experts: bool) -> GroupAxes:
        """Return the group of the ranks along some data axes that hold the same dense parameters, or the same experts."""
        return ExpertReplicas(axes, self.expert_axis) if experts else axes

    def coordinate(self, axis: str) -> int | None:
        """Return the coordinate along an axis of the ranks that run the program; None where all do."""
        return dict(self.coordinates).get(axis)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a replica's batch."""
        return self.schedule.micro_batches

    def part(self, stage: int, phase: ActionPhase) -> tuple[Block, ...]:
        """Return the blocks that an action of the schedule runs. Transfers between stages belong to the input part."""
        if phase == "forward":
            return self.stages[stage].forward
        whole = self.stages[stage].backward
        if phase == "backward":
            return whole

        def belongs(item: BlockItem) -> bool:
            if isinstance(item, Operator):
                return (item.id in self.weight_part) == (phase == "weight")
            return (isinstance(item, Communicate) and item.of_weights) == (phase == "weight")

        found = (replace(block, items=tuple(filter(belongs, block.items))) for block in whole)
        return tuple(block for block in found if block.items)

    def held(self, pipeline_rank: int) -> Stage:
        """Return all stages of a pipeline rank as one.

        Its backward blocks are in the order in which they run for the last time, in which gradients become complete.
        """
        numbers = self.schedule.stages_of(pipeline_rank)
        if len(numbers) == 1 and not self.weight_part:
            return self.stages[numbers[0]].with_optimizer(self._optimizer_of(pipeline_rank))
        last = self.schedule.last(pipeline_rank)
        backward: list[Block] = []
        for (stage, half), action in last.items():
            if last[stage, "input"] != last[stage, "weight"]:
                backward += self.part(stage, half)
            elif half == "input":
                backward += self.part(stage, action.phase)
        forward = tuple(block for number in numbers for block in self.stages[number].forward)
        return Stage(forward, tuple(backward), self._optimizer_of(pipeline_rank))

    def _optimizer_of(self, pipeline_rank: int) -> tuple[Block, ...]:
        return self.optimizers[pipeline_rank] if self.optimizers else self.stages[0].optimizer

    def reshaped(self, shapes: Mapping[int, Operator], *, note: str) -> Program:
        """Return the program with operators in other shapes, by id, and their predicted times, which ``note`` tells."""
        before = self.operators
        after = tuple(shapes.get(operator.id, operator) for operator in before)
        if after == before:
            return self
        priced = reprice(before, after, self.model, self.gpu, deduplicate=self.deduplicate)
        changed = {new.id: new for old, new in zip(before, priced, strict=True) if new is not old}
        found = self.with_operators(changed)
        return found.noted(note, *found.stand_in_notes())

    def with_operators(self, operators: Mapping[int, Operator]) -> Program:
        """Return the program with other operators, by id, and with collectives divided as these are.

        Blocks without any of them stay the same objects.
        """
        parts = [*(stage.blocks for stage in self.stages), *self.optimizers]
        holding = [one for part in parts for one in part if not operators.keys().isdisjoint(one.operator_ids)]
        old = {one.id: one for block in holding for one in block.operators if one.id in operators}

        def changed(item: BlockItem) -> BlockItem:
            if isinstance(item, Operator):
                return operators.get(item.id, item)
            return item.divided(old, operators) if isinstance(item, Communicate) and item.operator in old else item

        def blocks(before: tuple[Block, ...]) -> tuple[Block, ...]:
            return tuple(
                [
                    block if old.keys().isdisjoint(block.operator_ids) else block.of(tuple(map(changed, block.items)))
                    for block in before
                ]
            )

        return self._with_blocks(blocks)

    def stand_in_notes(self) -> Iterator[str]:
        """Yield the note on a GPU that the roofline does not know, where it has priced an operator."""
        if gpus.get(self.gpu) is None and any("roofline" in (one.predicted_by or "") for one in self.operators):
            yield (
                f"the trace's GPU '{self.gpu}' is not in the catalogue: the roofline assumes the proportions of an "
                f"{STAND_IN}, with a larger error; describe it, with this name, in a file: --gpu my_gpu.yaml"
            )

    def rewritten(self, items: Callable[[Block], Iterable[BlockItem]]) -> Program:
        """Return the program with the items of each block replaced."""

        def blocks(before: tuple[Block, ...]) -> tuple[Block, ...]:
            return tuple(block.of(tuple(items(block))) for block in before)

        return self._with_blocks(blocks)

    def _with_blocks(self, blocks: Callable[[tuple[Block, ...]], tuple[Block, ...]]) -> Program:
        stages = tuple(Stage(blocks(s.forward), blocks(s.backward), blocks(s.optimizer)) for s in self.stages)
        return replace(self, stages=stages, optimizers=tuple(blocks(before) for before in self.optimizers))

    def noted(self, *notes: str) -> Program:
        """Return the program with more notes, each once."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def _first(indices: Iterable[int | None]) -> int | None:
    return next((index for index in indices if index is not None), None)
