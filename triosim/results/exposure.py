"""Attributes exposed communication, in which a rank communicates and computes nothing, to axes and layers.

Where several transfers are on their way at once, those that move bytes have equal parts of the instant; where all of them
wait for a partner, these have. What belongs to several layers (a bucket of gradients) is divided by their bytes. So the
parts add up to the exposed communication, and nothing counts twice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from operator import itemgetter

from triosim.engine.intervals import Interval
from triosim.engine.recording import RankRecord, TransferInterval
from triosim.results.values import ExposedShare
from triosim.tasks import Layers

#: An axis and layers; None where a transfer says none.
Cause = tuple[str, Layers | None]

#: Seconds in which bytes move, and in which all that is on its way waits for a partner.
Seconds = list[float]


def exposed_shares(records: Iterable[RankRecord], steps: int) -> list[ExposedShare]:
    """Return the exposed communication of a step by axis and layer, the mean over the ranks, the largest first."""
    known: dict[tuple[tuple[Interval, ...], tuple[TransferInterval, ...]], Mapping[Cause, Seconds]] = {}
    # By id(): ranks that were simulated once share the very record, whose intervals would be costly to hash for each rank.
    seen: dict[int, Mapping[Cause, Seconds]] = {}
    alike: dict[int, list[Mapping[Cause, Seconds]]] = {}
    ranks = 0
    for record in records:
        ranks += 1
        mine = seen.get(id(record.compute))
        if mine is None:
            key = tuple(record.compute.merged()), tuple(record.communication.transfers)
            if key not in known:  # equal ranks are looked at once
                known[key] = causes(record)
            mine = seen[id(record.compute)] = known[key]
        alike.setdefault(id(mine), []).append(mine)
    by_cause: dict[Cause, list[tuple[int, Seconds]]] = {}  # on how many ranks, and the seconds on each
    for many in alike.values():
        for cause, seconds in many[0].items():
            by_cause.setdefault(cause, []).append((len(many), seconds))
    sums: dict[tuple[str, str], Seconds] = {}
    for (axis, layers), found in by_cause.items():
        moving, waiting = (math.fsum(times * one[i] for times, one in found) / ranks / steps for i in (0, 1))
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
    for arrived, started, finished, axis, layers in record.communication.transfers:
        cause = axis, layers
        for place in range(max(bisect_left(starts, arrived) - 1, 0), len(gaps)):
            start, end = gaps[place]
            if start >= finished:
                break
            for kind, begin, stop in ((1, arrived, started), (0, started, finished)):
                begin, stop = begin if begin > start else start, stop if stop < end else end
                if begin < stop:
                    points += (begin, 1, kind, cause), (stop, 0, kind, cause)
    points.sort(key=itemgetter(0, 1))
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
