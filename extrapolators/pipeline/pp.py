"""Pipeline parallelism: each stage has some of the layers, and micro-batches go through the stages one behind the other.

Which rank runs what when is the schedule's (``triosim.extrapolators.pipeline.schedules``); GPipe's is the default. Stages are
contiguous and balanced by the time of their layers, or start where the user says; a rank may have several. Every tensor that
one stage makes and another uses is sent there, also along skip connections, and its gradient comes back. The optimizer runs
once.

Where tensor parallelism leaves the same activations on several GPUs, each can send its part alone, and those that receive
gather the whole (Narayanan et al. 2021, section 4.1: scatter/gather): ``sends=parts``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from triosim.compute.pricing.repricing import scaled
from triosim.config import Option
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.extrapolator import PIPELINE_ORDER, Extrapolator
from triosim.extrapolators.core.flags import BALANCE_STAGES, GRADIENT_DTYPE, SCHEDULE, STAGES
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import (
    Await,
    Block,
    BlockItem,
    Communicate,
    ExchangeWithRank,
    Program,
    ReceiveFromStage,
    SendToStage,
    Stage,
    TransferKey,
)
from triosim.extrapolators.core.schedule_table import ScheduleTable
from triosim.extrapolators.pipeline.backward_split import split_backward
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.extrapolators.pipeline.stages import (
    balanced_starts,
    block_seconds,
    equal_starts,
    named_starts,
    whole_units,
)
from triosim.sharding.dataflow import Dataflow, Value
from triosim.sharding.parameters import owners, parameter_storages
from triosim.trace import Operator, Tensor

T = TypeVar("T")

#: The axis whose ranks have the same activations between layers.
_COPIES = "tp"


class PipelineParallel(Extrapolator):
    """The parallelism ``pp``: divides the layers into stages and runs them by a schedule."""

    axis = "pp"
    level = "schedule"
    identical_ranks = False
    order = PIPELINE_ORDER
    options = (
        STAGES,
        BALANCE_STAGES,
        SCHEDULE,
        GRADIENT_DTYPE,
        Option(
            "stage_division",
            "choice",
            "balanced",
            "pp: whether stages begin anywhere, balanced by time, or at whole transformer layers: balanced as well, or "
            "as many in each stage.",
            choices=("balanced", "whole", "equal"),
            key="stages",
        ),
        Option(
            "sends",
            "choice",
            "whole",
            "pp with tp: whether each GPU sends whole activations to the next stage, or its part of them.",
            choices=("whole", "parts"),
        ),
    )

    @property
    def default_micro_batches(self) -> int:
        """As many as ranks, which keeps every one busy at some time, or as the schedule needs."""
        return self._schedule.micro_batches(self.size)

    @cached_property
    def _schedule(self) -> PipelineSchedule:
        return chosen_schedule(self.config)

    @property
    def read_options(self) -> tuple[Option, ...]:
        """Its own, and those of the schedule."""
        return (*self.options, *self._schedule.options)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program divided into stages."""
        if len(program.stages) != 1:
            raise OptionError("a program that has stages already cannot be divided into stages", fix="use one pipeline")
        schedule = table_of(self._schedule, self.size, program.micro_batches, training=program.training)
        if schedule.splits:
            program = split_backward(program)
        starts = program.stage_starts
        if starts is None:  # where ranks or iterations have other programs, layers stay where they are
            starts = tuple(self._starts(program, schedule, mesh))
        pipeline = Pipeline(program, starts, schedule, self._parts(mesh))
        return replace(
            program,
            stages=pipeline.stages(),
            optimizers=pipeline.optimizers(),
            stage_axis=self.axis,
            stage_starts=starts,
            schedule=schedule,
        )

    def _parts(self, mesh: Mesh) -> int:
        """Return in how many parts the ranks of ``tp`` send what crosses."""
        if self.config.sends == "whole":
            return 1
        if self.config.sequence_parallel:
            raise OptionError(
                "with sequence parallelism each GPU sends its part already",
                where="--option sends",
                fix="leave out --sequence-parallel",
            )
        parts = next((axis.size for axis in mesh.axes if axis.name == _COPIES), 1)
        if parts == 1:
            raise OptionError(
                "there is no tp whose GPUs could each send a part",
                where="--option sends",
                fix="leave it out, or add tp",
            )
        if self.config.stages is None and self.config.stage_division == "balanced":
            raise OptionError(
                "balanced stages may begin inside a layer, where each GPU holds its part alone",
                where="--option sends",
                fix="add --option stages=whole",
            )
        return parts

    def _starts(self, program: Program, schedule: ScheduleTable, mesh: Mesh) -> list[int]:
        """Return the first block of each stage."""
        way = self.config.stage_division
        whole = program.stages[0]
        if self.config.stages is not None:
            if way != "balanced":
                raise OptionError(f"--stages and --option stages={way} both say where stages begin", where="stages")
            return named_starts(whole.forward, self.config.stages, schedule.stages)
        if way == "equal":
            if self.config.balance_stages:
                raise OptionError(
                    "--option stages=equal gives each stage as many layers, which balances nothing",
                    where="--balance-stages",
                )
            return equal_starts(whole.forward, schedule.stages)
        by_stage = self._by_stage(program, schedule, mesh)
        seconds = block_seconds(whole)
        if way == "balanced":
            return balanced_starts(seconds, schedule.stages, by_stage)
        first = whole_units(whole.forward)
        rows = None if by_stage is None else [_added_up(row, first) for row in by_stage]
        return [first[place] for place in balanced_starts(_added_up(seconds, first), schedule.stages, rows)]

    def _by_stage(self, program: Program, schedule: ScheduleTable, mesh: Mesh) -> list[list[float]] | None:
        """Return the blocks' times on the slowest GPU of each stage, where unequal GPUs are to be taken into account."""
        slowdown = program.slowdown
        if slowdown is None or not self.config.balance_stages:
            return None
        whole = program.stages[0]
        found: list[list[float]] = [[] for _ in range(schedule.stages)]
        for rank in range(mesh.world):
            seconds = block_seconds(whole, partial(slowdown, rank))
            for stage in schedule.stages_of(mesh.coordinate(self.axis, rank)):
                found[stage] = max(found[stage], seconds, key=math.fsum)
        return found


