"""Loops that wait for a tensor's value to change, and never end where no value is ever computed.

They are told from other loops by how often one line of the script reads values within one step: a script that prints the norm
of each gradient reads many, with little between them; one that trains until its loss is small, again and again a whole pass.
"""

from __future__ import annotations

from triosim.errors import CaptureError

#: So many values are read at one line in a step ...
MOST_READS = 10_000
#: ... or so many with a pass of a model, at least so many operators, between each two.
MOST_PASSES, A_PASS = 500, 20


class Reads:
    """Counts reads of unknown values by line, from one step of the optimizer to the next."""

    def __init__(self) -> None:
        self._by_line: dict[str, tuple[int, int]] = {}  # how many, and the operators before the first

    def forget(self) -> None:
        """Begin anew."""
        self._by_line = {}

    def add(self, line: str, operators: int) -> None:
        """A value was read at a line, after so many operators. Raises ``CaptureError`` where it looks like an endless loop."""
        count, first = self._by_line.get(line, (0, operators))
        count += 1
        self._by_line[line] = (count, first)
        if count >= MOST_READS or (count >= MOST_PASSES and operators - first >= (count - 1) * A_PASS):
            raise CaptureError(
                f"a loop does not end: it read a tensor's value {count:,} times in one step, which is never computed",
                where=line,
                fix="let it end after a number of rounds, or capture on a device",
            )
