"""What a rank has in memory in the course of a step: the lives of its micro-batches, and what its reactions hold beside them.

Two trackers follow a rank's loop in the order in which its host launches, which is the order in which PyTorch allocates:
``Totals`` adds bytes up by category and finds the peak; ``Items`` writes every piece of memory down, for the allocator, tables
and pictures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triosim.extrapolators.core.lowering import InstructionList, Lowering, PostedReceive, ScheduledAction
from triosim.extrapolators.core.memory_tracker import MemoryTracker
from triosim.extrapolators.core.program import Gradient, Receive, TransferKey
from triosim.extrapolators.core.schedule import Action
from triosim.memory.liveness.lifetimes import MEMORY_CATEGORIES, Lifetime, Lifetimes
from triosim.memory.liveness.stage_lifetimes import COLUMN, Following, Known, Lives, whole_blocks
from triosim.trace import Category, Operator, Storage, Tensor


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory that a rank has all the time."""

    nbytes: int
    category: str
    layer: str
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @classmethod
    def of(cls, tensor: Tensor | Storage, layer: str, nbytes: float) -> Resident:
        """Return what a tensor, or what a capture saw, takes."""
        return cls(round(nbytes), tensor.category, layer, tensor.shape, tensor.dtype)


class Passes:
    """The lives of micro-batches in the stages at a place of the pipeline, made when they are first asked for."""

    def __init__(
        self, lowering: Lowering, place: int, known: Known, accumulated_bytes: Callable[[Gradient], float]
    ) -> None:
        self._lowering = lowering
        self._place = place
        self._known = known
        self._gradients = [(gradient, accumulated_bytes(gradient)) for gradient in lowering.gradients[place]]
        self._made: dict[tuple[object, ...], Lives] = {}
        self._split = {
            (a.stage, a.micro_batch) for a in lowering.program.schedule.actions(place) if a.phase == "weight"
        }
        self._received: dict[tuple[int, str], list[TransferKey]] = {}
        self.sizes = known.sent

    def of(self, script: InstructionList, micro_batch: int) -> tuple[Lives, int]:
        """Return the lives that a script is a part of, and at which operator of theirs it begins."""
        stage, phase = script.name
        program = self._lowering.program
        if stage == "optimizer":
            if script.name not in self._made:
                after = Following(self._known, receives=False)
                after.through("optimizer", self._lowering.held[self._place].optimizer)
                self._made[script.name] = after.lives()
            return self._made[script.name], 0
        assert isinstance(stage, int)
        assert isinstance(phase, str)
        split = (stage, micro_batch) in self._split
        lives = self._made.get((stage, split))
        if lives is None:
            following = Following(self._known, self._gradients)
            following.through("forward", program.part(stage, "forward"))
            if program.training:
                for half in ("input", "weight") if split else ("backward",):
                    following.through(half, program.part(stage, half))
            lives = self._made[stage, split] = following.lives()
        return lives, lives.offsets[phase]

    def received(self, action: Action) -> list[TransferKey]:
        """Return what an action receives, by key."""
        found = self._received.get((action.stage, action.phase))
        if found is None:
            blocks = self._lowering.program.part(action.stage, action.phase)
            found = [item.key for block in blocks for item in block.items if isinstance(item, Receive)]
            self._received[action.stage, action.phase] = found
        return found


