"""The memory that ``torch.cuda`` reports of the fake device: what is allocated, reserved, free, and when there is none left.

With PyTorch's caching allocator simulated (``StorageTracker.allocator``) its figures are that allocator's, and an allocation
that does not fit raises ``torch.cuda.OutOfMemoryError`` in PyTorch's words (``c10/cuda/CUDACachingAllocator.cpp``). Without it,
reserved memory is what is allocated, and everything fits.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from triosim.gpus import Gpu
from triosim.memory.allocator.allocator import AllocationFailed, CachingAllocator
from triosim.memory.allocator.blocks import MemoryBlock
from triosim.memory.allocator.gpu_memory import context, visible
from triosim.memory.allocator.settings import AllocatorSettings, settings_of_environment
from triosim.tracer.memory.memory_history import MemoryHistory
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.storages import StorageTracker

#: The settings that PyTorch knows: those of any accelerator (``c10/core/AllocatorConfig.h``), and those of CUDA alone.
_SETTINGS = frozenset(
    (
        *("max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold", "roundup_power2_divisions"),
        *("expandable_segments", "large_segment_size_mb", "pinned_use_background_threads", "pinned_max_cached_size_mb"),
        *("pinned_max_round_threshold_mb", "pinned_reserve_segment_size_mb", "pinned_num_register_threads"),
        *("pinned_use_cuda_host_register", "pinned_use_hip_host_register", "release_lock_on_cudamalloc"),
        *("release_lock_on_hipmalloc", "backend", "graph_capture_record_stream_reuse", "per_process_memory_fraction"),
        "throw_on_cudamalloc_oom",
    )
)


def install(patches: Patches, gpu: Gpu, storages: StorageTracker, wait: Callable[[], None]) -> None:
    """Let ``torch.cuda`` and ``torch.accelerator`` report a GPU's memory until the patches are undone.

    ``wait`` lets the host wait for the GPU, as cudaFree does.
    """
    if isinstance(storages.allocator, LimitedAllocator):
        storages.allocator.freed = wait
    patches.make(_patches(_DeviceMemory(gpu, storages)))


class LimitedAllocator(CachingAllocator):
    """PyTorch's allocator on one GPU, which fails as PyTorch does when the GPU's memory is used up.

    Its settings are those that the script has written into the environment when it first allocates.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._total, self._context = visible(gpu), context(gpu)
        self.failures = 0
        self.freed: Callable[[], None] = _nothing
        self.history = MemoryHistory()
        super().__init__(self._total - self._context)

    def malloc(self, nbytes: int, stream: str = "compute", owner: int = -1) -> MemoryBlock:
        """Return a block. Raises ``torch.cuda.OutOfMemoryError``."""
        if not self.count:
            _check_settings(os.environ)
            self.settings = replace(settings_of_environment(os.environ), memory_fraction=self.settings.memory_fraction)
        try:
            block = super().malloc(nbytes, stream, owner)
        except AllocationFailed as failed:
            self.failures += 1
            self.history.failed(nbytes, failed.free)
            raise torch.cuda.OutOfMemoryError(self._words(nbytes)) from None
        self.history.allocated(block)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Take a block back."""
        self.history.freed(block)
        super().free(block)

    def record(self, taken: bool, address: int, nbytes: int, stream: str) -> None:
        """Note that memory was taken from the GPU or given back to it."""
        self.history.segment(taken, address, nbytes, stream, self.settings.expandable_segments)

    def empty_cache(self) -> None:
        """Give cached segments back, for which the host waits until the GPU has done its work."""
        before = self.reserved
        super().empty_cache()
        if self.reserved < before:
            self.freed()

    def _words(self, nbytes: int) -> str:
        unallocated = self.reserved - self.allocated
        return (
            f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU {torch.cuda.current_device()} has a total capacity of "
            f"{_size(self._total)} of which {_size(self._total - self._context - self.reserved)} is free. "
            f"Including non-PyTorch memory, this process has {_size(self._context + self.reserved)} memory in use. "
            f"Of the allocated memory {_size(self.allocated)} is allocated by PyTorch, and {_size(unallocated)} is reserved "
            "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


def _check_settings(variables: Mapping[str, str]) -> None:
    """Raise PyTorch's own ``ValueError`` where the environment has settings that its allocator refuses."""
    text = variables.get("PYTORCH_ALLOC_CONF") or variables.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    parse = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if not text or parse is None:
        return
    parse(text)
    for key in re.findall(r"([A-Za-z_]\w*)\s*:", re.sub(r"\[.*?\]", "", text)):
        if key not in _SETTINGS:
            raise ValueError(f"Unrecognized key '{key}' in Accelerator allocator config.")