def _added_up(seconds: Sequence[float], starts: Sequence[int]) -> list[float]:
    """Times of blocks as those of runs of them."""
    return [math.fsum(seconds[start:end]) for start, end in zip(starts, (*starts[1:], len(seconds)), strict=True)]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that one stage makes and another uses: its bytes, the operator that makes it, the ones that use it there."""

    maker: int
    source: int
    destination: int
    users: frozenset[int]
    nbytes: float
    differentiable: bool


class Pipeline:
    """Divides a program of one stage into several; what crosses goes in so many ``parts``, each from another rank."""

    def __init__(self, program: Program, starts: Sequence[int], schedule: ScheduleTable, parts: int = 1) -> None:
        self._program = program
        self._whole = program.stages[0]
        self._starts = starts
        self._count = len(starts)
        self._schedule = schedule
        self._parts = parts
        self._forward = _dealt(self._whole.forward, map(self._stage, range(len(self._whole.forward))), self._count)
        # What is computed again in the backward pass makes nothing new, though its operators are forward ones.
        again = (op for block in self._whole.backward for op in block.operators if op.phase == "backward")
        self._flow = Dataflow((*(op for block in self._whole.forward for op in block.operators), *again))
        self._stage_of = {  # of each forward operator
            op.id: self._stage(i) for i, block in enumerate(self._whole.forward) for op in block.operators
        }

    def _stage(self, block: int) -> int:
        return sum(start <= block for start in self._starts) - 1

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages with their sends and receives."""
        stages = map(self._stage, self._whole.forward_blocks_of_backward())
        backward = _dealt(self._whole.backward, stages, self._count)
        crossings = self._crossings()
        self._check(crossings)
        activations, gradients = self._forward_sends(crossings), self._backward_sends(crossings, backward)
        return tuple(
            Stage(
                self._with_transfers(self._forward[stage], stage, activations),
                self._with_transfers(backward[stage], stage, gradients),
            )
            for stage in range(self._count)
        )

    def _crossings(self) -> list[Crossing]:
        """The tensors that cross, in the order in which they are made. What depends on no data every stage makes for itself."""
        sizes: dict[Value, float] = {}
        used: dict[tuple[Value, int], dict[int, Tensor]] = {}
        users: dict[tuple[Value, int], set[int]] = {}
        for operator in self._flow.forward:
            stage = self._stage_of[operator.id]
            for value, tensor in (*self._flow.writes[operator.id], *self._flow.reads[operator.id]):
                sizes[value] = max(sizes.get(value, 0.0), tensor.nbytes)
            for value, tensor in self._flow.reads[operator.id]:
                if self._stage_of[value.producer] != stage and value not in self._flow.constants:
                    used.setdefault((value, stage), {})[tensor.id] = tensor
                    users.setdefault((value, stage), set()).add(operator.id)
        order = {operator.id: index for index, operator in enumerate(self._flow.forward)}
        found = [
            Crossing(
                value.producer,
                self._stage_of[value.producer],
                stage,
                frozenset(users[value, stage]),
                # Views of one storage that are used apart (the q, k, v of one product) come to no more than the storage.
                min(float(sum(tensor.nbytes for tensor in tensors.values())), sizes[value]),
                value in self._flow.differentiable,
            )
            for (value, stage), tensors in used.items()
        ]
        return sorted(found, key=lambda crossing: (order[crossing.maker], crossing.destination))

    def _check(self, crossings: Sequence[Crossing]) -> None:
        for stage in range(1, self._count):
            if not any(c.source < stage <= c.destination for c in crossings):
                layer = self._whole.forward[self._starts[stage]].layer
                raise TraceError(
                    f"no tensor that is made before layer '{layer}' is used there or later, so nothing would be sent to "
                    f"pipeline stage {stage}",
                    fix="capture the trace with the tensors of every operator, or start the stage elsewhere",
                )

    def _forward_sends(self, crossings: Sequence[Crossing]) -> list[StageTransfer]:
        return [
            StageTransfer(
                c.source, c.destination, c.nbytes, after=c.maker, before=c.users, key=TransferKey("activation", index)
            )
            for index, c in enumerate(crossings)
        ]

    def _backward_sends(
        self, crossings: Sequence[Crossing], backward: Sequence[Sequence[Block]]
    ) -> list[StageTransfer]:
        """The gradients on their way back, each after the last operator that contributes to it."""
        orders = [{op.id: i for i, op in enumerate(op for b in blocks for op in b.operators)} for blocks in backward]
        inputs = {op.id: op.inputs for blocks in backward for block in blocks for op in block.operators}
        found = []
        for index, crossing in enumerate(crossings):
            order, home = orders[crossing.destination], orders[crossing.source]
            if not (crossing.differentiable and order and home):
                continue
            makers = [op for user in crossing.users for op in self._flow.backward.get(user, ()) if op.id in order]
            last = max((op.id for op in makers) if makers else order, key=order.__getitem__)
            made = {tensor.storage for op in makers for tensor in op.outputs}
            needed_by = {op.id for op in self._flow.backward.get(crossing.maker, ())}
            needed_by.update(op for op in home if any(t.storage in made for t in inputs[op]))
            found.append(
                StageTransfer(
                    crossing.destination,
                    crossing.source,
                    crossing.nbytes,
                    after=last,
                    before=frozenset(needed_by),
                    key=TransferKey("gradient", index),
                    place=order[last],
                )
            )
        return sorted(found, key=lambda transfer: transfer.place)

    def _with_transfers(
        self, blocks: Sequence[Block], stage: int, transfers: Sequence[StageTransfer]
    ) -> tuple[Block, ...]:
        """The blocks of a stage with what it receives, awaited where it is first used, and what it sends."""
        coming = [transfer for transfer in transfers if transfer.destination == stage]
        going: dict[int, list[StageTransfer]] = {}
        for transfer in transfers:
            if transfer.source == stage:
                going.setdefault(transfer.after, []).append(transfer)
        keys = {i.key for block in blocks for i in block.items if isinstance(i, Communicate) and i.key is not None}
        on_its_way: list[TransferKey] = []  # collectives that nothing in this stage has awaited yet
        awaited: set[TransferKey] = set()
        written: list[Block] = []
        for block in blocks:
            items: list[BlockItem] = [] if written else [ReceiveFromStage(t.source, t.key) for t in coming]
            for item in _with_sends_last(block.items, going, self._parts):
                if isinstance(item, Operator):
                    for transfer in coming:
                        # A backward pass begins with what it recomputes, once the gradient of its output is there.
                        first = item.id in transfer.before or not transfer.before or item.recomputed
                        if transfer.key not in awaited and first:
                            awaited.add(transfer.key)
                            items += self._arrives(transfer)
                if isinstance(item, Await):
                    if item.key not in keys:
                        continue  # issued by another stage, which waits for it before it sends
                    on_its_way = [key for key in on_its_way if key != item.key]
                if isinstance(item, Communicate) and item.key is not None:
                    on_its_way.append(item.key)
                if isinstance(item, SendToStage):
                    items += [Await(key) for key in on_its_way]
                    on_its_way = []
                items.append(item)
            written.append(replace(block, items=tuple(items)))
        late = tuple(item for transfer in coming if transfer.key not in awaited for item in self._arrives(transfer))
        if late:
            written[-1] = replace(written[-1], items=(*written[-1].items, *late))
        return tuple(written)

    def _arrives(self, transfer: StageTransfer) -> Iterator[BlockItem]:
        yield Await(transfer.key)
        if self._parts > 1:
            yield Communicate("all_gather", transfer.nbytes, _COPIES)

    # ---- the optimizer ------------------------------------------------------------------------------------------

    def optimizers(self) -> tuple[tuple[Block, ...], ...]:
        """Return the optimizer of each place of the schedule: that of the parameters that its stages use."""
        held = [
            tuple(block for stage in self._schedule.stages_of(place) for block in self._forward[stage])
            for place in range(len(self._schedule.rows))
        ]
        return tuple(
            (*exchange, *part) for exchange, part in zip(self._exchanges(held), self._optimizer(held), strict=True)
        )

    def _optimizer(self, held: Sequence[Sequence[Block]]) -> list[tuple[Block, ...]]:
        """Each place's part of the optimizer."""
        operators = [op for block in self._whole.optimizer for op in block.operators]
        owner = owners(operators, parameter_storages(self._program.operators))
        used = [
            {t.storage: t for b in blocks for op in b.operators for t in op.inputs if t.category == "parameter"}
            for blocks in held
        ]
        nbytes = [float(sum(tensor.nbytes for tensor in tensors.values())) for tensors in used]
        every = {storage: tensor for tensors in used for storage, tensor in tensors.items()}
        total = sum(tensor.nbytes for tensor in every.values())
        shares = [one / total if total else 1 / len(held) for one in nbytes]
        known = {op.id: sum(t.nbytes for t in (*op.inputs, *op.outputs) if t.id in owner) for op in operators}
        return [
            tuple(
                replace(block, items=tuple(items))
                for block in self._whole.optimizer
                if (items := [p for i in block.items if (p := _part(i, owner, mine, share, known)) is not None])
            )
            for mine, share in zip(used, shares, strict=True)
        ]

    def _exchanges(self, held: Sequence[tuple[Block, ...]]) -> list[tuple[Block, ...]]:
        """Places that use the same parameters (a tied embedding, a second copy) add up its gradients before they update it.

        Each sends its own to the other, which for two ranks is what a ring all-reduce comes to.
        """
        used = [{t.storage for t in Stage(tuple(blocks)).parameters} for blocks in held]
        if not self._program.training or sum(map(len, used)) == len(set().union(*used)):
            return [()] * len(held)
        nbytes = [
            {
                gradient.parameter.storage: gradient.nbytes
                for gradient in Stage(blocks, self._whole.backward).gradients(self._program.gradient_dtype)
            }
            for blocks in held
        ]
        found: list[tuple[Block, ...]] = []
        for place, mine in enumerate(nbytes):
            shared = {
                other: math.fsum(size for storage, size in mine.items() if storage in its)
                for other, its in enumerate(nbytes)
                if other != place and mine.keys() & its.keys()
            }
            items = [
                ExchangeWithRank(other, size, TransferKey("shared gradients", other)) for other, size in shared.items()
            ]
            awaits = [Await(item.key) for item in items]
            found.append((Block("shared parameters", "optimizer", (*items, *awaits)),) if items else ())
        return found


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """Bytes from one stage to another: after one operator, before others (before the first, where none is named)."""

    source: int
    destination: int
    nbytes: float
    after: int
    before: frozenset[int]
    key: TransferKey
    place: int = 0


