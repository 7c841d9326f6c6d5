"""The table of a pipeline schedule: for each rank of the pipeline, its actions (stage, pass, micro-batch) in order.

Where a stage runs, how many micro-batches are held at once and whether the backward pass is split are read from the table, so
that a user's schedule is as good as those that ship.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, NoReturn

from triosim.errors import OptionError, nearest
from triosim.input_files.limits import ACTIONS

#: The pass of a stage that runs. The backward pass runs whole, or its two parts apart: ``input`` computes the gradient of the
#: stage's input, ``weight`` those of its parameters (Qi et al. 2024).
ActionPhase = Literal["forward", "backward", "input", "weight"]

#: The parts of the backward pass that an action runs.
Half = Literal["input", "weight"]
HALVES: dict[ActionPhase, tuple[Half, ...]] = {
    "forward": (), "backward": ("input", "weight"), "input": ("input",), "weight": ("weight",)
}  # fmt: skip
LETTERS: dict[ActionPhase, str] = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}


@dataclass(frozen=True, slots=True)
class Action:
    """A stage runs its forward or backward pass, or a part of that, for one micro-batch. Written as PyTorch does: 2F5."""

    stage: int
    phase: ActionPhase
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.phase]}{self.micro_batch}"

    def earlier(self, micro_batches: int) -> Action:
        """Return the action for the micro-batch that is so many earlier."""
        return Action(self.stage, self.phase, self.micro_batch - micro_batches)


_WHOLE: tuple[ActionPhase, ...] = ("forward", "backward")

#: Actions that run side by side; mostly it is one.
Slot = tuple[Action, ...]

#: Says where an action of a rank stands, for an error: a line of a file, say.
Where = Callable[[int, Action], str]


@dataclass(frozen=True)
class ScheduleTable:
    """The slots of each rank of the pipeline in order (``rows``). ``where`` says where an action stands, for errors."""

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
        """Yield the actions of a rank, in order."""
        return chain.from_iterable(self.rows[rank])

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """Return where a stage runs for a micro-batch."""
        return self._ranks[stage, micro_batch]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a rank runs, and so holds the parameters of."""
        return tuple(sorted({action.stage for action in self.actions(rank)}))

    def last(self, rank: int) -> dict[tuple[int, Half], Action]:
        """Return the last action of a rank for each half of each stage's backward pass, in the order of these actions."""
        found: dict[tuple[int, Half], Action] = {}
        for action in self.actions(rank):
            for half in HALVES[action.phase]:
                found.pop((action.stage, half), None)
                found[action.stage, half] = action
        return found

    def first(self, rank: int) -> dict[tuple[int, Half], Action]:
        """Return the first action of a rank for each half of each stage's backward pass."""
        found: dict[tuple[int, Half], Action] = {}
        for action in self.actions(rank):
            for half in HALVES[action.phase]:
                found.setdefault((action.stage, half), action)
        return found

    def forward_alone(self) -> ScheduleTable:
        """Return the table of the forward passes alone, for inference."""
        kept = ((tuple(one for one in slot if one.phase == "forward") for slot in row) for row in self.rows)
        return ScheduleTable(tuple(tuple(filter(None, row)) for row in kept), self.where)

    # ---- checks -------------------------------------------------------------------------------------------------

    def check_size(self, ranks: int, micro_batches: int, where: str) -> None:
        """Raise ``OptionError`` where the table is for other numbers of pipeline ranks or micro-batches."""
        sizes = ((len(self.rows), ranks, "pipeline ranks"), (self.micro_batches, micro_batches, "micro-batches"))
        for found, asked, what in sizes:
            if found != asked:
                raise OptionError(f"is for {found} {what}, not {asked}", where=where, fix="let the two agree")

    def check_training(self) -> None:
        """Raise ``OptionError`` where there is no backward pass at all; ``check`` finds one that is missing in part."""
        every = [(rank, action) for rank in range(len(self.rows)) for action in self.actions(rank)]
        if all(action.phase == "forward" for _, action in every):
            whole, first, second = (replace(every[0][1], phase=phase) for phase in ("backward", "input", "weight"))
            raise self._wrong(*every[0], f"needs {whole}, or {first} and {second}, in training; there is none")

    def check(self) -> None:
        """Raise ``OptionError`` where an action is missing, given twice or on the wrong rank, or can never run."""
        seen: dict[Action, int] = {}
        if not self._ranks:
            raise OptionError("has no forward pass", where="schedule", fix="give one to each stage")
        for rank in range(len(self.rows)):
            for action in self.actions(rank):
                if action.phase not in LETTERS:
                    known = nearest(str(action.phase), LETTERS)
                    raise OptionError(f"{action!r} is of an unknown kind", where=f"schedule, rank {rank}", fix=known)
                if action in seen:
                    raise self._wrong(rank, action, f"runs a second time: rank {seen[action]} has it")
                seen[action] = rank
        for micro_batch in range(self.micro_batches):
            for stage in range(self.stages):
                self._check_actions(stage, micro_batch, seen)
        done: set[Action] = set()
        progress = self._run(done)
        stuck = next((rank for rank, row in enumerate(self.rows) if progress[rank] < len(row)), None)
        if stuck is not None:
            self._refuse_circle(stuck, progress, done)

    def _check_actions(self, stage: int, micro_batch: int, seen: dict[Action, int]) -> None:
        """Raise ``OptionError`` where a stage lacks an action for a micro-batch, or has one on another rank."""
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

    def _run(self, done: set[Action]) -> list[int]:
        """Let each rank run slots until none can; return how many slots each has run, and add their actions to ``done``."""
        progress = [0] * len(self.rows)
        before = None
        while progress != before:
            before = list(progress)
            for rank, row in enumerate(self.rows):
                while progress[rank] < len(row) and not any(self._missing(a, done) for a in row[progress[rank]]):
                    done.update(row[progress[rank]])
                    progress[rank] += 1
        return progress

    def _refuse_circle(self, rank: int, progress: list[int], done: set[Action]) -> NoReturn:
        """Raise ``OptionError``: go from a stuck rank to the one that it waits for, until this is a circle."""
        seen: set[int] = set()
        while True:
            slot = self.rows[rank][progress[rank]]
            action, missing = next((a, m) for a in slot if (m := self._missing(a, done)) is not None)
            holder = self._ranks[missing.stage, missing.micro_batch]
            if rank in seen:
                what = f"waits for {missing}, which rank {holder} never reaches"
                raise self._wrong(rank, action, what, "change the order")
            seen.add(rank)
            rank = holder

    def _missing(self, action: Action, done: set[Action]) -> Action | None:
        """Return an action that another one needs and that has not run."""
        stage, number = action.stage, action.micro_batch
        if action.phase == "forward":
            before = Action(stage - 1, "forward", number)
            return before if stage and before not in done else None
        needed = Action(stage, "input" if action.phase == "weight" else "forward", number)
        if needed not in done:
            return needed
        whole, part = Action(stage + 1, "backward", number), Action(stage + 1, "input", number)
        is_ready = action.phase == "weight" or whole in done or part in done or stage + 1 == self.stages
        return None if is_ready else whole

    def _wrong(self, rank: int, action: Action, what: str, fix: str | None = None) -> OptionError:
        where = self.where(rank, action) if self.where is not None else f"schedule, rank {rank}"
        return OptionError(f"{action} {what}", where=where, fix=fix)


