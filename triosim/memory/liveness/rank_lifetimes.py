"""The memory of a rank over a step: its micro-batches', and what its data parallelism and pipeline allocate.

Two trackers follow a rank's training loop in the order in which its host launches operators, which is the order in which
PyTorch allocates. ``PeakTracker`` adds up bytes by category and finds the peak; ``LifetimeTracker`` records every allocation
with its lifetime, for the allocator, tables and pictures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triosim.extrapolators.core.lowering import InstructionList, Lowering, PostedReceive, ScheduledAction
from triosim.extrapolators.core.memory import MemoryTracker, StoreActivations
from triosim.extrapolators.core.program import Block, Gradient, ReceiveFromStage, TransferKey
from triosim.extrapolators.core.program.kept_programs import BlocksSource, Kept
from triosim.extrapolators.core.schedule_table import Action, ActionPhase
from triosim.memory.liveness.lifetimes import COLUMN, MEMORY_CATEGORIES, Lifetime, Lifetimes, whole_blocks
from triosim.memory.liveness.micro_batch_lifetimes import (
    MicroBatchLifetime,
    MicroBatchLifetimes,
    MicroBatchLiveness,
    ProgramStorages,
)
from triosim.memory.liveness.outside import OutsideMemory
from triosim.memory.liveness.residents import Resident
from triosim.memory.liveness.resized_lifetimes import resized
from triosim.trace import Category, Operator

#: Lifetimes of this process, up to as many changes together, about 50 MB: points of a search that differ in schedule or data
#: parallelism share them.
_LIFETIMES = Kept[MicroBatchLifetimes](200_000, lambda found: len(found.changes))


class StageLifetimes:
    """The lifetimes of micro-batches in the stages of a pipeline rank, found when they are first asked for.

    ``like`` are those of a program that differs in shapes alone, at the same pipeline rank: both agree in what lives when.
    """

    def __init__(
        self,
        lowering: Lowering,
        pipeline_rank: int,
        storages: ProgramStorages,
        accumulated_bytes: Callable[[Gradient], float],
        like: StageLifetimes | None = None,
    ) -> None:
        self._program = lowering.program
        self._optimizer = lowering.held[pipeline_rank].optimizer
        self._storages = storages
        self._gradients = lowering.gradients[pipeline_rank]
        self._kept: dict[Hashable, float] = {
            ("gradient", gradient.parameter.storage): accumulated_bytes(gradient) for gradient in self._gradients
        }
        self._like = None if like is None or like._gradients != self._gradients else like
        self._found: dict[tuple[object, bool], MicroBatchLifetimes] = {}
        actions = self._program.schedule.actions(pipeline_rank)
        self._split = {(action.stage, action.micro_batch) for action in actions if action.phase == "weight"}
        self._received: dict[tuple[int, str], list[TransferKey]] = {} if self._like is None else self._like._received
        self._stored: dict[int, tuple[str, float] | None] = {}
        self.sent_bytes = storages.sent_bytes

    def of(self, script: InstructionList, micro_batch: int) -> tuple[MicroBatchLifetimes, int]:
        """Return the lifetimes that an instruction list is part of, and at which of their operators it begins."""
        stage, phase = script.name
        found = self._of(stage, (stage, micro_batch) in self._split)
        return found, found.offsets["optimizer" if stage == "optimizer" else str(phase)]

    def _of(self, stage: object, split: bool) -> MicroBatchLifetimes:
        """Return the lifetimes of a stage's micro-batch, with the backward pass in one part or split, or the optimizer's."""
        if (stage, split) not in self._found:
            found, part = None, self._storages.part
            if self._like is not None and part is not None:
                found = resized(self._like._of(stage, split), self._find(stage, split, part), part.storages)
            self._found[stage, split] = found or self._find(stage, split, self._storages)
        return self._found[stage, split]

    def _find(self, stage: object, split: bool, storages: ProgramStorages) -> MicroBatchLifetimes:
        """Return the lifetimes of some storages."""
        passes = self._passes(stage, split)
        ids = frozenset[int]().union(*(block.operator_ids for blocks in passes.values() for block in blocks))
        gradients = [gradient for gradient in self._gradients if gradient.ready in ids]

        def found() -> MicroBatchLifetimes:
            liveness = MicroBatchLiveness(storages, gradients, receives=isinstance(stage, int))
            for name, blocks in passes.items():
                liveness.add_pass(name, blocks)
            return liveness.lifetimes()

        if storages.known_by is None:
            return found()
        return _LIFETIMES.get(BlocksSource((storages.known_by, [*passes], gradients), tuple(passes.values())), found)

    def _passes(self, stage: object, split: bool) -> dict[str, tuple[Block, ...]]:
        """Return the blocks of the passes of a stage, or of the optimizer."""
        if not isinstance(stage, int):
            return {"optimizer": self._optimizer}
        backward: tuple[ActionPhase, ...] = ("input", "weight") if split else ("backward",)
        halves: tuple[ActionPhase, ...] = ("forward", *backward) if self._program.training else ("forward",)
        return {half: self._program.part(stage, half) for half in halves}

    def kept_bytes(self, lifetime: MicroBatchLifetime) -> float:
        """Return the bytes in which the rank keeps what outlives its micro-batch: a gradient, or else all of it."""
        return self._kept.get(lifetime.kept_as, lifetime.nbytes)

    def stored(self, stage: int) -> tuple[str, float] | None:
        """Return the tier and the bytes of the activations of a micro-batch that a stage stores outside of the GPU."""
        if stage not in self._stored:
            items = [item for block in self._program.part(stage, "forward") for item in block.items]
            found = [item for item in items if isinstance(item, StoreActivations)]
            self._stored[stage] = (found[0].tier, sum(one.nbytes for one in found)) if found else None
        return self._stored[stage]

    def received(self, action: Action) -> list[TransferKey]:
        """Return the keys of what an action receives."""
        key = action.stage, action.phase
        if key not in self._received:
            items = (item for block in self._program.part(*key) for item in block.items)
            self._received[key] = [item.key for item in items if isinstance(item, ReceiveFromStage)]
        return self._received[key]


class _RankTracker(MemoryTracker, ABC):
    """Follows a training loop. ``now`` is the action that runs, "start" before the first one, or "optimizer"."""

    def __init__(self, stages: StageLifetimes, outside: OutsideMemory) -> None:
        self._stages = stages
        self._held: dict[Hashable, Any] = {}  # allocations, by key
        self.outside = outside
        self.now: Action | str = "start"

    def allocate(
        self,
        key: Hashable,
        nbytes: float,
        category: Category,
        layer: str = "",
        *,
        stream: str = "compute",
        tier: str | None = None,
    ) -> None:
        """Allocate memory under a key, unless there is an allocation under it already."""
        if tier is not None:
            self.outside.allocate(key, nbytes, category, tier)
        elif nbytes and key not in self._held:
            self._held[key] = self._allocated(nbytes, category, layer, stream)

    def free(self, key: Hashable) -> None:
        """Free the allocation under a key, if there is one."""
        self.outside.free(key)
        held = self._held.pop(key, None)
        if held is not None:
            self._freed(held)

    @abstractmethod
    def _allocated(self, nbytes: float, category: Category, layer: str, stream: str) -> Any:
        """Count an allocation on the GPU, and return what it is freed by."""

    @abstractmethod
    def _freed(self, held: Any) -> None:
        """Count that such an allocation is freed."""

    def receive_posted(self, posted: PostedReceive) -> None:
        """Allocate the buffer of a receive."""
        nbytes, stream = self._stages.sent_bytes.get(posted.key, 0.0), f"receive from {posted.pipeline_rank}"
        self.allocate((posted.key, posted.micro_batch), nbytes, "communication", stream=stream)

    def action_begins(self, act: ScheduledAction) -> None:
        """Note which action runs."""
        if isinstance(self.now, Action) and self.now.phase in ("backward", "input"):
            self.outside.free(("activations", self.now.stage, self.now.micro_batch))
        self.now = self.outside.now = act.action
        stored = self._stages.stored(act.action.stage) if act.action.phase == "forward" else None
        if stored is not None:
            tier, nbytes = stored
            self.outside.allocate(("activations", act.action.stage, act.action.micro_batch), nbytes, "activation", tier)
        for key in self._stages.received(act.action):  # it is the micro-batch's own from here on
            self.free((key, act.action.micro_batch))

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Apply the allocations and frees of these operators."""
        if micro_batch < 0:
            self.now = self.outside.now = "optimizer"
        lifetimes, offset = self._stages.of(script, micro_batch)
        before, after = int(lifetimes.starts[offset + first]), int(lifetimes.starts[offset + end])
        self._begin(script, first, end)
        for change in lifetimes.kept[bisect_left(lifetimes.kept, before) : bisect_left(lifetimes.kept, after)]:
            lifetime = lifetimes.items[lifetimes.changes[change].number]
            if lifetime.kept_as not in self._held:
                # What is kept unchanged is the same memory; anything else is allocated before the original is freed.
                kept = self._stages.kept_bytes(lifetime)
                change += kept == lifetime.nbytes
                self._advance(lifetimes, micro_batch, before, change, offset + first)
                self.allocate(lifetime.kept_as, kept, lifetime.category, lifetime.layer)
                before = change
        self._advance(lifetimes, micro_batch, before, after, offset + first)

    def _begin(self, script: InstructionList, first: int, end: int) -> None:
        """Some operators run."""

    @abstractmethod
    def _advance(self, lifetimes: MicroBatchLifetimes, micro_batch: int, before: int, after: int, origin: int) -> None:
        """Apply the changes from ``before`` to ``after``; ``origin`` is the position of the first operator that runs now."""


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """The moment of the peak: live bytes, in all and by category, the action that runs ("start", "optimizer"), the layer."""

    total: int
    by_category: tuple[int, ...]
    action: Action | str
    layer: str


