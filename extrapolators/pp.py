"""Pipeline parallelism: each stage has some of the layers, and micro-batches go through the stages one behind the other.

GPipe (Huang et al. 2019): all micro-batches forward, then all backward, then the optimizer once. Stages are contiguous and
balanced by the time of their layers, or start where the user says. Every tensor that one stage makes and another uses is
sent there, also along skip connections, and its gradient comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from triosim.compute.pricing import scaled
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.base import PIPELINE_ORDER, Extrapolator
from triosim.extrapolators.dataflow import Dataflow, Datum, owners, parameter_storages
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import (
    Action,
    Await,
    Block,
    Communicate,
    Item,
    Program,
    Receive,
    Send,
    Stage,
)
from triosim.extrapolators.stages import backward_places, balanced_starts, block_seconds, named_starts
from triosim.trace import Operator, Phase, Tensor

T = TypeVar("T")


class PipelineParallel(Extrapolator):
    """``pp``."""

    axis = "pp"
    place = "schedule"
    order = PIPELINE_ORDER

    @property
    def micro_batches(self) -> int:
        """As many as stages, which keeps every stage busy at some time."""
        return self.size

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program divided into stages."""
        if len(program.stages) != 1:
            raise OptionError("a program that has stages already cannot be divided into stages", fix="use one pipeline")
        blocks = program.stages[0].forward
        if self.options.stages is not None:
            starts = named_starts(blocks, self.options.stages, self.size)
        else:
            starts = balanced_starts(block_seconds(program.stages[0]), self.size, self._by_stage(program, mesh))
        pipeline = Pipeline(program, starts)
        return replace(program, stages=pipeline.stages(), stage_axis=self.axis, schedule=gpipe)

    def _by_stage(self, program: Program, mesh: Mesh) -> list[list[float]] | None:
        """Return the blocks' times on the slowest GPU of each stage, where unequal GPUs are to be taken into account."""
        factor = self.options.factor
        if factor is None:
            return None
        whole = program.stages[0]
        found: list[list[float]] = [[] for _ in range(self.size)]
        for rank in range(mesh.world):
            stage = mesh.coordinate(self.axis, rank)
            found[stage] = max(found[stage], block_seconds(whole, partial(factor, rank)), key=math.fsum)
        return found


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """All micro-batches forward, then all backward."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    return [Action(phase, index) for phase in phases for index in range(micro_batches)]


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
    """Divides a program of one stage into several."""

    def __init__(self, program: Program, starts: Sequence[int]) -> None:
        self._program = program
        self._whole = program.stages[0]
        self._starts = starts
        self._count = len(starts)
        self._flow = Dataflow(program.operators)
        self._stage_of = {  # of each forward operator
            op.id: self._stage(i) for i, block in enumerate(self._whole.forward) for op in block.operators
        }

    def _stage(self, block: int) -> int:
        return sum(start <= block for start in self._starts) - 1

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages with their sends and receives."""
        forward = _dealt(self._whole.forward, (self._stage(i) for i in range(len(self._whole.forward))), self._count)
        places = backward_places(self._whole)
        backward = _dealt(self._whole.backward, (self._stage(place) for place in places), self._count)
        crossings = self._crossings()
        self._check(crossings)
        optimizer = self._optimizer(forward)
        activations, gradients = self._forward_sends(crossings), self._backward_sends(crossings, backward)
        return tuple(
            Stage(
                self._with_transfers(forward[stage], stage, activations),
                self._with_transfers(backward[stage], stage, gradients),
                self._with_exchange(optimizer[stage], stage, forward),
            )
            for stage in range(self._count)
        )

    def _crossings(self) -> list[Crossing]:
        """The tensors that cross, in the order in which they are made."""
        sizes: dict[Datum, float] = {}
        used: dict[tuple[Datum, int], dict[int, Tensor]] = {}
        users: dict[tuple[Datum, int], set[int]] = {}
        for operator in self._flow.forward:
            stage = self._stage_of[operator.id]
            for datum, tensor in (*self._flow.writes[operator.id], *self._flow.reads[operator.id]):
                sizes[datum] = max(sizes.get(datum, 0.0), tensor.nbytes)
            for datum, tensor in self._flow.reads[operator.id]:
                if self._stage_of[datum.maker] != stage:
                    used.setdefault((datum, stage), {})[tensor.id] = tensor
                    users.setdefault((datum, stage), set()).add(operator.id)
        order = {operator.id: index for index, operator in enumerate(self._flow.forward)}
        found = [
            Crossing(
                datum.maker,
                self._stage_of[datum.maker],
                stage,
                frozenset(users[datum, stage]),
                # Views of one storage that are used apart (the q, k, v of one product) come to no more than the storage.
                min(float(sum(tensor.nbytes for tensor in tensors.values())), sizes[datum]),
                datum in self._flow.trained,
            )
            for (datum, stage), tensors in used.items()
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

    def _forward_sends(self, crossings: Sequence[Crossing]) -> list[Transfer]:
        return [
            Transfer(c.source, c.destination, c.nbytes, after=c.maker, before=c.users, key=f"activation {index}")
            for index, c in enumerate(crossings)
        ]

    def _backward_sends(self, crossings: Sequence[Crossing], backward: Sequence[Sequence[Block]]) -> list[Transfer]:
        """The gradients on their way back, each after the last operator that contributes to it."""
        orders = [{op.id: i for i, op in enumerate(op for b in blocks for op in b.operators)} for blocks in backward]
        found = []
        for index, crossing in enumerate(crossings):
            order, home = orders[crossing.destination], orders[crossing.source]
            if not (crossing.differentiable and order and home):
                continue
            makers = [op for user in crossing.users for op in self._flow.backward.get(user, ()) if op.id in order]
            last = max((op.id for op in makers) if makers else order, key=order.__getitem__)
            made = {tensor.storage for op in makers for tensor in op.outputs}
            needed_by = {op.id for op in self._flow.backward.get(crossing.maker, ())}
            needed_by.update(op for op in home if any(t.storage in made for t in self._flow.by_id[op].inputs))
            found.append(
                Transfer(
                    crossing.destination,
                    crossing.source,
                    crossing.nbytes,
                    after=last,
                    before=frozenset(needed_by),
                    key=f"gradient {index}",
                    place=order[last],
                )
            )
        return sorted(found, key=lambda transfer: transfer.place)

    def _with_transfers(self, blocks: Sequence[Block], stage: int, transfers: Sequence[Transfer]) -> tuple[Block, ...]:
        """The blocks of a stage with what it receives, awaited where it is first used, and what it sends."""
        coming = [transfer for transfer in transfers if transfer.destination == stage]
        going: dict[int, list[Transfer]] = {}
        for transfer in transfers:
            if transfer.source == stage:
                going.setdefault(transfer.after, []).append(transfer)
        keys = {i.key for block in blocks for i in block.items if isinstance(i, Communicate) and i.key is not None}
        on_its_way: list[str] = []  # collectives that nothing in this stage has awaited yet
        awaited: set[str] = set()
        written: list[Block] = []
        for block in blocks:
            items: list[Item] = [] if written else [Receive(t.source, t.key) for t in coming]
            for item in _with_sends_last(block.items, going):
                if isinstance(item, Operator):
                    for transfer in coming:
                        # A backward pass begins with what it recomputes, once the gradient of its output is there.
                        first = item.id in transfer.before or not transfer.before or item.recomputed
                        if transfer.key not in awaited and first:
                            awaited.add(transfer.key)
                            items.append(Await(transfer.key))
                if isinstance(item, Await):
                    if item.key not in keys:
                        continue  # issued by another stage, which waits for it before it sends
                    on_its_way = [key for key in on_its_way if key != item.key]
                if isinstance(item, Communicate) and item.key is not None:
                    on_its_way.append(item.key)
                if isinstance(item, Send):
                    items += [Await(key) for key in on_its_way]
                    on_its_way = []
                items.append(item)
            written.append(replace(block, items=tuple(items)))
        late = tuple(Await(transfer.key) for transfer in coming if transfer.key not in awaited)
        if late:
            written[-1] = replace(written[-1], items=(*written[-1].items, *late))
        return tuple(written)

    # ---- the optimizer ------------------------------------------------------------------------------------------

    def _optimizer(self, forward: Sequence[Sequence[Block]]) -> list[tuple[Block, ...]]:
        """Each stage's part of the optimizer: that of its own parameters."""
        operators = [op for block in self._whole.optimizer for op in block.operators]
        storages = parameter_storages(self._program.operators)
        owner = owners(operators, storages)
        used = [
            {t.storage: t for b in blocks for op in b.operators for t in op.inputs if t.category == "parameter"}
            for blocks in forward
        ]
        held = [float(sum(tensor.nbytes for tensor in tensors.values())) for tensors in used]
        shares = [nbytes / sum(held) if sum(held) else 1 / self._count for nbytes in held]
        return [
            tuple(
                replace(block, items=tuple(items))
                for block in self._whole.optimizer
                if (items := [p for i in block.items if (p := _part(i, owner, used[stage], shares[stage])) is not None])
            )
            for stage in range(self._count)
        ]

    def _with_exchange(
        self, blocks: tuple[Block, ...], stage: int, forward: Sequence[Sequence[Block]]
    ) -> tuple[Block, ...]:
        """Stages that use the same parameter (a tied embedding) add up its gradients before they update it.

        Each sends its own to the other, which for two ranks is what a ring all-reduce comes to.
        """
        if not self._program.training:
            return blocks
        gradients = [
            {
                g.parameter.storage: g
                for g in Stage(tuple(f), self._whole.backward).gradients(self._program.gradient_dtype)
            }
            for f in forward
        ]
        items: list[Item] = []
        awaits: list[Item] = []
        for other in range(self._count):
            for storage in gradients[stage] if other != stage else ():
                if storage in gradients[other]:
                    key = f"tied gradient {storage} of stage {other}"
                    items += [Receive(other, key), Send(other, gradients[stage][storage].nbytes)]
                    awaits.append(Await(key))
        if not items:
            return blocks
        return (Block("tied parameters", "optimizer", (*items, *awaits)), *blocks)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes from one stage to another: after one operator, before others (before the first, where none is named)."""

    source: int
    destination: int
    nbytes: float
    after: int
    before: frozenset[int]
    key: str
    place: int = 0


def _dealt(blocks: Sequence[T], stages: Iterable[int], count: int) -> list[list[T]]:
    dealt: list[list[T]] = [[] for _ in range(count)]
    for block, stage in zip(blocks, stages, strict=True):
        dealt[stage].append(block)
    return dealt


def _with_sends_last(items: Sequence[Item], going: Mapping[int, Sequence[Transfer]]) -> Iterable[Item]:
    """The items with each send after the operator that makes the tensor, and after the blocking collectives upon it."""
    due: list[Send] = []
    for item in items:
        if isinstance(item, Operator) or (isinstance(item, Await) and due):
            yield from due
            due = []
        yield item
        if isinstance(item, Operator):
            due = [Send(transfer.destination, transfer.nbytes) for transfer in going.get(item.id, ())]
    yield from due


def _part(item: Item, owner: Mapping[int, int], parameters: Mapping[int, Tensor], share: float) -> Item | None:
    """The part of an optimizer's item that is about some parameters, with as much of its time as of its bytes."""
    if not isinstance(item, Operator):
        return item
    every = (*item.inputs, *item.outputs)
    if not any(tensor.id in owner for tensor in every):
        return scaled(item, share)

    def mine(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in tensors if owner.get(tensor.id) in parameters)

    inputs, outputs = mine(item.inputs), mine(item.outputs)
    if not inputs and not outputs:
        return None
    if len(inputs) == len(item.inputs) and len(outputs) == len(item.outputs):
        return item
    known = sum(tensor.nbytes for tensor in every if tensor.id in owner)
    part = sum(tensor.nbytes for tensor in (*inputs, *outputs)) / known if known else share
    return scaled(replace(item, inputs=inputs, outputs=outputs), part)
