"""Ends loops that wait for a tensor's value to change, which no value does that is never computed.

A loop whose end visibly depends on the value that a line reads is told, after a number of turns, what may end it. Others are
found by how often one line reads values within one step, and by how much runs in between: a script that prints the norm of each
gradient reads many values with few operators in between; a loop that runs a whole forward and backward pass between two reads
waits for something.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from triosim.errors import CaptureError
from triosim.tracer.recorder.script_lines import is_waited_for, reading_frame, script_line, script_place

#: A loop is endless after this many reads of values at one line in a step (more than samples that one may look at each) ...
MOST_READS = 100_000
#: ... or after this many with a pass of a model between each two, which is at least this many operators.
MOST_PASSES, OPERATORS_OF_A_PASS = 500, 20
#: One that waits for a value is told after so many turns one value after the other that ends comparisons of some kind.
MOST_TURNS = 100
_ENDING = (math.nan, 0.0, math.inf, -math.inf)


class ValueReads:
    """The counts of reads of assumed values by line of the script, most of them from one step of the optimizer to the next."""

    def __init__(self) -> None:
        self._by_line: dict[str, tuple[int, int]] = {}  # count, and operators before the first
        self._in_a_row: dict[
            tuple[int, int], int
        ] = {}  # truths that were true, by the frame and instruction that read them
        self._turns: Counter[tuple[str, int]] = Counter()  # of loops that wait, by file and line, in all steps

    def forget(self) -> None:
        """Start counting again: a step ends."""
        self._by_line = {}
        self._in_a_row = {}

    def assumed(self, value: Any, most_true: int | None) -> Any:
        """Return what the script is told of an unknown value: as a rule ``value``, and what ends a loop that waits for it.

        A truth is true at most ``most_true`` times in a row in a loop of PyTorch or of a library, if that is given.
        """
        place = script_place()
        if is_waited_for(*place):
            self._turns[place] += 1
            over = self._turns[place] - MOST_TURNS
            if over == len(_ENDING):
                self._turns[place] = 0
            if over > 0:
                return not value if isinstance(value, bool) else _ENDING[over - 1]
        return self._truth(most_true) if value is True else value

    def _truth(self, most: int | None) -> bool:
        """Return an unknown truth: true, and once false when one place has found it true so often in a row."""
        frame = reading_frame()
        place = (id(frame), frame.f_lasti)
        count = self._in_a_row.get(place, 0)
        self._in_a_row[place] = count + 1 if count != most else 0
        return count != most

    def add(self, operators: int) -> None:
        """Count a read at the script's line, after so many operators. Raises ``CaptureError`` for an endless loop."""
        line = script_line()
        count, first = self._by_line.get(line, (0, operators))
        count += 1
        self._by_line[line] = (count, first)
        if count >= MOST_READS or (count >= MOST_PASSES and operators - first >= (count - 1) * OPERATORS_OF_A_PASS):
            raise CaptureError(
                f"a loop does not end: it read a tensor's value, which is never computed, {count:,} times in one step",
                where=line,
                fix="let it end after a fixed number of iterations, or capture on a device",
            )
