"""PyTorch's profiler in simulated time: it starts, stops, averages and exports as always, and what it saw is the simulation's.

PyTorch's own Python runs (schedules, tables, handlers); the functions of its C++ core that begin and end a profile are
replaced. Ranges (``record_function``, the profiler's and optimizers' own) go into it at their simulated times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType, ProfilerActivity
from torch.autograd import profiler as autograd_profiler

from triosim.live.items import ProfileBegins, ProfileEnds, RangeBegins, RangeEnds
from triosim.live.script_process.task_feed import TaskFeed
from triosim.trace.formats.pytorch.kineto_file import ProfiledRank
from triosim.tracer.patches import Patch, Patches

_profile_init = autograd_profiler.profile.__init__
_ON_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_OF_CUDA = _ON_GPU | {"cuda_runtime", "ac2g"}
#: Numbers of events that PyTorch numbers by itself begin here.
_OWN_NUMBERS = 1 << 40


class _Profiler:
    """The profiler of a running rank, between its start and its stop."""

    def __init__(self, feed: TaskFeed, owner: ProfiledRank, folder: Path) -> None:
        self._feed = feed
        self._owner = owner
        self._files = (folder / f"profile-{owner.rank}-{number}.json" for number in count())
        self._activities: set[Any] = set()
        self.metadata: dict[str, str] = {}

    @property
    def is_running(self) -> bool:
        """Whether the script's main thread is being profiled."""
        return bool(self._activities) and self._feed.is_of_this_thread

    def begin(self, config: Any, activities: set[Any], *_: Any) -> None:
        """Begin a profile; without activities (NVTX's ranges) there is none."""
        self._activities = set(activities)
        self.metadata = {}
        if activities:
            self._feed.send(ProfileBegins())

    def end(self) -> SimulatedProfile | None:
        """End the profile, and return it."""
        if not self._activities:
            return None
        file = next(self._files)
        torch.cuda.synchronize()  # a profile has what has ended
        self._feed.ask(ProfileEnds(str(file), self._owner))
        of_gpu = ProfilerActivity.CUDA in self._activities
        of_host = ProfilerActivity.CPU in self._activities
        self._activities = set()
        return SimulatedProfile(file, self.metadata, of_host=of_host, of_gpu=of_gpu)

    def range_begins(self, name: str) -> None:
        """Note that the script begins a range."""
        if self.is_running:
            self._feed.send(RangeBegins(name))

    def range_ends(self) -> None:
        """Note that the innermost range ends."""
        if self.is_running:
            self._feed.send(RangeEnds())

    def add_metadata(self, key: str, value: str) -> None:
        """Add a value, as JSON text, to what is exported."""
        self.metadata[key] = value


class SimulatedProfile:
    """A profile as PyTorch's core would return it (``torch._C._autograd._ProfilerResult``), read from a Kineto file."""

    def __init__(self, file: Path, metadata: Mapping[str, str], *, of_host: bool, of_gpu: bool) -> None:
        self._file = file
        self._metadata = metadata
        self._of_host, self._of_gpu = of_host, of_gpu

    @cached_property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._file.read_text())
        content["traceEvents"] = [one for one in content["traceEvents"] if self._shows(one.get("cat", ""))]
        return content

    def _shows(self, category: str) -> bool:
        if category in _OF_CUDA:
            return self._of_gpu
        return self._of_host or not category

    def events(self) -> list[_Event]:
        """Return the events, as PyTorch's core does."""
        return list(_events(self._content["traceEvents"]))

    def trace_start_ns(self) -> int:
        """Return the time of the first event."""
        return min((one.start_ns() for one in self.events()), default=0)

    def experimental_event_tree(self) -> list[Any]:
        """Return nothing: there is no record of Python's calls."""
        return []

    def save(self, path: str) -> None:
        """Write the profile, with what the script added to it."""
        added = {}
        for key, value in self._metadata.items():
            with suppress(ValueError):
                added[key] = json.loads(value)
        Path(path).write_text(json.dumps({**added, **self._content}, indent=0))


