"""The memory of a rank over its step by category, as the page and a recorded result hold it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from triosim.memory import MemoryReport
from triosim.memory.world_memory import WorldMemory
from triosim.units import format_ranks

MOST_POINTS = 1500
#: Ranks, or stretches of ranks, that a label names.
MOST_RANKS = 6


def curve_of_fullest(memory: WorldMemory) -> dict[str, Any]:
    """Return the memory of the fullest rank over its step."""
    fullest = memory.fullest
    return memory_curve(memory.report(fullest.rank), format_ranks(fullest.ranks, MOST_RANKS))


def memory_curve(report: MemoryReport, ranks: str) -> dict[str, Any]:
    """Return the live bytes of some equal ranks after each allocation and free; of many, those that stand highest.

    ``times`` are the seconds of the operators, one after the other, at which they happen.
    """
    begins, now = [0.0], 0.0
    for operator in report.trace.operators:
        begins.append(now)
        now += operator.seconds
    live = report.usage.live
    ended = [round(begins[event.operator + 1], 9) for event in report.usage.events]
    # An event is listed where memory changes; where it names a later operator, it is no later than the events that follow.
    moments = [0.0, *reversed([*accumulate(reversed(ended), min)])]
    highest: dict[float, int] = {}  # at each moment; a chart has one value at a time
    total = live.sum(axis=1)
    for index, moment in enumerate(moments):
        if total[index] >= total[highest.get(moment, index)]:
            highest[moment] = index
    every = list(highest.values())
    part = max(1, -(-len(every) // MOST_POINTS))
    kept = [max(every[start : start + part], key=lambda index: total[index]) for start in range(0, len(every), part)]
    return {
        "ranks": ranks,
        "times": [moments[index] for index in kept],
        "categories": {
            name.replace("_", " "): [int(value) for value in live[kept, column]]
            for column, name in enumerate(report.usage.categories)
            if live[:, column].any()
        },
        "peak_bytes": int(report.peak_live),
    }
