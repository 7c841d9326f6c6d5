"""Pipeline parallelism: the layers are divided into stages, through which micro-batches pass one after another.

A schedule (``triosim.extrapolators.pipeline.schedules``) says which rank runs what when; GPipe's is the default. Stages are
contiguous and balanced by the time of their layers, or start where the user says; a rank may have several. Every tensor that
one stage makes and another uses is sent there, also along skip connections, and its gradient is sent back.

Where tensor parallelism leaves the same activations on several GPUs, each can send a part of them, and the receiving GPUs
gather the whole (Narayanan et al. 2021, section 4.1: scatter/gather): ``sends=parts``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

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
from triosim.extrapolators.core.program.kept_programs import BlocksSource, Kept
from triosim.extrapolators.core.schedule_table import ScheduleTable
from triosim.extrapolators.pipeline.backward_split import split_backward
from triosim.extrapolators.pipeline.divided_optimizer import DividedOptimizer
from triosim.extrapolators.pipeline.schedule import PipelineSchedule
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule, table_of
from triosim.extrapolators.pipeline.stages import (
    block_seconds,
    forward_blocks_of_backward,
    stage_starts,
    too_many_stages,
    whole_units,
)
from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.trace import Operator, Tensor

#: The axis whose ranks hold the same activations between layers.
_TENSOR_AXIS = "tp"

#: Stages of this process: points of a search that differ in schedule or data parallelism share them.
_STAGES = Kept[tuple[Stage, ...]](8)
#: The dataflow of programs, which is the same in however many stages.
_FLOWS = Kept[Dataflow](2)
#: Optimizers of pipeline ranks, which many points share that differ in their micro-batches.
_OPTIMIZERS = Kept[tuple[tuple[Block, ...], ...]](128)
#: What pipeline ranks exchange before the update, by the blocks of all.
_EXCHANGES = Kept[list[tuple[Block, ...]]](16)


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
            "auto",
            "pp: balanced: stages of equal time that begin at any layer; whole: the same, but only at whole repeated modules "
            "(a transformer's layers); auto: whole where there are enough of them, else balanced; equal: the same number of "
            "repeated modules in each stage.",
            choices=("auto", "whole", "balanced", "equal"),
            key="stages",
        ),
        Option(
            "sends",
            "choice",
            "whole",
            "pp with tp: whether each GPU sends whole activations to the next stage, or only its part of them.",
            choices=("whole", "parts"),
        ),
    )

    @property
    def default_micro_batches(self) -> int:
        """The schedule's default."""
        return self._schedule.micro_batches(self.size)

    @cached_property
    def _schedule(self) -> PipelineSchedule:
        return chosen_schedule(self.config)

    @property
    def read_options(self) -> tuple[Option, ...]:
        """The options of pipeline parallelism and those of the schedule."""
        return (*self.options, *self._schedule.options)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program divided into stages."""
        if len(program.stages) != 1:
            raise OptionError("a program that has stages cannot be divided into stages again", fix="use one pipeline")
        schedule = table_of(self._schedule, self.size, program.micro_batches, training=program.training)
        if schedule.splits:
            program = split_backward(program)
        starts = program.stage_starts
        if starts is None:  # known already where ranks or iterations have different programs
            seconds_by_stage = self._seconds_by_stage(program, schedule, mesh)
            starts = tuple(stage_starts(self.config, program.stages[0], schedule.stages, seconds_by_stage))
        whole, parts = program.stages[0], self._parts(mesh, program.stages[0].forward, starts)
        pipeline = Pipeline(program, starts, schedule, parts)
        chosen = self.config.stages is None and self.config.stage_division == "auto"
        if chosen and (note := too_many_stages(whole.forward, starts)):
            program = program.noted(f"pp: {note}")
        return replace(
            program,
            stages=_STAGES.get(BlocksSource((starts, parts), (whole.forward, whole.backward)), pipeline.stages),
            optimizers=pipeline.optimizers(),
            stage_axis=self.axis,
            stage_starts=starts,
            schedule=schedule,
        )

    def _parts(self, mesh: Mesh, blocks: Sequence[Block], starts: Sequence[int]) -> int:
        """Return into how many parts the ranks of ``tp`` divide what they send."""
        if self.config.sends == "whole":
            return 1
        if self.config.sequence_parallel:
            raise OptionError(
                "with sequence parallelism each GPU sends its part already",
                where="--option sends",
                fix="leave out --sequence-parallel",
            )
        parts = next((axis.size for axis in mesh.axes if axis.name == _TENSOR_AXIS), 1)
        if parts == 1:
            raise OptionError(
                "without tp no two GPUs hold the same activations, so none can send a part of them",
                where="--option sends",
                fix="leave it out, or add tp",
            )
        if self.config.stages is None and not set(starts) <= set(whole_units(blocks)):
            raise OptionError(
                "a stage begins inside a layer, where each GPU holds only its shard",
                where="--option sends",
                fix="use --option stages=whole",
            )
        return parts

    def _seconds_by_stage(self, program: Program, schedule: ScheduleTable, mesh: Mesh) -> list[Sequence[float]] | None:
        """Return the blocks' times on the slowest GPU of each stage, with ``balance_stages`` on unequal GPUs."""
        slowdown = program.slowdown
        if slowdown is None or not self.config.balance_stages:
            return None
        whole = program.stages[0]
        found: list[Sequence[float]] = [[] for _ in range(schedule.stages)]
        for rank in range(mesh.world):
            seconds = block_seconds(whole, partial(slowdown, rank))
            for stage in schedule.stages_of(mesh.coordinate(self.axis, rank)):
                found[stage] = max(found[stage], seconds, key=math.fsum)
        return found


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """A tensor that one stage makes and another uses, or its gradient, which goes back.

    It is sent after one operator, and awaited before others (before the first, where none is named).
    """

    key: TransferKey
    source: int
    destination: int
    nbytes: float
    after: int
    before: frozenset[int]
    has_gradient: bool = False


