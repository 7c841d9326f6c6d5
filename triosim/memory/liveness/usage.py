"""The live bytes at each moment of a step, by category and module, and their peak.

Two counts: ``requested`` adds up the tensors' bytes, ``live`` what they take in blocks of 512 bytes, which is what
``torch.distributed._tools.MemTracker`` reports. What the allocator really hands out can be a little more: see ``replay``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim.memory.liveness.lifetimes import COLUMN, MEMORY_CATEGORIES, LifetimeEvent, Lifetimes, whole_blocks

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of the most live bytes: the number of events before it, and the operator that ran (-1: none yet)."""

    index: int
    operator: int
    live: int
    requested: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The live bytes of a step.

    ``live[i, c]`` are the bytes of category ``categories[c]`` after ``i`` of the ``events``, rounded to blocks; row 0 is what
    the step found. ``peak`` is the first moment with the most of them.
    """

    lifetimes: Lifetimes
    events: tuple[LifetimeEvent, ...]
    categories: tuple[str, ...]
    live: Integers
    requested: Integers
    peak: Peak

    @property
    def total(self) -> Integers:
        """The live bytes of all categories, after each event."""
        found: Integers = self.live.sum(axis=1)
        return found

    def alive(self, index: int | None = None) -> list[int]:
        """Return the numbers of the lifetimes that are alive after ``index`` events; by default at the peak."""
        found = dict.fromkeys(self.lifetimes.initial)
        for event in self.events[: self.peak.index if index is None else index]:
            if event.birth:
                found[event.number] = None
            else:
                del found[event.number]
        return list(found)

    def at_peak(self) -> dict[str, int]:
        """Return the live bytes at the peak by category, those without any left out."""
        row = self.live[self.peak.index]
        return {name: int(value) for name, value in zip(self.categories, row, strict=True) if value}


def usage(lifetimes: Lifetimes) -> Usage:
    """Return the live bytes of a step over its events."""
    events = tuple(lifetimes.events)
    items = lifetimes.items
    sizes = [whole_blocks(item.nbytes) for item in items]
    change = np.zeros((len(events) + 1, len(MEMORY_CATEGORIES)), np.int64)
    requested = np.zeros(len(events) + 1, np.int64)
    for number in lifetimes.initial:
        change[0, COLUMN[items[number].category]] += sizes[number]
        requested[0] += items[number].nbytes
    for row, event in enumerate(events, 1):
        sign = 1 if event.birth else -1
        change[row, COLUMN[items[event.number].category]] += sign * sizes[event.number]
        requested[row] += sign * items[event.number].nbytes
    live = np.cumsum(change, axis=0)
    requested = np.cumsum(requested)
    index = int(np.argmax(live.sum(axis=1)))
    operator = events[index - 1].operator if index else -1
    peak = Peak(index, operator, int(live[index].sum()), int(requested[index]))
    return Usage(lifetimes, events, MEMORY_CATEGORIES, live, requested, peak)


@dataclass(frozen=True, slots=True)
class ModuleBytes:
    """Live bytes of modules that differ in their numbers alone (``layers.*.mlp`` for ``count`` of them), by category."""

    module: str
    count: int
    by_category: dict[str, int]

    @property
    def total(self) -> int:
        """The bytes of all categories."""
        return sum(self.by_category.values())


def by_module(step: Usage, numbers: Sequence[int], depth: int | None = None) -> list[ModuleBytes]:
    """Return the bytes of these lifetimes by module, the most first.

    Modules are told apart by the first ``depth`` parts of their path; numbers in a path are folded into ``*``.
    """
    found: dict[str, dict[str, int]] = {}
    members: dict[str, set[Any]] = {}
    for number in numbers:
        item = step.lifetimes.items[number]
        parts = item.layer.split(".")[:depth] if item.layer else [""]
        name = ".".join("*" if part.isdigit() else part for part in parts)
        row = found.setdefault(name, {})
        row[item.category] = row.get(item.category, 0) + whole_blocks(item.nbytes)
        members.setdefault(name, set()).add(tuple(parts))
    rows = [ModuleBytes(name, len(members[name]), row) for name, row in found.items()]
    return sorted(rows, key=lambda row: (-row.total, row.module))
