"""The period of a schedule: between its warm-up and its cool-down each rank runs the same slots for other micro-batches.

1F1B repeats one micro-batch after the other, interleaved 1F1B a group of as many as there are ranks. A schedule with fewer
periods is that of fewer micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.errors import OptionError
from triosim.extrapolators.core.schedule_table import ScheduleTable, Slot


@dataclass(frozen=True, slots=True)
class SchedulePeriod:
    """``micro_batches`` are those of a period, ``count`` is how many periods every rank has.

    ``begins`` and ``slots`` say by rank in which slot the first period begins, and how many slots each has.
    """

    micro_batches: int
    count: int
    begins: tuple[int, ...]
    slots: tuple[int, ...]

    def marks(self, rank: int) -> range:
        """Return the slots in which the periods of a rank begin."""
        return range(self.begins[rank], self.begins[rank] + self.slots[rank] * self.count, self.slots[rank])


def period_of(table: ScheduleTable) -> SchedulePeriod | None:
    """Return the period of a schedule; None where it has none that all ranks run at least once."""
    for size in dict.fromkeys((1, len(table.rows))):
        regions = [_region(row, size, table.micro_batches) for row in table.rows]
        found = [one for one in regions if one is not None]
        if len(found) == len(regions):
            begins, slots, counts = zip(*found, strict=True)
            return SchedulePeriod(size, min(counts), begins, slots)
    return None


def shortened(table: ScheduleTable, period: SchedulePeriod, count: int) -> ScheduleTable | None:
    """Return the schedule with ``count`` of its periods; None where that is no schedule of fewer micro-batches."""
    less = period.count - count
    rows = []
    for row, begin, slots in zip(table.rows, period.begins, period.slots, strict=True):
        rest = (_later(slot, -less * period.micro_batches) for slot in row[begin + less * slots :])
        rows.append((*row[:begin], *rest))
    found = ScheduleTable(tuple(rows))
    try:
        found.check()
    except OptionError:
        return None
    return found


def _region(row: Sequence[Slot], size: int, micro_batches: int) -> tuple[int, int, int] | None:
    """Return where the periods of a row begin, the slots of one and how many there are; None without any."""
    slots, rest = divmod(len(row) * size, micro_batches)
    middle = (len(row) - slots) // 2
    if rest or middle < 0:
        return None

    def repeats(index: int) -> bool:
        return 0 <= index < len(row) - slots and row[index + slots] == _later(row[index], size)

    first = last = middle
    while repeats(first - 1):
        first -= 1
    while repeats(last):
        last += 1
    return (first, slots, (last + slots - first) // slots) if repeats(middle) else None


def _later(slot: Slot, micro_batches: int) -> Slot:
    return tuple([action.earlier(-micro_batches) for action in slot])