class Pipeline:
    """Divides a program of one stage into several; each transfer is divided into ``parts``, which different ranks send."""

    def __init__(self, program: Program, starts: Sequence[int], schedule: ScheduleTable, parts: int = 1) -> None:
        self._program = program
        self._whole = program.stages[0]
        self._starts = starts
        self._schedule = schedule
        self._parts = parts
        self._forward = self._by_stage(self._whole.forward, range(len(self._whole.forward)))

    @cached_property
    def _flow(self) -> Dataflow:
        return _FLOWS.get(BlocksSource((), (self._whole.forward, self._whole.backward)), self._find_flow)

    def _find_flow(self) -> Dataflow:
        # What is computed again in the backward pass makes nothing new, though its operators are forward ones.
        again = (op for block in self._whole.backward for op in block.operators if op.phase == "backward")
        return Dataflow((*(op for block in self._whole.forward for op in block.operators), *again))

    @cached_property
    def _stage_of(self) -> dict[int, int]:
        """The stage of each forward operator."""
        return {
            op.id: stage for stage, blocks in enumerate(self._forward) for block in blocks for op in block.operators
        }

    def _by_stage(self, blocks: Sequence[Block], forward_blocks: Iterable[int]) -> list[list[Block]]:
        """Return each stage's blocks, given the forward block to which each belongs."""
        found: list[list[Block]] = [[] for _ in self._starts]
        for block, index in zip(blocks, forward_blocks, strict=True):
            found[bisect_right(self._starts, index) - 1].append(block)
        return found

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages with their sends and receives."""
        backward = self._by_stage(self._whole.backward, forward_blocks_of_backward(self._whole))
        activations = self._activations()
        self._check(activations)
        gradients = self._gradients(activations, backward)
        return tuple(
            Stage(
                tuple(_TransferWriter(stage, activations, self._parts).write(self._forward[stage])),
                tuple(_TransferWriter(stage, gradients, self._parts).write(backward[stage])),
            )
            for stage in range(len(self._starts))
        )

    def _activations(self) -> list[StageTransfer]:
        """The activations that are sent, in the order in which they are made; constants are made in each stage."""
        sizes: dict[StoredValue, float] = {}
        used: dict[tuple[StoredValue, int], dict[int, Tensor]] = {}
        users: dict[tuple[StoredValue, int], set[int]] = {}
        for operator in self._flow.forward:
            stage = self._stage_of[operator.id]
            for value, tensor in (*self._flow.writes[operator.id], *self._flow.reads[operator.id]):
                sizes[value] = max(sizes.get(value, 0.0), tensor.nbytes)
            for value, tensor in self._flow.reads[operator.id]:
                if self._stage_of[value.producer] != stage and value not in self._flow.constants:
                    used.setdefault((value, stage), {})[tensor.id] = tensor
                    users.setdefault((value, stage), set()).add(operator.id)
        order = {operator.id: index for index, operator in enumerate(self._flow.forward)}
        return [
            StageTransfer(
                TransferKey("activation", index),
                self._stage_of[value.producer],
                stage,
                # Views of one storage that are used apart (the q, k, v of one product) come to no more than the storage.
                min(float(sum(tensor.nbytes for tensor in used[value, stage].values())), sizes[value]),
                after=value.producer,
                before=frozenset(users[value, stage]),
                has_gradient=value in self._flow.differentiable,
            )
            for index, (value, stage) in enumerate(sorted(used, key=lambda pair: (order[pair[0].producer], pair[1])))
        ]

    def _check(self, activations: Sequence[StageTransfer]) -> None:
        for stage in range(1, len(self._starts)):
            if not any(one.source < stage <= one.destination for one in activations):
                layer = self._whole.forward[self._starts[stage]].layer
                raise TraceError(
                    f"no tensor that is made before layer '{layer}' is used there or later, so nothing would be sent to "
                    f"pipeline stage {stage}",
                    fix="capture the trace with the tensors of every operator, or start the stage elsewhere",
                )

    def _gradients(
        self, activations: Sequence[StageTransfer], backward: Sequence[Sequence[Block]]
    ) -> list[StageTransfer]:
        """The gradients that are sent back, each after the last operator that contributes to it."""
        orders = [{op.id: i for i, op in enumerate(op for b in blocks for op in b.operators)} for blocks in backward]
        inputs = {op.id: op.inputs for blocks in backward for block in blocks for op in block.operators}
        found: list[tuple[int, StageTransfer]] = []
        for sent in activations:
            order, home = orders[sent.destination], orders[sent.source]
            if not (sent.has_gradient and order and home):
                continue
            makers = [op for user in sent.before for op in self._flow.backward.get(user, ()) if op.id in order]
            last = max((op.id for op in makers) if makers else order, key=order.__getitem__)
            made = {tensor.storage for op in makers for tensor in op.outputs}
            needed_by = {op.id for op in self._flow.backward.get(sent.after, ())}
            needed_by.update(op for op in home if any(tensor.storage in made for tensor in inputs[op]))
            key = TransferKey("gradient", sent.key.number)
            gradient = StageTransfer(key, sent.destination, sent.source, sent.nbytes, last, frozenset(needed_by))
            found.append((order[last], gradient))
        return [gradient for _, gradient in sorted(found, key=lambda pair: pair[0])]

    # ---- the optimizer ------------------------------------------------------------------------------------------

    def optimizers(self) -> tuple[tuple[Block, ...], ...]:
        """Return the optimizer of each pipeline rank: that of the parameters that its stages use."""
        blocks = [
            tuple(block for stage in self._schedule.stages_of(rank) for block in self._forward[stage])
            for rank in range(len(self._schedule.rows))
        ]
        source = BlocksSource((self._program.training, self._program.gradient_dtype), (*blocks, self._whole.backward))
        exchanges = _EXCHANGES.get(source, lambda: self._exchanges(blocks))
        return tuple((*exchange, *part) for exchange, part in zip(exchanges, self._optimizer(blocks), strict=True))

    def _optimizer(self, blocks_of_ranks: Sequence[Sequence[Block]]) -> tuple[tuple[Block, ...], ...]:
        """Each pipeline rank's part of the optimizer, which follows from the parameters that ranks use."""
        used = tuple(
            {use.tensor.storage: use.tensor for b in blocks for use in b.tensors.uses} for blocks in blocks_of_ranks
        )
        storages: dict[int, int] = {}  # of parameters, by the ids that they go by
        for block in self._program.blocks:
            storages |= block.tensors.parameters | block.tensors.views
        source = BlocksSource((used, storages), (self._whole.optimizer,))
        return _OPTIMIZERS.get(source, lambda: DividedOptimizer(self._whole.optimizer, used, storages).parts())

    def _exchanges(self, blocks_of_ranks: Sequence[tuple[Block, ...]]) -> list[tuple[Block, ...]]:
        """Pipeline ranks that use the same parameters (a tied embedding, a second copy) sum the gradients before the update.

        Each sends its own to the other; between two ranks a ring all-reduce sends the same bytes.
        """
        used = [{tensor.storage for tensor in Stage(blocks).parameters} for blocks in blocks_of_ranks]
        ranks = Counter(chain.from_iterable(used))
        several = {storage for storage, count in ranks.items() if count > 1}
        if not self._program.training or not several:
            return [()] * len(used)
        nbytes = [
            {
                gradient.parameter.storage: gradient.nbytes
                for gradient in Stage(blocks, self._whole.backward).gradients(self._program.gradient_dtype)
            }
            if several & mine
            else {}
            for blocks, mine in zip(blocks_of_ranks, used, strict=True)
        ]
        found: list[tuple[Block, ...]] = []
        for rank, mine in enumerate(nbytes):
            shared = {
                other: math.fsum(size for storage, size in mine.items() if storage in its)
                for other, its in enumerate(nbytes)
                if other != rank and mine.keys() & its.keys()
            }
            items = [
                ExchangeWithRank(other, size, TransferKey("shared gradients", other)) for other, size in shared.items()
            ]
            awaits = [Await(item.key) for item in items]
            found.append((Block("shared parameters", "optimizer", (*items, *awaits)),) if items else ())
        return found


