"""Writes files of the PyTorch profiler (Kineto), as ``kineto`` reads them: the calls of a rank's host, and the work of its GPU.

The names of events and arguments are those of PyTorch 2.x with ``record_shapes`` and ``profile_memory``, so that the tools that
read its profiles read these too. All times are whole nanoseconds; the file has microseconds with three decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TextIO

from triosim.trace.autograd import ENGINE_PREFIX
from triosim.trace.formats.pytorch.execution_trace import DTYPES
from triosim.trace.step_facts import StepFacts
from triosim.trace.trace import Tensor
from triosim.units import as_microseconds, slice_times

WorkCategory = Literal["kernel", "gpu_memcpy", "gpu_memset"]
#: A thread of the host: that of the script, and autograd's.
Thread = Literal["main", "backward"]

#: Nanoseconds by which a wait begins before it is over.
_BEFORE = 2000
#: The stream by which the profiler names the whole device, and the track on which that is shown, below all streams.
_DEVICE, _DEVICE_TRACK = -1, 10_000
#: Process ids of hosts begin here, above all device numbers, which are the process ids of GPUs.
FIRST_PROCESS = 100_000
_TYPES = {dtype: name for name, dtype in reversed(DTYPES.items())}
_LAUNCHES: Mapping[WorkCategory, str] = {
    "kernel": "cudaLaunchKernel",
    "gpu_memcpy": "cudaMemcpyAsync",
    "gpu_memset": "cudaMemsetAsync",
}


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communicator of the rank: PyTorch's number for it, what it is for ("dp"), and its ranks."""

    number: int
    description: str
    ranks: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as in ``distributedInfo``."""
        return {
            "pg_name": str(self.number),
            "pg_desc": self.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(self.ranks),
            "ranks": list(self.ranks),
        }


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    """The rank that a file is of, its GPU, and what is said of the step; ``device`` is the GPU's number on its host."""

    rank: int
    world: int
    gpu: str
    device: int = 0
    groups: tuple[ProcessGroup, ...] = ()
    facts: StepFacts = field(default_factory=StepFacts)


class RecordedEvent(NamedTuple):
    """A CUDA event: the correlation of the call that recorded it, the stream, and when it is done."""

    correlation: int
    stream: int
    done: int


@dataclass(frozen=True, slots=True)
class HostSpan:
    """When a thread of the host was in a call, in nanoseconds."""

    begin: int
    end: int
    thread: Thread = "main"

    def inner(self, margin: int) -> HostSpan:
        """Return a span that lies within by a margin, so that rounding never lets a call outlast the one around it."""
        return HostSpan(self.begin + margin, self.end - margin, self.thread)