def accumulate(micro_batches: int, *, side_by_side: bool = False) -> ScheduleTable:
    """Return the schedule of gradient accumulation, or with one micro-batch of the plain step, on one rank.

    ``side_by_side`` runs the forward pass of a micro-batch beside the backward pass of the one before it.
    """
    ACTIONS.check(2 * micro_batches, f"{micro_batches} micro-batches")
    forward, backward = ([Action(0, phase, index) for index in range(micro_batches)] for phase in _WHOLE)
    return ScheduleTable((in_turn(forward, backward, ahead=int(side_by_side), side_by_side=side_by_side),))


def in_turn(
    forward: Sequence[Action], backward: Sequence[Action], *, ahead: int, side_by_side: bool = False
) -> tuple[Slot, ...]:
    """Return the first ``ahead`` forward passes, then one forward and one backward in turn, then the other backward passes.

    ``side_by_side`` runs one forward and one backward at once, in a slot.
    """
    ahead = min(ahead, len(forward))
    pairs = list(zip(forward[ahead:], backward, strict=False))
    middle = pairs if side_by_side else [(action,) for pair in pairs for action in pair]
    alone = [(action,) for action in backward[len(forward) - ahead :]]
    return (*((action,) for action in forward[:ahead]), *middle, *alone)


def in_flight(schedule: ScheduleTable, rank: int, weight: Callable[[int], float] | None = None) -> float:
    """Return how many micro-batches a rank of the pipeline holds activations of at once, at most.

    Each stage of the rank counts for itself: from the start of its forward pass of a micro-batch to the end of its backward
    pass, the weight part included. ``weight`` is what one micro-batch of a stage counts (the bytes of its activations, say); by
    default 1.
    """
    count = weight or (lambda stage: 1.0)
    now = most = 0.0
    for slot in schedule.rows[rank]:
        now += sum(count(action.stage) for action in slot if action.phase == "forward")
        most = max(most, now)
        now -= sum(count(action.stage) for action in slot if action.phase in ("backward", "weight"))
    return most