class _Books(MemoryTracker):
    """What both trackers do alike. ``now`` is the action that runs, None before the first and in the optimizer."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.now: Action | None = None

    def receive_posted(self, posted: PostedReceive) -> None:
        """Take memory for what comes."""
        nbytes = self._passes.sizes.get(posted.key, 0.0)
        self.allocate((posted.key, posted.micro_batch), nbytes, "communication", stream=f"receive from {posted.place}")

    def action_begins(self, act: ScheduledAction) -> None:
        """Note what runs."""
        self.now = act.action
        for key in self._passes.received(act.action):  # it is the micro-batch's own from here on
            self.free((key, act.action.micro_batch))

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Go through what these operators take and give back."""
        if micro_batch < 0:
            self.now = None
        lives, offset = self._passes.of(script, micro_batch)
        before, after = int(lives.starts[offset + first]), int(lives.starts[offset + end])
        self._begin(script, first, end)
        for change in lives.keeping[bisect_left(lives.keeping, before) : bisect_left(lives.keeping, after)]:
            life = lives.items[lives.changes[change].number]
            if not self._holds(life.keeps):
                # What is kept as it was made is the same memory; anything else is beside it for a moment.
                change += life.kept_bytes == life.nbytes
                self._advance(lives, micro_batch, before, change, offset + first)
                self.allocate(life.keeps, life.kept_bytes, life.category, life.layer)
                before = change
        self._advance(lives, micro_batch, before, after, offset + first)

    def _begin(self, script: InstructionList, first: int, end: int) -> None:
        """Some operators run."""

    def _holds(self, key: Hashable) -> bool:
        raise NotImplementedError

    def _advance(self, lives: Lives, micro_batch: int, before: int, after: int, origin: int) -> None:
        """Go on from one change to another; ``origin`` is the place of the first operator that runs now."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Moment:
    """The peak: the live bytes by category, the action that runs (None: the optimizer), and the operator.

    ``operator`` is its position among those of its micro-batch in the stage; ``layer`` is its layer.
    """

    total: int
    by_category: tuple[int, ...]
    action: Action | None
    layer: str


class Totals(_Books):
    """Bytes by category, and the peak."""

    def __init__(self, passes: Passes, residents: Sequence[Resident]) -> None:
        super().__init__(passes)
        self._live = np.zeros(len(MEMORY_CATEGORIES), np.int64)
        for one in residents:
            self._live[COLUMN[one.category]] += whole_blocks(one.nbytes)
        self._total = int(self._live.sum())
        self._held: dict[Hashable, tuple[int, int]] = {}
        self._known_peaks: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.peak = Moment(self._total, tuple(self._live.tolist()), None, "")

    def allocate(
        self, key: Hashable, nbytes: float, category: Category, layer: str = "", *, stream: str = "compute"
    ) -> None:
        """Take memory."""
        if key in self._held:
            return
        size, column = whole_blocks(nbytes), COLUMN[category]
        self._held[key] = size, column
        self._live[column] += size
        self._total += size
        if self._total > self.peak.total:
            self.peak = Moment(self._total, tuple(self._live.tolist()), self.now, layer)

    def free(self, key: Hashable) -> None:
        """Give memory back."""
        size, column = self._held.pop(key, (0, 0))
        self._live[column] -= size
        self._total -= size

    def _holds(self, key: Hashable) -> bool:
        return key in self._held

    def _advance(self, lives: Lives, micro_batch: int, before: int, after: int, origin: int) -> None:
        if before == after:
            return
        key = (id(lives), before, after)  # the passes keep the lives
        found = self._known_peaks.get(key)
        if found is None:
            part = lives.totals[before + 1 : after + 1]
            top = int(part.argmax())
            found = self._known_peaks[key] = before + 1 + top, int(part[top] - lives.totals[before])
        top, above = found
        if self._total + above > self.peak.total:
            live = self._live + (lives.bytes[top] - lives.bytes[before])
            layer = lives.layers[lives.changes[top - 1].place]
            self.peak = Moment(self._total + above, tuple(live.tolist()), self.now, layer)
        self._live += lives.bytes[after] - lives.bytes[before]
        self._total += int(lives.totals[after] - lives.totals[before])


class Items(_Books):
    """Every piece of memory, from its birth to its death."""

    def __init__(self, passes: Passes, residents: Sequence[Resident]) -> None:
        super().__init__(passes)
        self._items = [
            Lifetime(one.nbytes, one.category, one.layer, None, None, -1, None, "compute", one.shape, one.dtype)
            for one in residents
        ]
        self._died: dict[int, tuple[int, int]] = {}  # clock and operator, by item
        self._held: dict[Hashable, int] = {}
        self._alive: dict[tuple[int, int, int], int] = {}  # items, by lives, micro-batch and number
        self._clock = 0
        self._optimizer: int | None = None
        self._first = 0
        self.operators: list[Operator] = []
        self.actions: list[tuple[int, Action | None]] = []

    def allocate(
        self, key: Hashable, nbytes: float, category: Category, layer: str = "", *, stream: str = "compute"
    ) -> None:
        """Take memory."""
        if key in self._held or not nbytes:
            return
        self._held[key] = self._born(Lifetime(round(nbytes), category, layer, 0, None, 0, None, stream))

    def free(self, key: Hashable) -> None:
        """Give memory back."""
        item = self._held.pop(key, None)
        if item is not None:
            self._dies(item, len(self.operators) - 1)

    def lifetimes(self, *, estimated: bool) -> Lifetimes:
        """Return them all when the step is over. The optimizer's states are made when it first runs."""
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
        if self.now is None and self._optimizer is None:
            self._optimizer = self._clock
        if not self.actions or self.actions[-1][1] != self.now:
            self.actions.append((len(self.operators), self.now))
        self._first = len(self.operators)
        self.operators += script.operators[first:end]

    def _holds(self, key: Hashable) -> bool:
        return key in self._held

    def _advance(self, lives: Lives, micro_batch: int, before: int, after: int, origin: int) -> None:
        for change in lives.changes[before:after]:
            operator = self._first + change.place - origin
            key = id(lives), micro_batch, change.number
            if not change.birth:
                if key in self._alive:
                    self._dies(self._alive.pop(key), operator)
                continue
            life = lives.items[change.number]
            if life.nbytes:
                self._alive[key] = self._born(
                    Lifetime(
                        round(life.nbytes),
                        life.category,
                        life.layer,
                        0,
                        None,
                        operator,
                        None,
                        life.stream,
                        life.shape,
                        life.dtype,
                    )
                )

    def _born(self, item: Lifetime) -> int:
        self._items.append(replace(item, born=self._clock, operator=item.operator or max(len(self.operators) - 1, 0)))
        self._clock += 1
        return len(self._items) - 1

    def _dies(self, item: int, operator: int) -> None:
        self._died[item] = self._clock, operator
        self._clock += 1
