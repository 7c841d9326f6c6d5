"""Attributes the time in which a rank communicates and computes nothing to parallelism axes and layers.

Transfers that move bytes at the same instant share it equally; where all of them wait for a partner, they all share it as
waiting. While the CPU computes on what is offloaded, all of it is the host's: its computation hides transfers as the GPU's
does. A transfer of several layers (a bucket of gradients) is divided by their bytes. So the parts add up, and nothing counts
twice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from triosim.engine.intervals import Interval
from triosim.engine.recording import RankRecord, TransferInterval
from triosim.results.values import ExposedShare
from triosim.tasks import Layers

#: An axis and layers; None where a transfer says none.
Cause = tuple[str, Layers | None]

#: Seconds in which bytes move, in which all transfers under way wait for a partner, and in which the host computes.
Seconds = list[float]
MOVING, WAITING, ON_HOST = range(3)
#: The seconds in which a rank computes nothing, by cause.
Causes = dict[Cause, Seconds]


def causes_by_rank(records: Iterable[RankRecord]) -> list[Causes]:
    """Return the causes of each rank in order; ranks with equal intervals share the very same ones."""
    # By id(): ranks that were simulated once share the very record, whose intervals would be costly to hash for each rank.
    by_record: dict[int, Causes] = {}
    by_intervals: dict[tuple[tuple[Interval, ...], tuple[TransferInterval, ...]], Causes] = {}
    found = []
    for record in records:
        key = id(record.compute)
        if key not in by_record:
            intervals = tuple(record.compute.merged()), tuple(record.communication.transfers)
            if intervals not in by_intervals:
                by_intervals[intervals] = causes(record)
            by_record[key] = by_intervals[intervals]
        found.append(by_record[key])
    return found


def waiting_seconds(found: Causes) -> float:
    """Return the seconds in which a rank does nothing but wait for partners."""
    return math.fsum(seconds[WAITING] for seconds in found.values())


def host_seconds(found: Causes) -> float:
    """Return the seconds in which a rank's host computes, and its GPU does not."""
    return math.fsum(seconds[ON_HOST] for seconds in found.values())


def exposed_shares(by_rank: Iterable[Causes], steps: int) -> list[ExposedShare]:
    """Return the exposed communication of a step by axis and layer, the mean over the ranks, the largest first."""
    counted: dict[int, tuple[Causes, int]] = {}  # by id(): causes, and how many ranks have them
    for found in by_rank:
        counted[id(found)] = found, counted.get(id(found), (found, 0))[1] + 1
    ranks = sum(number for _, number in counted.values())
    by_cause: dict[Cause, list[tuple[int, Seconds]]] = {}  # the number of ranks, and the seconds of each
    for found, number in counted.values():
        for cause, seconds in found.items():
            by_cause.setdefault(cause, []).append((number, seconds))
    sums: dict[tuple[str, str], Seconds] = {}
    for (axis, layers), shares in by_cause.items():
        means = [math.fsum(times * one[i] for times, one in shares) / ranks / steps for i in range(3)]
        for layer, part in _parts(layers):
            entry = sums.setdefault((axis, layer), [0.0, 0.0, 0.0])
            entry[:] = (known + mean * part for known, mean in zip(entry, means, strict=True))
    rows = [
        ExposedShare(axis, layer, sum(seconds), seconds[WAITING], seconds[ON_HOST])
        for (axis, layer), seconds in sums.items()
    ]
    return sorted((row for row in rows if row.exposed_s > 0), key=lambda row: (-row.exposed_s, row.axis, row.layer))


class ExposedSeconds(NamedTuple):
    """The exposed seconds of an axis, and those of them that wait, and in which the host computes."""

    exposed_s: float = 0.0
    waiting_s: float = 0.0
    host_s: float = 0.0


def by_axis(shares: Iterable[ExposedShare]) -> dict[str, ExposedSeconds]:
    """Return the exposed seconds of each axis."""
    found: dict[str, list[ExposedSeconds]] = {}
    for share in shares:
        found.setdefault(share.axis, []).append(ExposedSeconds(share.exposed_s, share.waiting_s, share.host_s))
    return {axis: ExposedSeconds(*map(math.fsum, zip(*some, strict=True))) for axis, some in found.items()}


def causes(record: RankRecord) -> Causes:
    """Return the seconds of one rank in which it computes nothing, by the transfers that are under way."""
    gaps = without(record.communication.merged(), record.compute.merged())
    starts = [start for start, _ in gaps]
    points: list[tuple[float, int, int, Cause]] = []  # time, ends or begins, what it does, whose
    for arrived, started, finished, axis, layers, on_host in record.communication.transfers:
        cause = axis, layers
        for index in range(max(bisect_left(starts, arrived) - 1, 0), len(gaps)):
            start, end = gaps[index]
            if start >= finished:
                break
            for kind, begin, stop in ((WAITING, arrived, started), (ON_HOST if on_host else MOVING, started, finished)):
                begin, stop = begin if begin > start else start, stop if stop < end else end
                if begin < stop:
                    points += (begin, 1, kind, cause), (stop, 0, kind, cause)
    points.sort(key=itemgetter(0, 1))
    return _shared_seconds(points)


def without(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """Return the parts of ``first`` outside of ``second``; both are disjoint and ordered."""
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


def _shared_seconds(points: Iterable[tuple[float, int, int, Cause]]) -> Causes:
    found: Causes = {}
    active: list[dict[Cause, int]] = [{}, {}, {}]  # how many move, wait, and compute on the host
    before = 0.0
    for time, begins, kind, cause in points:
        running = ON_HOST if active[ON_HOST] else MOVING if active[MOVING] else WAITING
        if time > before and active[running]:
            total = sum(active[running].values())
            for one, count in active[running].items():
                found.setdefault(one, [0.0, 0.0, 0.0])[running] += (time - before) * count / total
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
