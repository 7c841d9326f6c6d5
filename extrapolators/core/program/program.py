"""One GPU's step as stages and their schedule, and what changes its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from triosim import gpus
from triosim.compute.compute_model import ComputeModel
from triosim.compute.models.roofline import STAND_IN
from triosim.compute.pricing.repricing import reprice
from triosim.config.stacks import Stack
from triosim.extrapolators.core.mesh import ExpertReplicas, GroupAxes
from triosim.extrapolators.core.program.block import Block, BlockItem
from triosim.extrapolators.core.program.instructions import Communicate
from triosim.extrapolators.core.program.stage import Gradient, Stage
from triosim.extrapolators.core.schedule_table import ActionPhase, ScheduleTable
from triosim.tasks import Tier
from triosim.trace import Operator

if TYPE_CHECKING:
    from triosim.extrapolators.core.hooks import RankContext, TrainingHooks

#: Makes the hooks of one rank.
RankHooksFactory = Callable[["RankContext"], "TrainingHooks"]
#: Makes hooks in two steps: from a stage and its gradients what its ranks share, and then the hooks of each rank.
HooksFactory = Callable[[Stage, tuple[Gradient, ...]], RankHooksFactory]


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
    - ``gathering_memories`` are the tiers of memory behind switches that gather what ranks load.
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
    gathering_memories: frozenset[Tier] = frozenset()
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
