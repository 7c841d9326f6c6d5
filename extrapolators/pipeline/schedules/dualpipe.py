"""DualPipe (DeepSeek-V3, 2024, section 3.2.1): micro-batches enter at both ends; forward and backward run side by side.

Rank r has stages r and p - 1 - r, so that there are two copies of the parameters. The first half of the micro-batches enters
at the first rank, the second half at the last. The order is that of the report's figure 5 and of DeepSeek's implementation.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule_table import Action, ActionPhase, ScheduleTable, Slot
from triosim.extrapolators.pipeline.schedule import PipelineSchedule

_WHERE = "schedule dualpipe"


class DualPipe(PipelineSchedule):
    """The bubble is (p / 2 - 1) (F&B + B - 3 W); a rank holds at most p + 1 micro-batches."""

    def micro_batches(self, ranks: int) -> int:
        """Return the least number: twice as many as ranks. Raises ``OptionError`` for an odd number of ranks."""
        if ranks % 2:
            raise OptionError(f"{ranks} pipeline ranks are an odd number", where=_WHERE, fix="use an even one")
        return 2 * ranks

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return the slots of each rank, which fills the pipeline from both ends."""
        least = self.micro_batches(ranks)
        if micro_batches % 2 or micro_batches < least:
            raise OptionError(
                f"{micro_batches} micro-batches on {ranks} pipeline ranks",
                where=_WHERE,
                fix=f"use an even number of {least} or more",
            )
        return ScheduleTable(tuple(_Row(rank, ranks, micro_batches // 2).slots() for rank in range(ranks)))


class _Row:
    """The slots of one rank. Direction 0 is that of the micro-batches that enter at the nearer end, 1 the other."""

    def __init__(self, rank: int, ranks: int, half: int) -> None:
        self._near = min(rank, ranks - 1 - rank)
        self._inner = ranks // 2 - 1 - self._near  # ranks between this one and the middle
        self._overlapped = half - ranks + self._near + 1
        self._stages = (self._near, ranks - 1 - self._near)
        self._first = (0, half) if rank == self._near else (half, 0)  # the first micro-batch of each direction
        self._run: dict[tuple[bool, int], int] = {}  # passes so far, forward or not, by direction
        self._put_off: deque[Action] = deque()
        self._slots: list[Slot] = []

    def slots(self) -> tuple[Slot, ...]:
        """Fill the pipeline from both ends, run forward and backward passes side by side, and empty it."""
        middle, add = self._inner == 0, self._add
        forward, backward = partial(self._next, "forward"), partial(self._next, "backward")
        for _ in range(2 * self._inner):
            add(forward(0))
        for _ in range(self._near + 1):
            add(forward(0))
            add(forward(1))
        for _ in range(self._inner):
            add(self._input(1))
            add(self._put_off.popleft())
            add(forward(1))
        for index in range(self._overlapped):
            if middle and index == 0:  # the one that it waits for comes back only now
                add(forward(0))
                add(backward(1))
            else:
                add(forward(0), backward(1))
            add(forward(1), backward(0))
        for _ in range(self._inner):
            add(backward(1))
            add(forward(1), backward(0))
        for index in range(2 * (self._near + 1)):  # the second half of them is split
            run = self._input if index > self._near else backward
            add(run(1 - index % 2))
        for _ in range(self._inner):
            add(self._put_off.popleft())
            add(self._input(0))
        while self._put_off:
            add(self._put_off.popleft())
        return tuple(self._slots)

    def _add(self, *actions: Action) -> None:
        self._slots.append(actions)

    def _next(self, phase: ActionPhase, direction: int) -> Action:
        counted = (phase == "forward", direction)
        number = self._run.get(counted, 0)
        self._run[counted] = number + 1
        return Action(self._stages[direction], phase, self._first[direction] + number)

    def _input(self, direction: int) -> Action:
        """The input part alone; the weight part is put off."""
        action = self._next("input", direction)
        self._put_off.append(Action(action.stage, "weight", action.micro_batch))
        return action
