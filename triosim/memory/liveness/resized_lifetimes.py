"""The lifetimes of a program from those of another that differs in shapes alone: what lives when is the same.

Only the storages that differ are followed again, in the program's own sizes; they replace those of the other program.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triosim.memory.liveness.micro_batch_lifetimes import MicroBatchLifetimes


def resized(whole: MicroBatchLifetimes, part: MicroBatchLifetimes, differing: Set[int]) -> MicroBatchLifetimes | None:
    """Return the lifetimes of a program: the ``whole`` ones of another, with its own ``part`` of the ``differing`` storages.

    None where the part is not born, or does not die, when it does in the other program.
    """
    before, after = _Part.of(whole, differing), _Part.of(part, differing)
    if before.changes != after.changes:
        return None
    items = list(whole.items)
    for number, own in zip(before.numbers, after.numbers, strict=True):
        items[number] = part.items[own]
    added = np.zeros_like(whole.bytes)
    added[before.rows + 1] = after.bytes - before.bytes
    found = whole.bytes + np.cumsum(added, axis=0)
    return replace(whole, items=items, bytes=found, totals=found.sum(axis=1))


@dataclass(frozen=True, slots=True)
class _Part:
    """The lifetimes that differ, by number, and their changes: what each is, its row, and the bytes that it adds."""

    numbers: list[int]
    changes: list[tuple[Hashable, ...]]
    rows: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, lifetimes: MicroBatchLifetimes, differing: Set[int]) -> _Part:
        """Return those of some storages, and of buffers, which have none."""
        found: dict[int, tuple[int, Hashable]] = {}
        for number, one in enumerate(lifetimes.items):
            if one.storage is None or one.storage in differing:
                found[number] = len(found), one.kept_as
        rows = [row for row, change in enumerate(lifetimes.changes) if change.number in found]
        changes: list[tuple[Hashable, ...]] = [
            (change.position, change.birth, *found[change.number])
            for change in map(lifetimes.changes.__getitem__, rows)
        ]
        where = np.array(rows, np.int64)
        return cls(list(found), changes, where, lifetimes.bytes[where + 1] - lifetimes.bytes[where])