def _dealt(blocks: Sequence[T], stages: Iterable[int], count: int) -> list[list[T]]:
    dealt: list[list[T]] = [[] for _ in range(count)]
    for block, stage in zip(blocks, stages, strict=True):
        dealt[stage].append(block)
    return dealt


def _with_sends_last(
    items: Sequence[BlockItem], going: Mapping[int, Sequence[StageTransfer]], parts: int
) -> Iterable[BlockItem]:
    """The items with each send after the operator that makes the tensor, and after the blocking collectives upon it."""
    due: list[SendToStage] = []
    for item in items:
        if isinstance(item, Operator) or (isinstance(item, Await) and due):
            yield from due
            due = []
        yield item
        if isinstance(item, Operator):
            due = [SendToStage(t.destination, t.nbytes / parts, t.key) for t in going.get(item.id, ())]
    yield from due


def _part(
    item: BlockItem, owner: Mapping[int, int], parameters: Mapping[int, Tensor], share: float, known: Mapping[int, int]
) -> BlockItem | None:
    """The part of an optimizer's item that is about some parameters, with as much of its time as of its ``known`` bytes.

    Known are those of tensors that are about a parameter; of an operator that has none, it is a ``share``.
    """
    if not isinstance(item, Operator):
        return item
    if not any(tensor.id in owner for tensor in (*item.inputs, *item.outputs)):
        return scaled(item, share)

    def mine(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([tensor for tensor in tensors if owner.get(tensor.id) in parameters])

    inputs, outputs = mine(item.inputs), mine(item.outputs)
    if not inputs and not outputs:
        return None
    if len(inputs) == len(item.inputs) and len(outputs) == len(item.outputs):
        return item
    nbytes = known[item.id]
    part = sum(tensor.nbytes for tensor in (*inputs, *outputs)) / nbytes if nbytes else share
    return scaled(item.with_tensors(inputs, outputs), part)
