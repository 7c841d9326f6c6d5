"""Reads files of the PyTorch profiler (Kineto): calls on the host, modules, and the work of the GPU.

They are in Chrome's trace format: events with a start and a duration in microseconds. A correlation id joins a kernel to
its launch on a thread of the host.
"""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from triosim.errors import TraceError
from triosim.input_files.reading import head, read_object
from triosim.trace.step_facts import DOUBTS, StepFacts
from triosim.trace.trace import SIMULATED

_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime", "privateuse1_driver")
_WORK = ("kernel", "gpu_memset", "gpu_memcpy")
_WAITS = re.compile("(Stream|Device|Event)Synchronize$|StreamWaitEvent")
_MODULE = "nn.Module: "
#: Microseconds that no event lasts: 30 years.
LONGEST = 1e15

_STEP = re.compile(r"ProfilerStep#\d+")


@dataclass(slots=True, eq=False)
class Span:
    """A call or annotation on a thread of the host, in microseconds. ``after`` is the time to the next call, where known."""

    name: str
    thread: str
    start: float
    end: float
    order: int = 0
    function: int | None = None  # the "Record function id", which the execution trace has too
    external: int | None = None
    annotation: bool = False
    after: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Work:
    """A kernel, copy or memset of the GPU, in microseconds, and where the host launched it, as far as that is known."""

    name: str
    start: float
    end: float
    thread: str | None = None
    launched: float = 0.0
    external: int | None = None
    returned: float = 0.0  # from the launch
    stream: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)


class MemoryEvent(NamedTuple):
    """An allocation (``nbytes`` above 0) or a free, at a moment in microseconds; ``total`` bytes are allocated after it."""

    moment: float
    thread: str
    nbytes: int
    address: int
    on_gpu: bool
    total: int | None = None


class EventWait(NamedTuple):
    """A stream's wait for an event that was recorded on another one, at a moment of the host in microseconds."""

    stream: int
    awaited: int
    recorded: float


@dataclass(slots=True)
class Profile:
    """The parts of a profiler file that are used."""

    calls: list[Span] = field(default_factory=list)  # operators and annotations of the host
    steps: list[Span] = field(default_factory=list)
    modules: dict[str, Spans] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)  # calls by which the host waits, or lets a stream wait
    event_waits: dict[int, EventWait] = field(
        default_factory=dict
    )  # what calls let wait for what, by their correlation
    lost: list[float] = field(default_factory=list)  # moments of launches whose kernels are not there
    memory: list[MemoryEvent] = field(default_factory=list)
    gpu: str = "unknown"
    software: dict[str, str] = field(default_factory=dict)
    distributed: dict[str, Any] = field(default_factory=dict)  # the rank, of how many, and their groups
    facts: StepFacts = field(default_factory=StepFacts)  # of a step that triosim wrote
    times: str = "measured"  # as in ``Trace``


class Spans:
    """The spans of one thread, nested as calls are, to look up those that contain a moment."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start, -span.end, span.order))
        self._starts = [span.start for span in self.spans]
        self._parents: list[int] = []
        open_spans: list[int] = []
        for index, span in enumerate(self.spans):
            while open_spans and self.spans[open_spans[-1]].end < span.end:
                open_spans.pop()
            self._parents.append(open_spans[-1] if open_spans else -1)
            open_spans.append(index)

    def at(self, moment: float) -> list[Span]:
        """Return the spans that contain a moment, the outermost first."""
        found: list[Span] = []
        index = bisect.bisect_right(self._starts, moment) - 1
        while index >= 0:
            if self.spans[index].end >= moment:
                found.append(self.spans[index])
            index = self._parents[index]
        return found[::-1]


def recognises(path: Path) -> bool:
    """Whether a file is a profiler's."""
    return re.search(rb'"(schemaVersion|traceEvents)"\s*:', head(path)) is not None


def read(path: Path) -> Profile:
    """Read a profiler file."""
    data = read_object(path, unique_keys=False, finite=False)
    events = data.get("traceEvents")
    if not isinstance(events, list):
        raise TraceError("has no list of events", where=f"{path}: traceEvents", fix="give a PyTorch profiler file")
    found = _Events()
    for order, event in enumerate(events):
        if isinstance(event, dict):
            found.add(event, order)
    profile = found.profile()
    _check_kernels(found.work, profile.work, path)
    _describe(profile, data, found.work)
    return profile


