"""Detects loops that wait for a tensor's value to change, which never end because no value is ever computed.

They differ from other loops in how often one line of the script reads values within one step, and in how much runs in between:
a script that prints the norm of each gradient reads many values with few operators in between; one that trains until its loss
is small runs a whole forward and backward pass between two reads.
"""

from __future__ import annotations

from triosim.errors import CaptureError

#: A loop is endless after this many reads of values at one line in a step ...
MOST_READS = 10_000
#: ... or after this many with a pass of a model between each two, which is at least this many operators.
MOST_PASSES, OPERATORS_OF_A_PASS = 500, 20


class ValueReads:
    """The counts of reads of assumed values by line of the script, from one step of the optimizer to the next."""

    def __init__(self) -> None:
        self._by_line: dict[str, tuple[int, int]] = {}  # count, and operators before the first

    def forget(self) -> None:
        """Start counting again."""
        self._by_line = {}

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
