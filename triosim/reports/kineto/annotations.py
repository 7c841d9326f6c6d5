"""The annotations of a rank's profile: the profiler's steps or a script's own ranges, forward passes, layers, optimizer steps.

All of one thread nest: a range of the script begins and ends between the calls that it was issued between, and a layer's
annotation is interrupted where a range begins or ends.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from triosim.reports.kineto.activity import Activity
from triosim.tasks import Handle
from triosim.trace.formats.pytorch.kineto_file import HostSpan, Thread
from triosim.trace.formats.pytorch.profiled_step import LAYER_PREFIX
from triosim.units import whole_nanoseconds

#: Nanoseconds on the host's clock at which a profile begins: a time of 0 means none to some readers.
BEGIN = 1000
#: How much smaller a call is than the one around it.
MARGIN = 2
#: Of more ranges within each other than these, the inner ones may end when an outer one does.
_DEEPEST = 8
#: The annotation of an optimizer's step, whose class no trace names.
_OPTIMIZER = "Optimizer.step#Optimizer.step"


class ScriptRange(NamedTuple):
    """A range that a script names, in seconds of its host, within ``depth`` others.

    The rank's tasks from ``first`` to before ``last`` are in it.
    """

    name: str
    begin: float
    end: float
    first: int
    last: int
    depth: int = 0


def deepest(ranges: Sequence[ScriptRange] | None) -> int:
    """Return how many ranges calls are in at most, by which all that is within them is smaller than they are."""
    return min(_DEEPEST, max((one.depth + 1 for one in ranges or ()), default=0))


def annotation_spans(
    found: Sequence[Activity],
    model: str,
    done: int,
    handles: Sequence[Handle],
    ranges: Sequence[ScriptRange] | None = None,
) -> Iterator[tuple[str, HostSpan]]:
    """Yield the annotations of an activity whose GPU is ``done`` then, outer ones first; ``ranges`` replace the steps."""
    if ranges is None:
        yield from _steps(found, done)
        yield from _sections(found, [0] * len(found), model, depth=None)
        return
    numbers = {handle: number for number, handle in enumerate(handles)}
    tasks = [numbers[one.handle] for one in found]
    depth = deepest(ranges)
    for one in ranges:
        margin = min(one.depth, depth)
        begin = _moment(one.first, one.begin, tasks, found) + margin
        end = _moment(one.last, one.end, tasks, found) - margin
        yield one.name, HostSpan(begin, max(end, begin + 1))
    edges = sorted({edge for one in ranges for edge in (one.first, one.last)})
    yield from _sections(found, [bisect.bisect_right(edges, task) for task in tasks], model, depth=depth)


def call_span(one: Activity, depth: int) -> HostSpan:
    """Return the span of a call on the host's clock of the file, within the annotations around it, and ``depth`` ranges."""
    thread: Thread = "backward" if one.phase == "backward" else "main"
    return HostSpan(one.called + BEGIN, one.returned + BEGIN, thread).inner(depth + MARGIN)


def _moment(task: int, seconds: float, tasks: Sequence[int], found: Sequence[Activity]) -> int:
    """Return when a range begins or ends, given the task that follows: not before the calls ahead of that return."""
    following = bisect.bisect_left(tasks, task)
    moment = whole_nanoseconds(seconds)
    if following < len(found):
        moment = min(moment, found[following].called)
    if following > 0:
        moment = max(moment, found[following - 1].returned)
    return moment + BEGIN


def _steps(found: Sequence[Activity], done: int) -> Iterator[tuple[str, HostSpan]]:
    """Yield the profiler's step of each iteration; the last one ends when the GPU is ``done``."""
    begins = [next(some).called + BEGIN for _, some in groupby(found, key=lambda one: one.iteration)]
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], done + MARGIN + 1], strict=True)):
        yield f"ProfilerStep#{number}", HostSpan(begin - 1, end - 2)


def _sections(
    found: Sequence[Activity], within: Sequence[int], model: str, *, depth: int | None
) -> Iterator[tuple[str, HostSpan]]:
    """Yield the annotations of the model's forward passes, of its layers, and, where no script's ranges do, of the optimizer.

    ``within`` numbers the parts of the script that calls are in; they are in up to ``depth`` ranges.
    """
    placed = zip(found, within, strict=True)
    for (_, phase, _), rows in groupby(placed, key=lambda pair: (pair[0].iteration, pair[0].phase, pair[1])):
        section = [one for one, _ in rows]
        if phase == "forward" or (phase == "optimizer" and depth is None):
            yield _OPTIMIZER if phase == "optimizer" else f"{LAYER_PREFIX}{model}", _around(section, depth or 0)
        if phase != "optimizer":
            for layer, calls in groupby(section, key=lambda one: one.layer):
                yield f"{LAYER_PREFIX}{layer}", _around(list(calls), (depth or 0) + 1)


def _around(calls: Sequence[Activity], margin: int) -> HostSpan:
    thread = call_span(calls[0], 0).thread
    return HostSpan(calls[0].called + BEGIN, calls[-1].returned + BEGIN, thread).inner(margin)
