"""DualPipe (DeepSeek-V3, 2024, section 3.2.1): micro-batches enter at both ends; forward and backward run side by side.

Place r has stages r and p - 1 - r, so that there are two copies of the parameters. The first half of the micro-batches enters
at the first place, the second half at the last. The order is that of the report's figure 5 and of DeepSeek's implementation.
"""

from __future__ import annotations

from collections import deque

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule import Action, ActionPhase, ScheduleTable, Slot

_WHERE = "schedule dualpipe"


def dualpipe(places: int, micro_batches: int) -> ScheduleTable:
    """The bubble is (p / 2 - 1) (F&B + B - 3 W); a place holds at most p + 1 micro-batches."""
    least = least_micro_batches(places)
    if micro_batches % 2 or micro_batches < least:
        raise OptionError(
            f"{micro_batches} micro-batches on {places} pipeline ranks",
            where=_WHERE,
            fix=f"use an even number of {least} or more",
        )
    return ScheduleTable(tuple(_Row(place, places, micro_batches // 2).slots() for place in range(places)))


def least_micro_batches(places: int) -> int:
    """Return how many micro-batches so many places need. Raises ``OptionError`` for an odd number of places."""
    if places % 2:
        raise OptionError(f"{places} pipeline ranks are an odd number", where=_WHERE, fix="use an even one")
    return 2 * places


class _Row:
    """What one place does. Direction 0 is that of the micro-batches that enter at the nearer end, 1 the other."""

    def __init__(self, place: int, places: int, half: int) -> None:
        self._near = min(place, places - 1 - place)
        self._inner = places // 2 - 1 - self._near  # places between this one and the middle
        self._overlapped = half - places + self._near + 1
        self._stages = (self._near, places - 1 - self._near)
        self._first = (0, half) if place == self._near else (half, 0)  # the first micro-batch of each direction
        self._run: dict[tuple[bool, int], int] = {}  # passes so far, forward or not, by direction
        self._put_off: deque[Action] = deque()
        self._slots: list[Slot] = []

    def slots(self) -> tuple[Slot, ...]:
        """Fill the pipeline from both ends, run forward and backward passes side by side, and empty it."""
        middle, add = self._inner == 0, self._add
        for _ in range(2 * self._inner):
            add(self._forward(0))
        for _ in range(self._near + 1):
            add(self._forward(0))
            add(self._forward(1))
        for _ in range(self._inner):
            add(self._input(1))
            add(self._weight())
            add(self._forward(1))
        for index in range(self._overlapped):
            if middle and index == 0:  # the one that it waits for comes back only now
                add(self._forward(0))
                add(self._backward(1))
            else:
                add(self._forward(0), self._backward(1))
            add(self._forward(1), self._backward(0))
        for _ in range(self._inner):
            add(self._backward(1))
            add(self._forward(1), self._backward(0))
        for index in range(2 * (self._near + 1)):  # the second half of them is split
            run = self._input if index > self._near else self._backward
            add(run(1 - index % 2))
        for _ in range(self._inner):
            add(self._weight())
            add(self._input(0))
        while self._put_off:
            add(self._weight())
        return tuple(self._slots)

    def _add(self, *actions: Action) -> None:
        self._slots.append(actions)

    def _next(self, phase: ActionPhase, direction: int) -> Action:
        counted = (phase == "forward", direction)
        number = self._run.get(counted, 0)
        self._run[counted] = number + 1
        return Action(self._stages[direction], phase, self._first[direction] + number)

    def _forward(self, direction: int) -> Action:
        return self._next("forward", direction)

    def _backward(self, direction: int) -> Action:
        return self._next("backward", direction)

    def _input(self, direction: int) -> Action:
        """The input part alone; the weight part is put off."""
        action = self._next("input", direction)
        self._put_off.append(Action(action.stage, "weight", action.micro_batch))
        return action

    def _weight(self) -> Action:
        return self._put_off.popleft()