class _Events:
    """The events of a file by what they are of, until all are there: a kernel may stand before the call that launched it.

    ``work`` are those of the GPU.
    """

    def __init__(self) -> None:
        self.work: list[dict[str, Any]] = []
        self._profile = Profile()
        self._modules: dict[str, list[Span]] = {}
        # By correlation: the thread and the moments of calls, the moments of those that launch kernels or record events.
        self._calls: dict[object, tuple[str, float, float]] = {}
        self._launches: dict[object, float] = {}
        self._records: dict[object, float] = {}
        self._synchronizations: list[dict[str, Any]] = []

    def add(self, event: dict[str, Any], order: int) -> None:
        """Add an event, the ``order``-th of the file."""
        if event.get("name") == "[memory]":
            self._profile.memory.append(_memory(event))
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        if category in ("cpu_op", "user_annotation"):
            call = _span(event, order)
            call.annotation = category == "user_annotation"
            (self._profile.steps if _STEP.fullmatch(call.name) else self._profile.calls).append(call)
        elif category == "python_function" and str(event["name"]).startswith(_MODULE):
            module = _span(event, order)
            module.name = module.name.removeprefix(_MODULE)
            self._modules.setdefault(module.thread, []).append(module)
        elif category in _LAUNCHES:
            self._add_call(event, order)
        elif category in _WORK:
            self.work.append(event)
        elif category == "cuda_sync":
            self._synchronizations.append(event.get("args", {}))

    def _add_call(self, event: dict[str, Any], order: int) -> None:
        """Add a call of the GPU's runtime."""
        name, correlation = str(event.get("name")), event["args"].get("correlation")
        self._calls[correlation] = (str(event["tid"]), *_moments(event))
        if "LaunchKernel" in name:
            self._launches[correlation] = float(event["ts"])
        if "EventRecord" in name:
            self._records[correlation] = float(event["ts"])
        if _WAITS.search(name):
            self._profile.waits.append(_span(event, order))

    def profile(self) -> Profile:
        """Return what the events are of together, the work of the GPU with its launches."""
        profile = self._profile
        ran = set()
        for event in self.work:
            arguments = event.get("args", {})
            ran.add(arguments.get("correlation"))
            thread, launched, returned = self._calls.get(arguments.get("correlation"), (None, 0.0, 0.0))
            external, stream = _number(arguments.get("External id")), _number(arguments.get("stream"))
            times = *_moments(event), thread, launched, external, returned
            profile.work.append(Work(str(event["name"]), *times, stream or 0, arguments))
        profile.event_waits = _event_waits(self._synchronizations, self._records)
        profile.lost = sorted(moment for correlation, moment in self._launches.items() if correlation not in ran)
        profile.memory.sort(key=lambda one: one.moment)
        profile.work.sort(key=lambda one: (one.start, one.end))
        profile.modules = {thread: Spans(spans) for thread, spans in self._modules.items()}
        return profile


def _describe(profile: Profile, data: dict[str, Any], work: list[dict[str, Any]]) -> None:
    """Add what a file says beside its events: the GPU, the rank, the software, and facts of a step that triosim wrote."""
    device = work[0].get("args", {}).get("device", 0) if work else 0
    for properties in data.get("deviceProperties", ()):
        if properties.get("id") == device and work:
            profile.gpu = str(properties.get("name", "unknown"))
    stated = data.get("distributedInfo")
    profile.distributed = stated if isinstance(stated, dict) else {}
    if StepFacts.are_in(data):
        profile.facts, profile.times = StepFacts.of(data), SIMULATED
        if profile.facts.doubts:
            profile.software[DOUBTS] = json.dumps(dict(profile.facts.doubts))
    for key, value in data.items():
        if key.endswith("_version") and isinstance(value, (str, int)):
            profile.software[key.removesuffix("_version")] = str(value)


def _event_waits(found: Iterable[dict[str, Any]], records: Mapping[object, float]) -> dict[int, EventWait]:
    """Return what streams wait for, as a profiler with ``enable_cuda_sync_events`` knows it."""
    waits = {}
    for arguments in found:
        recorded = records.get(arguments.get("wait_on_cuda_event_record_corr_id"))
        call, stream, awaited = (_number(arguments.get(key)) for key in ("correlation", "stream", "wait_on_stream"))
        if recorded is not None and call is not None and stream is not None and awaited is not None:
            waits[call] = EventWait(stream, awaited, recorded)
    return waits


def _check_kernels(events: list[dict[str, Any]], work: list[Work], path: Path) -> None:
    """Refuse a profile from a GPU whose operators would all seem to take no time."""
    if events and not any(event.get("cat") == "kernel" for event in events):
        raise TraceError("has no kernels, only copies", where=str(path), fix="profile with ProfilerActivity.CUDA")
    if work and all(one.thread is None and one.external is None for one in work):
        raise TraceError(
            "does not say which call launched its kernels: none has a correlation",
            where=str(path),
            fix="profile with ProfilerActivity.CPU and ProfilerActivity.CUDA",
        )


def _span(event: dict[str, Any], order: int) -> Span:
    arguments = event.get("args", {})
    function, external = _number(arguments.get("Record function id")), _number(arguments.get("External id"))
    return Span(str(event["name"]), str(event["tid"]), *_moments(event), order, function, external, arguments=arguments)


def _memory(event: dict[str, Any]) -> MemoryEvent:
    nbytes, address, device = (int(event["args"][key]) for key in ("Bytes", "Addr", "Device Type"))
    total = _number(event["args"].get("Total Allocated"))
    return MemoryEvent(float(event["ts"]), str(event["tid"]), nbytes, address, device != 0, total)


def _moments(event: dict[str, Any]) -> tuple[float, float]:
    start, duration = float(event["ts"]), float(event["dur"])
    if not (math.isfinite(start) and 0 <= duration <= LONGEST):
        raise ValueError(f"'{event['name']}' has the time {start} and the duration {duration}")
    return start, start + duration


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
