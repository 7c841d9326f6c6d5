"""Unions of time intervals, and the lengths of what they cover. An interval is (start, end) in seconds."""

from __future__ import annotations

Interval = tuple[float, float]


class Intervals:
    """A union of intervals, added in any order and merged when they are asked for."""

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        self._raw: list[Interval] = []

    def add(self, start: float, end: float) -> None:
        """Add an interval; one that starts where the last ended is merged at once, which keeps busy streams short."""
        raw = self._raw
        if raw and raw[-1][1] == start:
            raw[-1] = (raw[-1][0], end)
        elif end > start:
            raw.append((start, end))

    def end(self) -> float:
        """Return the end of the interval that was added last, 0 if there is none."""
        return self._raw[-1][1] if self._raw else 0.0

    def take(self) -> list[Interval]:
        """Return the union as disjoint intervals in order, and keep of them only the one that was added last."""
        found = self.merged()
        del self._raw[:-1]
        return found

    def merged(self) -> list[Interval]:
        """Return the union as disjoint intervals in order."""
        result: list[Interval] = []
        for start, end in sorted(self._raw):
            if result and start <= result[-1][1]:
                if end > result[-1][1]:
                    result[-1] = (result[-1][0], end)
            else:
                result.append((start, end))
        return result


def length(intervals: list[Interval]) -> float:
    """Return the seconds that disjoint intervals cover."""
    return sum(end - start for start, end in intervals)


def overlap(first: list[Interval], second: list[Interval]) -> float:
    """Return the seconds that two unions of disjoint, ordered intervals have in common."""
    common = 0.0
    i = j = 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if end > start:
            common += end - start
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common
