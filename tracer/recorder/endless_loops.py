"""Detects loops that wait for a tensor's value to change, which never end because no value is ever computed.

They differ from other loops in how often one line of the script reads values within one step, and in how much runs in between:
a script that prints the norm of each gradient reads many values with few operators in between; one that trains until its loss
is small runs a whole forward and backward pass between two reads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from triosim.errors import CaptureError

#: A loop is endless after this many reads of values at one line in a step ...
MOST_READS = 10_000
#: ... or after this many with a pass of a model between each two, which is at least this many operators.
MOST_PASSES, OPERATORS_OF_A_PASS = 500, 20


_OURS = str(Path(__file__).resolve().parents[1])


class ValueReads:
    """The counts of reads of assumed values by line of the script, from one step of the optimizer to the next."""

    def __init__(self) -> None:
        self._by_line: dict[str, tuple[int, int]] = {}  # count, and operators before the first
        self._in_a_row: dict[
            tuple[int, int], int
        ] = {}  # truths that were true, by the frame and instruction that read them

    def forget(self) -> None:
        """Start counting again."""
        self._by_line = {}
        self._in_a_row = {}

    def truth(self, most: int | None) -> bool:
        """Return an unknown truth: true, and once false when one place has found it true so often in a row."""
        frame = _reading_frame()
        place = (id(frame), frame.f_lasti)
        count = self._in_a_row.get(place, 0)
        self._in_a_row[place] = count + 1 if count != most else 0
        return count != most

    def add(self, line: str, operators: int) -> None:
        """Count a read at a line, after so many operators of the step. Raises ``CaptureError`` for an endless loop."""
        count, first = self._by_line.get(line, (0, operators))
        count += 1
        self._by_line[line] = (count, first)
        if count >= MOST_READS or (count >= MOST_PASSES and operators - first >= (count - 1) * OPERATORS_OF_A_PASS):
            raise CaptureError(
                f"a loop does not end: it read a tensor's value, which is never computed, {count:,} times in one step",
                where=line,
                fix="let it end after a fixed number of iterations, or capture on a device",
            )


def _reading_frame() -> FrameType:
    """Return the frame that asked PyTorch for a value: the script's, a library's or one of PyTorch's own modules."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame
