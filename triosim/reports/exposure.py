"""Whose communication is exposed: each instant in which a rank only communicates, given to an axis and a layer.

Where several transfers are on their way at once, those that move bytes have equal parts of the instant; where all of them
wait for a partner, these have. What belongs to several layers (a bucket of gradients) is divided by their bytes. So the
parts add up to the exposed communication, and nothing counts twice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from triosim.recording import Interval, RankRecord, Span
from triosim.result import ExposedShare
from triosim.tasks import Layers

#: An axis and layers; None where a transfer says none.
Cause = tuple[str, Layers | None]

#: Seconds in which bytes move, and in which all that is on its way waits for a partner.
Seconds = list[float]


def exposed_shares(records: Iterable[RankRecord], steps: int) -> list[ExposedShare]:
    """Return the exposed communication of a step by axis and layer, the mean over the ranks, the largest first."""
    known: dict[tuple[tuple[Interval, ...], tuple[Span, ...]], Mapping[Cause, Seconds]] = {}
    seen: dict[int, Mapping[Cause, Seconds]] = {}  # by what ranks that were simulated once share
    by_cause: dict[Cause, list[Seconds]] = {}
    ranks = 0
    for record in records:
        ranks += 1
        mine = seen.get(id(record.compute))
        if mine is None:
            key = tuple(record.compute.merged()), tuple(record.communication.spans)
            if key not in known:  # equal ranks are looked at once
                known[key] = causes(record)
            mine = seen[id(record.compute)] = known[key]
        for cause, seconds in mine.items():
            by_cause.setdefault(cause, []).append(seconds)
    sums: dict[tuple[str, str], Seconds] = {}
    for (axis, layers), found in by_cause.items():
        moving, waiting = (math.fsum(one[i] for one in found) / ranks / steps for i in (0, 1))
        for layer, part in _parts(layers):
            entry = sums.setdefault((axis, layer), [0.0, 0.0])
            entry[0] += moving * part
            entry[1] += waiting * part
    rows = [ExposedShare(axis, layer, sum(seconds), seconds[1]) for (axis, layer), seconds in sums.items()]
    return sorted((row for row in rows if row.exposed_s > 0), key=lambda row: (-row.exposed_s, row.axis, row.layer))


def by_axis(shares: Iterable[ExposedShare]) -> dict[str, tuple[float, float]]:
    """Return the exposed seconds, and those of them that wait, of each axis."""
    found: dict[str, list[ExposedShare]] = {}
    for share in shares:
        found.setdefault(share.axis, []).append(share)
    return {
        axis: (math.fsum(one.exposed_s for one in rows), math.fsum(one.waiting_s for one in rows))
        for axis, rows in found.items()
    }


def causes(record: RankRecord) -> dict[Cause, Seconds]:
    """Return the seconds of one rank in which it computes nothing, by the transfers that are on their way."""
    gaps = without(record.communication.merged(), record.compute.merged())
    starts = [start for start, _ in gaps]
    points: list[tuple[float, int, int, Cause]] = []  # time, ends or begins, waits or moves, whose
    for span in record.communication.spans:
        cause = span.axis, span.layers
        first = max(bisect_left(starts, span.arrived) - 1, 0)
        for start, end in gaps[first:]:
            if start >= span.finished:
                break
            for kind, begin, stop in ((1, span.arrived, span.started), (0, span.started, span.finished)):
                begin, stop = max(begin, start), min(stop, end)
                if begin < stop:
                    points += (begin, 1, kind, cause), (stop, 0, kind, cause)
    points.sort(key=lambda point: point[:2])
    return _swept(points)


def without(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return what disjoint, ordered intervals have that others, as ordered, do not."""
    found: list[Interval] = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if second[k][0] > start:
                found.append((start, second[k][0]))
            start = max(start, second[k][1])
            k += 1
        if start < end:
            found.append((start, end))
    return found


def _swept(points: Iterable[tuple[float, int, int, Cause]]) -> dict[Cause, Seconds]:
    found: dict[Cause, Seconds] = {}
    active: tuple[dict[Cause, int], dict[Cause, int]] = ({}, {})  # how many move, how many wait
    before = 0.0
    for time, begins, kind, cause in points:
        running = 0 if active[0] else 1
        if time > before and active[running]:
            total = sum(active[running].values())
            for one, count in active[running].items():
                found.setdefault(one, [0.0, 0.0])[running] += (time - before) * count / total
        before = time
        counts = active[kind]
        counts[cause] = counts.get(cause, 0) + (1 if begins else -1)
        if not counts[cause]:
            del counts[cause]
    return found


def _parts(layers: Layers | None) -> Iterable[tuple[str, float]]:
    if layers is None:
        return [("", 1.0)]
    whole = math.fsum(layers.nbytes.values())
    if not whole:
        return [(layer, 1.0 / len(layers.nbytes)) for layer in layers.nbytes] or [("", 1.0)]
    return [(layer, nbytes / whole) for layer, nbytes in layers.nbytes.items()]
