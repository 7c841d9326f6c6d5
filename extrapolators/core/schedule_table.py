"""The table of a pipeline schedule: which rank of the pipeline runs what part of which stage for which micro-batch, in order.

Where a stage runs, how many micro-batches are held at once and whether the backward pass is split are read from the table, so
that a user's schedule is as good as those that ship.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from triosim.errors import OptionError, nearest

#: What of a stage runs. The backward pass runs whole, or its two parts apart: ``input`` gives the gradient of the stage's
#: input (and what leads there), ``weight`` those of its parameters (Qi et al. 2024).
ActionPhase = Literal["forward", "backward", "input", "weight"]

#: A part of the backward pass; where it runs whole, it is both.
Half = Literal["input", "weight"]
HALVES: dict[ActionPhase, tuple[Half, ...]] = {
    "forward": (),
    "backward": ("input", "weight"),
    "input": ("input",),
    "weight": ("weight",),
}

LETTERS: dict[ActionPhase, str] = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}


@dataclass(frozen=True, slots=True)
class Action:
    """A stage runs its forward or backward pass, or a part of that, for one micro-batch. Written as PyTorch does: 2F5."""

    stage: int
    phase: ActionPhase
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.phase]}{self.micro_batch}"


#: Actions that run side by side; mostly it is one.
Slot = tuple[Action, ...]

#: Says where an action of a rank stands, for an error: a line of a file, say.
Where = Callable[[int, Action], str]


@dataclass(frozen=True)
class ScheduleTable:
    """``rows`` are the slots of each rank in order; ranks are those of the pipeline, not of the world."""

    rows: tuple[tuple[Slot, ...], ...]
    where: Where | None = field(default=None, compare=False, repr=False)
    _ranks: dict[tuple[int, int], int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        ranks = {
            (action.stage, action.micro_batch): rank
            for rank in range(len(self.rows))
            for action in self.actions(rank)
            if action.phase == "forward"
        }
        object.__setattr__(self, "_ranks", ranks)

    @classmethod
    def of(cls, rows: Sequence[Sequence[Action]]) -> ScheduleTable:
        """Return the schedule in which each rank runs one action at a time."""
        return cls(tuple(tuple((action,) for action in row) for row in rows))

    @property
    def stages(self) -> int:
        """How many stages there are; a rank may run several."""
        return 1 + max(stage for stage, _ in self._ranks)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches go through."""
        return 1 + max((micro_batch for _, micro_batch in self._ranks), default=-1)

    @property
    def splits(self) -> bool:
        """Whether the two parts of some backward pass run apart."""
        return any(action.phase == "weight" for rank in range(len(self.rows)) for action in self.actions(rank))

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield what a rank runs, in order."""
        return chain.from_iterable(self.rows[rank])

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """Return where a stage runs for a micro-batch."""
        return self._ranks[stage, micro_batch]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank runs, and so holds the parameters of."""
        return tuple(sorted({action.stage for action in self.actions(rank)}))

    def last(self, rank: int) -> dict[tuple[int, Half], Action]:
        """Return the last action of a rank that runs each half of each stage's backward pass, in the order of these."""
        found: dict[tuple[int, Half], Action] = {}
        for action in self.actions(rank):
            for half in HALVES[action.phase]:
                found.pop((action.stage, half), None)
                found[action.stage, half] = action
        return found

    def forward_alone(self) -> ScheduleTable:
        """Return the table of its forward passes alone, for inference."""
        kept = (
            tuple(tuple(action for action in slot if action.phase == "forward") for slot in row) for row in self.rows
        )
        return ScheduleTable(tuple(tuple(slot for slot in row if slot) for row in kept), self.where)

    # ---- what cannot run ----------------------------------------------------------------------------------------

    def check_size(self, ranks: int, micro_batches: int, where: str) -> None:
        """Raise ``OptionError`` where it is not for so many pipeline ranks and micro-batches."""
        for have, asked, what in (
            (len(self.rows), ranks, "pipeline ranks"),
            (self.micro_batches, micro_batches, "micro-batches"),
        ):
            if have != asked:
                raise OptionError(f"is for {have} {what}, not {asked}", where=where, fix="let the two agree")

    def check_training(self) -> None:
        """Raise ``OptionError`` where there is no backward pass at all; ``check`` says where only some of it is missing."""
        every = [(rank, action) for rank in range(len(self.rows)) for action in self.actions(rank)]
        if all(action.phase == "forward" for _, action in every):
            whole, first, second = (replace(every[0][1], phase=phase) for phase in ("backward", "input", "weight"))
            raise self._wrong(*every[0], f"needs {whole}, or {first} and {second}, in training; there is none")

    def check(self) -> None:
        """Raise ``OptionError`` where an action is missing, twice there or in the wrong rank, or none can run any more."""
        seen: dict[Action, int] = {}
        if not self._ranks:
            raise OptionError("has no forward pass", where="schedule", fix="give one to each stage")
        for rank in range(len(self.rows)):
            for action in self.actions(rank):
                if action.phase not in LETTERS:
                    known = nearest(str(action.phase), LETTERS)
                    raise OptionError(f"{action!r} is of no known kind", where=f"schedule, rank {rank}", fix=known)
                if action in seen:
                    raise self._wrong(rank, action, f"runs a second time: rank {seen[action]} has it")
                seen[action] = rank
        for micro_batch in range(self.micro_batches):
            for stage in range(self.stages):
                self._check_one(stage, micro_batch, seen)
        self._check_order()

    def _check_one(self, stage: int, micro_batch: int, seen: dict[Action, int]) -> None:
        forward, whole, first, second = (Action(stage, phase, micro_batch) for phase in LETTERS)
        rank = seen.get(forward)
        if rank is None:
            other = next((a for a in seen if a.micro_batch == micro_batch or a.stage == stage), forward)
            raise self._wrong(seen[other], other, f"needs {forward} elsewhere in the schedule, which has none")
        if not any(action.phase != "forward" for action in seen):
            return  # inference
        found = [action for action in (whole, first, second) if action in seen]
        if found not in ([whole], [first, second]):
            shown = ", ".join(map(str, found)) or "none"
            raise self._wrong(rank, forward, f"needs {whole}, or {first} and {second}; there is {shown}")
        for action in found:
            if seen[action] != rank:
                raise self._wrong(seen[action], action, f"runs on rank {seen[action]}, but {forward} on rank {rank}")

    def _check_order(self) -> None:
        """Let each rank run what it can, until all is done or nothing can run."""
        done: set[tuple[int, ActionPhase, int]] = set()
        at = [0] * len(self.rows)
        moved = True
        while moved:
            moved = False
            for rank, row in enumerate(self.rows):
                while at[rank] < len(row) and all(self._missing(action, done) is None for action in row[at[rank]]):
                    done.update((action.stage, action.phase, action.micro_batch) for action in row[at[rank]])
                    at[rank] += 1
                    moved = True
        stuck = next((rank for rank, row in enumerate(self.rows) if at[rank] < len(row)), None)
        if stuck is None:
            return
        seen: set[int] = set()
        while True:  # from one to what it waits for, until that is a circle
            slot = self.rows[stuck][at[stuck]]
            action, missing = next((a, m) for a in slot if (m := self._missing(a, done)) is not None)
            holder = self._ranks[missing.stage, missing.micro_batch]
            if stuck in seen:
                what = f"waits for {missing}, which rank {holder} never comes to"
                raise self._wrong(stuck, action, what, "change the order")
            seen.add(stuck)
            stuck = holder

    def _missing(self, action: Action, done: set[tuple[int, ActionPhase, int]]) -> Action | None:
        """Something that an action needs and that has not run."""
        stage, number = action.stage, action.micro_batch
        if action.phase == "forward":
            before = (stage - 1, "forward", number)
            return None if stage == 0 or before in done else Action(stage - 1, "forward", number)
        if action.phase == "weight":
            return None if (stage, "input", number) in done else Action(stage, "input", number)
        if (stage, "forward", number) not in done:
            return Action(stage, "forward", number)
        if stage + 1 == self.stages or (stage + 1, "backward", number) in done or (stage + 1, "input", number) in done:
            return None
        return Action(stage + 1, "backward", number)

    def _wrong(self, rank: int, action: Action, what: str, fix: str | None = None) -> OptionError:
        where = self.where(rank, action) if self.where is not None else f"schedule, rank {rank}"
        return OptionError(f"{action} {what}", where=where, fix=fix)


def accumulate(micro_batches: int) -> ScheduleTable:
    """Each micro-batch forward and backward in turn: gradient accumulation, or with one micro-batch the plain step."""
    phases: tuple[ActionPhase, ...] = ("forward", "backward")
    return ScheduleTable.of([[Action(0, phase, index) for index in range(micro_batches) for phase in phases]])


def in_flight(schedule: ScheduleTable, rank: int, weight: Callable[[int], float] | None = None) -> float:
    """Return how many micro-batches a rank of the pipeline holds activations of at once, at most.

    Each stage of the rank counts for itself: from when its forward pass of a micro-batch starts until its backward pass is
    through, the weight part included. ``weight`` is what one micro-batch of a stage counts for (its activations' bytes, say);
    by default 1.
    """
    count = weight or (lambda stage: 1.0)
    now = most = 0.0
    for slot in schedule.rows[rank]:
        now += sum(count(action.stage) for action in slot if action.phase == "forward")
        most = max(most, now)
        now -= sum(count(action.stage) for action in slot if action.phase in ("backward", "weight"))
    return most