def _size(nbytes: int) -> str:
    """Write a number of bytes as PyTorch's messages do."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


class _DeviceMemory:
    """The memory of the GPU as its process sees it."""

    def __init__(self, gpu: Gpu, storages: StorageTracker) -> None:
        self.total, self.context = visible(gpu), context(gpu)
        self.storages = storages

    def allocated(self, device: Any = None) -> int:
        return self.storages.in_use

    def peak_allocated(self, device: Any = None) -> int:
        return self.storages.peak

    def reserved(self, device: Any = None) -> int:
        allocator = self.storages.allocator
        return self.storages.in_use if allocator is None else allocator.reserved

    def peak_reserved(self, device: Any = None) -> int:
        allocator = self.storages.allocator
        return self.storages.peak if allocator is None else allocator.peak_reserved

    def reset_peaks(self, device: Any = None) -> None:
        self.storages.reset_peak()

    def empty_cache(self) -> None:
        if self.storages.allocator is not None:
            self.storages.allocator.empty_cache()

    def info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total bytes."""
        return self.total - self.context - self.reserved(), self.total

    def statistics(self, device: Any = None) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for kind in ("allocated_bytes", "active_bytes", "requested_bytes"):
            found[f"{kind}.all.current"], found[f"{kind}.all.peak"] = self.allocated(), self.peak_allocated()
        found["reserved_bytes.all.current"], found["reserved_bytes.all.peak"] = self.reserved(), self.peak_reserved()
        allocator = self.storages.allocator
        if isinstance(allocator, LimitedAllocator):
            found["requested_bytes.all.current"] = allocator.requested
            found["inactive_split_bytes.all.current"] = allocator.reserved - allocator.allocated
            found["allocation.all.allocated"] = allocator.count
            found["segment.all.current"] = len(allocator.segments)
            found["num_alloc_retries"], found["num_ooms"] = allocator.retries, allocator.failures
        return found

    def nested_statistics(self, device: Any = None) -> dict[str, Any]:
        """Return the statistics by the parts of their names."""
        found: dict[str, Any] = {}
        for name, value in self.statistics().items():
            *parts, last = name.split(".")
            into = found
            for part in parts:
                into = into.setdefault(part, {})
            into[last] = value
        return found

    def fraction(self, device: Any = None) -> float:
        """Return the share of the memory that the script may use."""
        allocator = self.storages.allocator
        given = None if allocator is None else allocator.settings.memory_fraction
        return 1.0 if given is None else given

    def snapshot(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Return the segments and their blocks, with PyTorch's names."""
        allocator = self.storages.allocator
        if not isinstance(allocator, LimitedAllocator):
            return []
        row, device = allocator.history.segment_row, torch.cuda.current_device()
        return [row(one, device) for one in sorted(allocator.segments.values(), key=lambda one: one.address)]

    def whole_snapshot(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the segments, and what the allocator of each device did since the script began to record it."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(torch.cuda.device_count())]
        allocator = self.storages.allocator
        settings = AllocatorSettings() if allocator is None else allocator.settings
        if isinstance(allocator, LimitedAllocator):
            traces[torch.cuda.current_device()] = allocator.history.entries()
        return {
            "segments": self.snapshot(),
            "device_traces": traces,
            "allocator_settings": settings.as_pytorch(),
            "external_annotations": [],
        }

    def record_history(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.storages.allocator, LimitedAllocator):
            self.storages.allocator.history.begin(*args, **kwargs)

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        if self.storages.allocator is not None:
            allocator = self.storages.allocator
            allocator.settings = replace(allocator.settings, memory_fraction=float(fraction))

    def summary(self, device: Any = None, abbreviated: bool = False) -> str:
        rows = {
            "Allocated memory": (self.allocated(), self.peak_allocated()),
            "GPU reserved memory": (self.reserved(), self.peak_reserved()),
        }
        lines = [f"| {name:<21} | {_size(now):>10} | {_size(peak):>10} |" for name, (now, peak) in rows.items()]
        return "\n".join((f"| {'Metric':<21} | {'Cur Usage':>10} | {'Peak Usage':>10} |", *lines))


class _MemoryPool:
    """The value of ``torch.cuda.MemPool``. What is allocated in it is taken from the one pool that there is."""

    _numbers = itertools.count(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.id = (0, next(self._numbers))

    def use_count(self) -> int:
        """Return how many use it: the script."""
        return 1

    def snapshot(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Return its segments: it has none of its own."""
        return []


def _patches(memory: _DeviceMemory) -> Iterator[Patch]:
    in_both: dict[str, Any] = {
        "memory_allocated": memory.allocated, "max_memory_allocated": memory.peak_allocated,
        "memory_reserved": memory.reserved, "max_memory_reserved": memory.peak_reserved,
        "memory_stats": memory.statistics, "reset_peak_memory_stats": memory.reset_peaks,
        "empty_cache": memory.empty_cache,
    }  # fmt: skip
    in_cuda: dict[str, Any] = {
        "reset_max_memory_allocated": memory.reset_peaks, "reset_accumulated_memory_stats": _nothing,
        "memory_cached": memory.reserved, "max_memory_cached": memory.peak_reserved,
        "memory_snapshot": memory.snapshot, "set_per_process_memory_fraction": memory.set_fraction,
        "memory_summary": memory.summary, "mem_get_info": memory.info,
        "memory_stats_as_nested_dict": memory.nested_statistics, "get_per_process_memory_fraction": memory.fraction,
        "host_memory_stats": lambda: defaultdict(int), "host_memory_stats_as_nested_dict": lambda: {},
        "reset_peak_host_memory_stats": _nothing, "reset_accumulated_host_memory_stats": _nothing,
        "get_allocator_backend": lambda: "native",
        "list_gpu_processes": lambda device=None: "no processes are running", "device_memory_used": memory.reserved,
        "memory_usage": lambda device=None: 0, "utilization": lambda device=None: 100,
    }  # fmt: skip
    for owner in (torch.cuda, torch.cuda.memory):
        for name, value in {**in_both, **in_cuda}.items():
            yield Patch(owner, name, value, "leave")
    for name, value in {"temperature": 50, "power_draw": 0, "clock_rate": 0}.items():
        yield Patch(torch.cuda, name, lambda device=None, value=value: value, "leave")
    for owner in (torch.cuda, torch.cuda.memory):
        yield Patch(owner, "MemPool", _MemoryPool, "leave")
        yield Patch(owner, "use_mem_pool", lambda pool, device=None: nullcontext(), "leave")
    yield Patch(torch.cuda.memory, "_record_memory_history", memory.record_history)
    yield Patch(torch.cuda.memory, "_snapshot", memory.whole_snapshot)  # which _dump_snapshot writes
    yield Patch(torch._C, "_cuda_clearCublasWorkspaces", memory.storages.clear_workspaces, "add")
    for owner in (torch.accelerator, torch.accelerator.memory):
        for name, value in in_both.items():
            yield Patch(owner, name, value, "leave")
        yield Patch(owner, "get_memory_info", memory.info, "leave")


def _nothing(*_: Any, **__: Any) -> None:
    return None