class PeakTracker(_RankTracker):
    """Adds up live bytes by category, and keeps their peak."""

    def __init__(self, stages: StageLifetimes, residents: Sequence[Resident], outside: OutsideMemory) -> None:
        super().__init__(stages, outside)
        held = [0] * len(MEMORY_CATEGORIES)
        for one in residents:
            held[COLUMN[one.category]] += whole_blocks(one.nbytes)
        self._live = np.array(held, np.int64)
        self._total = int(self._live.sum())
        self._known_peaks: dict[tuple[MicroBatchLifetimes, int, int], tuple[int, int]] = {}
        self.peak = PeakMoment(self._total, tuple(self._live.tolist()), self.now, "")

    def _allocated(self, nbytes: float, category: Category, layer: str, stream: str) -> tuple[int, int]:
        size, column = whole_blocks(nbytes), COLUMN[category]
        self._live[column] += size
        self._total += size
        if self._total > self.peak.total:
            self.peak = PeakMoment(self._total, tuple(self._live.tolist()), self.now, layer)
        return size, column

    def _freed(self, held: tuple[int, int]) -> None:
        size, column = held
        self._live[column] -= size
        self._total -= size

    def _advance(self, lifetimes: MicroBatchLifetimes, micro_batch: int, before: int, after: int, origin: int) -> None:
        if before == after:
            return
        key = lifetimes, before, after
        found = self._known_peaks.get(key)
        if found is None:
            part = lifetimes.totals[before + 1 : after + 1]
            top = int(part.argmax())
            found = self._known_peaks[key] = before + 1 + top, int(part[top] - lifetimes.totals[before])
        top, above = found
        if self._total + above > self.peak.total:
            live = self._live + (lifetimes.bytes[top] - lifetimes.bytes[before])
            layer = lifetimes.layers[lifetimes.changes[top - 1].position]
            self.peak = PeakMoment(self._total + above, tuple(live.tolist()), self.now, layer)
        self._live += lifetimes.bytes[after] - lifetimes.bytes[before]
        self._total += int(lifetimes.totals[after] - lifetimes.totals[before])