class _TransferWriter:
    """Writes what a stage receives and sends into the blocks of one of its passes."""

    def __init__(self, stage: int, transfers: Sequence[StageTransfer], parts: int) -> None:
        self._parts = parts
        self._received = [one for one in transfers if one.destination == stage]
        self._awaited: set[TransferKey] = set()
        self._sent: dict[int, list[StageTransfer]] = {}  # by the operator after which they are sent
        for one in transfers:
            if one.source == stage:
                self._sent.setdefault(one.after, []).append(one)
        self._issued: set[TransferKey] = set()  # the collectives that this stage issues
        self._pending: list[TransferKey] = []  # those that nothing has awaited yet

    def write(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """Yield the blocks with what is received, awaited where it is first used, and what is sent."""
        items = (item for block in blocks for item in block.items)
        self._issued = {item.key for item in items if isinstance(item, Communicate) and item.key is not None}
        for index, block in enumerate(blocks):
            if 0 < index < len(blocks) - 1 and self._passes(block):
                yield block
                continue
            written: list[BlockItem] = []
            if index == 0:
                written += [ReceiveFromStage(one.source, one.key) for one in self._received]
            for item in self._with_sends(block.items):
                written += self._item(item)
            if index == len(blocks) - 1:
                written += self._arrivals(None)
            yield block.of(tuple(written))

    def _passes(self, block: Block) -> bool:
        """Whether a block stays as it is: it is of operators alone, and none of them sends or waits."""
        if len(block.operators) < len(block.items) or not self._sent.keys().isdisjoint(block.operator_ids):
            return False
        due = (one for one in self._received if one.key not in self._awaited)
        is_first = any(operator.recomputed for operator in block.operators)
        return not any(is_first or not one.before or one.before & block.operator_ids for one in due)

    def _item(self, item: BlockItem) -> Iterator[BlockItem]:
        """Yield an item, after what it has to wait for."""
        if isinstance(item, Operator):
            yield from self._arrivals(item)
        elif isinstance(item, Await):
            if item.key not in self._issued:
                return  # issued by another stage, which waits for it before it sends
            self._pending = [key for key in self._pending if key != item.key]
        elif isinstance(item, Communicate) and item.key is not None:
            self._pending.append(item.key)
        elif isinstance(item, SendToStage):
            yield from map(Await, self._pending)
            self._pending = []
        yield item

    def _with_sends(self, items: Iterable[BlockItem]) -> Iterator[BlockItem]:
        """Yield items and sends: a send follows the operator that makes the tensor, and the blocking collectives upon it."""
        due: list[SendToStage] = []
        for item in items:
            if isinstance(item, Operator) or (isinstance(item, Await) and due):
                yield from due
                due = []
            yield item
            if isinstance(item, Operator):
                due = [SendToStage(t.destination, t.nbytes / self._parts, t.key) for t in self._sent.get(item.id, ())]
        yield from due

    def _arrivals(self, operator: Operator | None) -> Iterator[BlockItem]:
        """Await what an operator is the first to use; without an operator, all that is still to come."""
        for transfer in self._received:
            # A backward pass begins with what it recomputes, once the gradient of its output is there.
            first = operator is None or not transfer.before or operator.id in transfer.before or operator.recomputed
            if first and transfer.key not in self._awaited:
                self._awaited.add(transfer.key)
                yield Await(transfer.key)
                if self._parts > 1:
                    yield Communicate("all_gather", transfer.nbytes, _TENSOR_AXIS)
