"""Writes the profile of one rank: its steps, modules, calls, kernels, transfers and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TextIO

from triosim.engine.recording import HostWait
from triosim.reports.kineto.activity import Activity, activities
from triosim.reports.kineto.annotations import BEGIN, MARGIN, ScriptRange, annotation_spans, call_span, deepest
from triosim.reports.kineto.gradients import accumulated, is_accumulation
from triosim.reports.kineto.memory import memory_events
from triosim.reports.kineto.run_facts import RunFacts
from triosim.reports.kineto.stream_waits import StreamWaits
from triosim.reports.kineto.synchronizations import synchronizations
from triosim.reports.kineto.transfers import profiled
from triosim.reports.tracks import Tracks
from triosim.reports.transfer_names import Transfer
from triosim.tasks import Handle
from triosim.trace import Operator, Tensor
from triosim.trace.autograd import ACCUMULATE_GRAD
from triosim.trace.formats.pytorch.kineto_file import (
    HostSpan,
    KinetoFile,
    ProfiledRank,
    RecordedEvent,
    WorkCategory,
    autograd_name,
    category_of,
    encoded,
    shapes,
)
from triosim.units import whole_nanoseconds

#: The longest that a launch takes of its call.
_LAUNCH = 1000
#: Nanoseconds of a call that records an event, or lets a stream wait for one.
_EVENT = 2
#: The least of a batch's call that is left when its messages are named.
_ROOM = 20
#: Nanoseconds of the call that gives a parameter its gradient.
_ACCUMULATION = 4


class RankFile:
    """Writes one rank's profile to an open file."""

    def __init__(self, file: TextIO, owner: ProfiledRank, facts: RunFacts) -> None:
        self._kineto = KinetoFile(file, owner)
        self._owner = owner
        self._facts = facts
        self._tracks = Tracks(facts.streams)
        self._later = BEGIN + facts.lead
        self._sequences = _SequenceNumbers()
        self._arguments: dict[int, str] = {}  # by id() of an operator, which the recording keeps alive
        self._waits = StreamWaits({}, frozenset())
        self._last: dict[Handle, Activity] = {}  # of the activities of a task that run
        self._begun: set[Handle] = set()
        self._events: dict[Handle, RecordedEvent] = {}
        self._depth = 0  # of a script's ranges
        self._gradients: Mapping[int, Sequence[Tensor]] = {}  # those that are complete after an operator

    def write(
        self, handles: Sequence[Handle], waits: Sequence[HostWait] = (), ranges: Sequence[ScriptRange] | None = None
    ) -> None:
        """Write the whole profile, with the ``waits`` of the host; a script's own ``ranges`` stand in place of the steps."""
        found = list(activities(handles))
        self._waits = StreamWaits.of(handles)
        self._gradients = accumulated(found)
        self._depth = deepest(ranges)
        self._last = {one.handle: one for one in found if one.runs}
        if found:
            returned = found[-1].returned + BEGIN
            done = max(returned + 1, self._later + max(one.end for one in found))
            spans = list(annotation_spans(found, self._facts.model, done, handles, ranges))
            for name, span in spans:
                self._kineto.annotation(name, span)
            for one in found:
                self._write(one)
            for name, span in synchronizations(found, waits):
                self._kineto.runtime(name, span)
            if ranges is not None:
                returned = max((returned, *(span.end for _, span in spans)))
            self._kineto.synchronize(HostSpan(returned, max(returned + 1, done)))
        if self._facts.memory is not None:
            for event in memory_events(self._facts.memory, self._owner.rank, found):
                self._kineto.memory(event.moment + BEGIN, *event[1:])
        self._kineto.finish(self._tracks.names)

    def _write(self, one: Activity) -> None:
        if one.operator is None:
            self._transfer(one, one.handle.task)  # type: ignore[arg-type]  # what has no operator is a transfer
        else:
            self._operator(one, one.operator)

    def _operator(self, one: Activity, operator: Operator) -> None:
        backward = operator.phase == "backward"
        gradients = self._gradients.get(operator.id, ())
        whole = call_span(one, self._depth)
        span = HostSpan(whole.begin, whole.end - _ACCUMULATION * len(gradients), whole.thread)
        arguments = self._arguments.get(id(operator))
        if arguments is None:
            arguments = self._arguments[id(operator)] = encoded(shapes(operator.inputs))
        sequence = self._sequences.of(operator)
        known = f'"Fwd thread id": {int(backward)}'
        if sequence is not None:
            known += f', "Sequence number": {sequence}'
        name = ACCUMULATE_GRAD if is_accumulation(operator) else operator.name
        name = autograd_name(name) if backward else name
        self._kineto.call(name, span, f"{known}, {arguments}")
        if one.runs:
            kernel = operator.kernels[0] if len(operator.kernels) == 1 else operator.name
            self._work(one, kernel, category_of(operator.kernels), span, "")
        for number, gradient in enumerate(gradients):
            begin = span.end + _ACCUMULATION * number
            kept = HostSpan(begin + 1, begin + _ACCUMULATION, span.thread)
            about = f'"Fwd thread id": 1, {encoded(shapes([gradient]))}'
            self._kineto.call(autograd_name(ACCUMULATE_GRAD), kept, about)

    def _transfer(self, one: Activity, task: Transfer) -> None:
        shown = profiled(task, self._owner.rank, self._facts.groups, one.handle.received)
        waiting = whole_nanoseconds(one.handle.started or 0.0) - one.begin
        about = {**shown.arguments, "waiting_us": waiting / 1000} if waiting > 0 else shown.arguments
        span, arguments = call_span(one, self._depth), encoded(about)
        self._kineto.call(shown.call, span, f'"Fwd thread id": {int(span.thread == "backward")}')
        if shown.communicates:
            span = span.inner(MARGIN)
            for part in shown.parts:
                begin = min(span.begin, span.end - _ROOM)
                self._kineto.call("record_param_comms", HostSpan(begin, begin + 1, span.thread), encoded(part))
                span = HostSpan(begin + 1, span.end, span.thread)
            self._kineto.call("record_param_comms", span, arguments)
        if one.runs:
            self._work(one, shown.work, shown.category, span, arguments)

    def _work(self, one: Activity, name: str, category: WorkCategory, span: HostSpan, arguments: str) -> None:
        """Write the work of a call that was just written: what its stream waits for, its launch, the event behind it."""
        within = span.inner(MARGIN)
        begin, end = one.begin + self._later, one.end + self._later
        stream = self._tracks.track(one.stream, begin, end)
        since = self._wait(one.handle, stream, within)
        recorded = one.handle in self._waits.recorded and self._last[one.handle] is one
        until = within.end - _EVENT if recorded else within.end
        launch = HostSpan(max(since, until - _LAUNCH), until, span.thread)
        self._kineto.work(name, category, stream, begin, end, launch, arguments)
        if recorded:
            self._events[one.handle] = self._kineto.record_event(stream, end, HostSpan(until, within.end, span.thread))

    def _wait(self, handle: Handle, stream: int, within: HostSpan) -> int:
        """Let the stream wait for the events of a task's first work, those last that end last; return when that is done."""
        since = within.begin
        if handle in self._begun:
            return since
        self._begun.add(handle)
        awaited = [self._events[one] for one in self._waits.awaited.get(handle, ()) if one in self._events]
        most = (within.end - since) // _EVENT - 2
        for event in awaited[max(0, len(awaited) - most) :]:
            self._kineto.wait_event(stream, event, HostSpan(since, since + _EVENT, within.thread))
            since += _EVENT
        return since


class _SequenceNumbers:
    """Numbers the runs of forward operators, as autograd does, and gives the numbers to those that differentiate them.

    The n-th run of an operator of the backward pass differentiates the n-th run of its forward operator.
    """

    def __init__(self) -> None:
        self._next = 0
        self._forward: dict[int, list[int]] = defaultdict(list)
        self._backward: dict[int, int] = defaultdict(int)

    def of(self, operator: Operator) -> int | None:
        """Return the number of this run of an operator; None where it has none."""
        if operator.phase == "forward":
            self._next += 1
            self._forward[operator.id].append(self._next)
            return self._next
        if operator.forward is None:
            return None
        runs = self._forward[operator.forward]
        run = self._backward[operator.id]
        self._backward[operator.id] += 1
        return runs[run] if run < len(runs) else None