class KinetoFile:
    """A profile that is being written; ``finish`` completes it.

    ``arguments`` of events are JSON text (``encoded``), because most repeat themselves.
    """

    def __init__(self, file: TextIO, owner: ProfiledRank) -> None:
        self._file = file
        self._owner = owner
        self._host = FIRST_PROCESS + owner.rank
        self._threads: dict[Thread, int] = {"main": self._host, "backward": self._host + 1}
        self._used: set[Thread] = {"main"}
        self._begins: dict[int, int] = {}  # of the first slice of each stream and thread
        self._calls = self._correlation = 0
        self._separator = ""
        properties = [{"id": owner.device, "name": owner.gpu}]
        groups = [group.as_json() for group in owner.groups]
        distributed = {"backend": "nccl", "rank": owner.rank, "world_size": owner.world, "pg_count": len(groups)}
        file.write('{"schemaVersion": 1,\n')
        for key, value in (
            ("deviceProperties", properties),
            ("distributedInfo", distributed | {"pg_config": groups}),
            ("displayTimeUnit", "ms"),
            ("baseTimeNanoseconds", 0),
            *owner.facts.attributes.items(),
        ):
            file.write(f'"{key}": {json.dumps(value)},\n')
        file.write('"traceEvents": [\n')
        self._name_process(self._host, f"python {self._host}", "CPU", owner.rank)

    def call(self, name: str, span: HostSpan, arguments: str = "") -> int:
        """Write a call, and return its id, by which the work that it launches names it."""
        self._calls += 1
        own = f'"External id": {self._calls}' + (f", {arguments}" if arguments else "")
        self._host_slice("cpu_op", name, span, own)
        return self._calls

    def annotation(self, name: str, span: HostSpan) -> None:
        """Write an annotation of the script: a step, a module, the optimizer."""
        self._host_slice("user_annotation", name, span, "")

    def runtime(self, name: str, span: HostSpan) -> int:
        """Write a call of the CUDA runtime that launches nothing, and return its correlation."""
        self._correlation += 1
        self._host_slice("cuda_runtime", name, span, f'"correlation": {self._correlation}')
        return self._correlation

    def synchronize(self, span: HostSpan) -> None:
        """Write that the host waits for the device until the end of the span."""
        self.runtime("cudaDeviceSynchronize", span)
        self._synchronization("Context Sync", _DEVICE, span.begin, span.end, "")

    def record_event(self, stream: int, done: int, span: HostSpan) -> RecordedEvent:
        """Write that an event is recorded on a stream, after the work that was launched on it last, and is ``done``."""
        return RecordedEvent(self.runtime("cudaEventRecord", span), stream, done)

    def wait_event(self, stream: int, event: RecordedEvent, span: HostSpan) -> None:
        """Write that the next work that is launched on a stream waits for an event.

        The wait stands on the stream just before it is over: readers that count whole microseconds let the work after it wait
        for the event of the last such wait.
        """
        self.runtime("cudaStreamWaitEvent", span)
        begin = max(span.begin, event.done - _BEFORE)
        awaited = (
            f', "wait_on_stream": {event.stream}, "wait_on_cuda_event_record_corr_id": {event.correlation}, '
            f'"wait_on_cuda_event_id": {event.correlation}'
        )
        self._synchronization("Stream Wait Event", stream, begin, begin + 1, awaited)

    def work(
        self,
        name: str,
        category: WorkCategory,
        stream: int,
        begin: int,
        end: int,
        launch: HostSpan,
        arguments: str = "",
    ) -> None:
        """Write what the GPU runs on a stream, and its launch by the call that was written last."""
        self._correlation += 1
        common = f'"External id": {self._calls}, "correlation": {self._correlation}'
        self._host_slice("cuda_runtime", _LAUNCHES[category], launch, common)
        own = f'{common}, "device": {self._owner.device}, "context": 1, "stream": {stream}'
        more = f", {arguments}" if arguments else ""
        where = f'"pid": {self._owner.device}, "tid": {stream}'
        what = f'"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, {where}'
        self._event(f'{what}, {self._times(stream, begin, end)}, "args": {{{own}{more}}}')
        arrow = f'"cat": "ac2g", "name": "ac2g", "id": {self._correlation}'
        source = f'"pid": {self._host}, "tid": {self._threads[launch.thread]}, "ts": {as_microseconds(launch.begin)}'
        self._event(f'"ph": "s", {arrow}, {source}')
        self._event(f'"ph": "f", "bp": "e", {arrow}, {where}, "ts": {as_microseconds(begin)}')

    def memory(self, moment: int, nbytes: int, address: int, allocated: int, reserved: int) -> None:
        """Write an allocation, or a free with ``nbytes`` below 0, and the allocator's totals after it."""
        values = {
            "Total Reserved": reserved, "Total Allocated": allocated, "Bytes": nbytes, "Addr": address,
            "Device Id": self._owner.device, "Device Type": 1,
        }  # fmt: skip
        where = f'"pid": {self._host}, "tid": {self._host}, "ts": {as_microseconds(moment)}'
        what = '"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]"'
        self._event(f'{what}, {where}, "args": {json.dumps(values)}')

    def finish(self, streams: Mapping[int, str]) -> None:
        """Name the threads and the streams, which are numbered, and end the file."""
        for thread in sorted(self._used):
            self._name_thread(self._host, self._threads[thread], f"{thread} thread", self._threads[thread])
        self._name_process(self._owner.device, f"{self._owner.gpu}", f"GPU {self._owner.device}", 5_000_000)
        for order, (stream, name) in enumerate(streams.items()):
            self._name_thread(self._owner.device, stream, f"stream {stream} {name}", order)
        if _DEVICE_TRACK in self._begins:
            self._name_thread(self._owner.device, _DEVICE_TRACK, "device", _DEVICE_TRACK)
        self._file.write(f'\n],\n"traceName": "rank-{self._owner.rank}.json"}}\n')

    # ---- events -------------------------------------------------------------------------------------------------

    def _synchronization(self, name: str, stream: int, begin: int, end: int, awaited: str) -> None:
        """Write what the device knows of the runtime's last call, as the profiler does where it is asked for it."""
        own = f'"device": {self._owner.device}, "context": 1, "stream": {stream}, "correlation": {self._correlation}{awaited}'
        track = _DEVICE_TRACK if stream == _DEVICE else stream
        what = f'"ph": "X", "cat": "cuda_sync", "name": "{name}", "pid": {self._owner.device}, "tid": {track}'
        self._event(f'{what}, {self._times(track, begin, end)}, "args": {{{own}}}')

    def _host_slice(self, category: str, name: str, span: HostSpan, arguments: str) -> None:
        self._used.add(span.thread)
        thread = self._threads[span.thread]
        what = f'"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {self._host}, "tid": {thread}'
        self._event(f'{what}, {self._times(thread, span.begin, span.end)}, "args": {{{arguments}}}')

    def _times(self, track: int, begin: int, end: int) -> str:
        return slice_times(begin, end, self._begins.setdefault(track, begin))

    def _name_process(self, process: int, name: str, label: str, order: int) -> None:
        for kind, value in (("name", name), ("labels", label), ("sort_index", order)):
            self._metadata(f"process_{kind}", process, 0, {kind: value})

    def _name_thread(self, process: int, thread: int, name: str, order: int) -> None:
        self._metadata("thread_name", process, thread, {"name": name})
        self._metadata("thread_sort_index", process, thread, {"sort_index": order})

    def _metadata(self, kind: str, process: int, thread: int, value: Mapping[str, Any]) -> None:
        where = f'"pid": {process}, "tid": {thread}, "ts": 0'
        self._event(f'"ph": "M", "name": "{kind}", {where}, "args": {json.dumps(value)}')

    def _event(self, body: str) -> None:
        self._file.write(f"{self._separator}{{{body}}}")
        self._separator = ",\n"


def encoded(arguments: Mapping[str, Any]) -> str:
    """Return arguments of an event as it takes them: JSON without the braces."""
    return json.dumps(arguments)[1:-1]


def shapes(inputs: Iterable[Tensor]) -> dict[str, Any]:
    """Return the arguments of a call with inputs, as ``record_shapes`` records them."""
    tensors = list(inputs)
    return {
        "Input Dims": [list(tensor.shape) for tensor in tensors],
        "Input type": [_TYPES.get(tensor.dtype, tensor.dtype) for tensor in tensors],
    }


def autograd_name(node: str) -> str:
    """Return the name of the call that evaluates a node of the backward pass."""
    return f"{ENGINE_PREFIX}{node}"


def category_of(kernels: Sequence[str]) -> WorkCategory:
    """Return the category of the work of an operator by its kernels."""
    if kernels and all(name.startswith("Memcpy") for name in kernels):
        return "gpu_memcpy"
    if kernels and all(name.startswith("Memset") for name in kernels):
        return "gpu_memset"
    return "kernel"