class LifetimeTracker(_RankTracker):
    """Records every allocation from its birth to its death."""

    def __init__(self, stages: StageLifetimes, residents: Sequence[Resident], outside: OutsideMemory) -> None:
        super().__init__(stages, outside)
        self._items = [
            Lifetime(one.nbytes, one.category, one.layer, None, None, -1, None, "compute", one.shape, one.dtype)
            for one in residents
        ]
        self._died: dict[int, tuple[int, int]] = {}  # clock and operator, by item
        self._alive: dict[tuple[MicroBatchLifetimes, int, int], int] = {}  # items, by micro-batch and number
        self._clock = 0
        self._optimizer: int | None = None
        self._first = 0
        self.operators: list[Operator] = []

    def _allocated(self, nbytes: float, category: Category, layer: str, stream: str) -> int:
        return self._born(Lifetime(round(nbytes), category, layer, 0, None, 0, None, stream))

    def _freed(self, held: int) -> None:
        self._dies(held, len(self.operators) - 1)

    def lifetimes(self, *, estimated: bool) -> Lifetimes:
        """Return all lifetimes when the step is over. The optimizer's states are allocated when it first runs."""
        last = len(self.operators) - 1
        for left in (*self._held.values(), *self._alive.values()):
            self._dies(left, last)
        made = None if self._optimizer is None else min(self._optimizer, self._clock - 1)
        found = []
        for number, item in enumerate(self._items):
            clock, operator = self._died.get(number, (None, None))
            states = made if item.born is None and item.category == "optimizer_state" else None
            found.append(replace(item, died=clock, last_operator=operator, first_born=states))
        return Lifetimes(tuple(found), tuple(self.operators), estimated)

    def _begin(self, script: InstructionList, first: int, end: int) -> None:
        if not isinstance(self.now, Action) and self._optimizer is None:
            self._optimizer = self._clock
        self._first = len(self.operators)
        self.operators += script.operators[first:end]

    def _advance(self, lifetimes: MicroBatchLifetimes, micro_batch: int, before: int, after: int, origin: int) -> None:
        for change in lifetimes.changes[before:after]:
            operator = self._first + change.position - origin
            key = lifetimes, micro_batch, change.number
            if not change.birth:
                if key in self._alive:
                    self._dies(self._alive.pop(key), operator)
                continue
            one = lifetimes.items[change.number]
            if one.nbytes:
                nbytes, shape, dtype = round(one.nbytes), one.shape, one.dtype
                born = Lifetime(nbytes, one.category, one.layer, 0, None, operator, None, one.stream, shape, dtype)
                self._alive[key] = self._born(born)

    def _born(self, item: Lifetime) -> int:
        self._items.append(replace(item, born=self._clock, operator=item.operator or max(len(self.operators) - 1, 0)))
        self._clock += 1
        return len(self._items) - 1

    def _dies(self, item: int, operator: int) -> None:
        self._died[item] = self._clock, operator
        self._clock += 1