class _Event:
    """An event as PyTorch's core describes it: methods without arguments. What it does not know is None."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        value = self._values.get(name, _UNKNOWN.get(name))
        return lambda: value


_EMPTY: tuple[Any, ...] = ()
_UNKNOWN: Mapping[str, Any] = {
    **dict.fromkeys(("overload_name", "metadata_json"), ""),
    **dict.fromkeys(("shapes", "concrete_inputs", "stack", "dtypes", "kwinputs", "extra_meta"), _EMPTY),
    **dict.fromkeys(("structured_input_shapes", "structured_input_strides"), _EMPTY),
    **dict.fromkeys(("fwd_thread_id", "scope", "flops", "nbytes", "device_index", "device_resource_id"), 0),
    **dict.fromkeys(("correlation_id", "linked_correlation_id", "external_id", "flow_id", "flow_type"), 0),
    **dict.fromkeys(("cuda_elapsed_us", "privateuse1_elapsed_us", "sequence_nr"), -1),
    **dict.fromkeys(("python_id", "python_parent_id", "python_module_id"), -1),
    **dict.fromkeys(("is_async", "is_user_annotation", "is_python_function", "is_hidden_event", "flow_start"), False),
}


def _events(events: list[dict[str, Any]]) -> Iterator[_Event]:
    """Yield the calls, ranges, launches and work of a Kineto file."""
    numbers = count(_OWN_NUMBERS)
    for one in events:
        category, given = one.get("cat"), one.get("args", {})
        if one["ph"] != "X" or one["name"].startswith("layer: "):
            continue
        on_gpu = category in _ON_GPU
        begin, end = round(one["ts"] * 1e3), round((one["ts"] + one["dur"]) * 1e3)
        is_call = category == "cpu_op"
        yield _Event(
            name=_kernel_name(one["name"]) if on_gpu else one["name"],
            start_ns=begin,
            end_ns=end,
            duration_ns=end - begin,
            device_type=DeviceType.CUDA if on_gpu else DeviceType.CPU,
            device_index=one["pid"] if on_gpu else 0,
            device_resource_id=one["tid"],
            start_thread_id=one["tid"],
            end_thread_id=one["tid"],
            correlation_id=given["External id"] if is_call else next(numbers),
            linked_correlation_id=0 if is_call else given.get("External id", 0),
            shapes=given.get("Input Dims", []),
            dtypes=given.get("Input type", []),
            sequence_nr=given.get("Sequence number", -1),
            fwd_thread_id=given.get("Fwd thread id", 0),
            is_user_annotation=category == "user_annotation",
            activity_type=category,
        )


def _kernel_name(name: str) -> str:
    """Return the name of a kernel in tables, which keep it apart from the call that launched it."""
    return name.replace("::", "_") + "_kernel" if "::" in name else name


def _init(self: Any, *args: Any, **options: Any) -> None:
    """Make a profiler, of which the older interface too sees the GPU by the same way as the newer one."""
    _profile_init(self, *args, **options)
    if self.enabled and self.use_device == "cuda":
        self.profiler_kind = autograd_profiler.ProfilerState.KINETO
        self.kineto_activities.add(ProfilerActivity.CUDA)


def install(patches: Patches, feed: TaskFeed, owner: ProfiledRank, folder: Path) -> None:
    """Let PyTorch's profilers see the simulation until the patches are undone; ``folder`` is for their files."""
    patches.make(_patches(_Profiler(feed, owner, folder)))


def _patches(profiler: _Profiler) -> Iterator[Patch]:
    nothing = lambda *_, **__: None  # noqa: E731
    activities = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    for name, function in (
        ("_prepare_profiler", nothing),
        ("_enable_profiler", profiler.begin),
        ("_disable_profiler", profiler.end),
        ("_toggle_collection_dynamic", nothing),
        ("_supported_activities", lambda: set(activities)),
    ):
        yield Patch(autograd_profiler, name, function, missing="leave")
    yield Patch(torch.autograd, "_supported_activities", lambda: set(activities))
    yield Patch(torch.autograd, "_add_metadata_json", profiler.add_metadata)
    yield Patch(autograd_profiler.profile, "__init__", _init)
    ranges = autograd_profiler.record_function
    enter, leave = ranges.__enter__, ranges.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        profiler.range_begins(self.name)
        return enter(self)

    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        profiler.range_ends()
        return leave(self, *error)

    yield Patch(ranges, "__enter__", __enter__)
    yield Patch(ranges, "__exit__", __exit__)
