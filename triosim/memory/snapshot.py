"""A memory snapshot for PyTorch's own visualiser (pytorch.org/memory_viz), in the form of ``torch.cuda.memory._snapshot()``.

The file is a pickle, because that is what the visualiser reads; triosim writes such files and never reads one. Only plain
dicts, lists, texts and numbers are in it, in pickle's protocol 4, which the visualiser's own reader knows.
Source of the keys: the docstring of ``torch.cuda.memory._snapshot`` and ``torch/cuda/_memory_viz.py`` (PyTorch 2.13).
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from triosim.errors import OutputError
from triosim.memory.allocator.allocator import SegmentEvent
from triosim.memory.allocator.blocks import MemoryBlock, Segment
from triosim.memory.allocator.settings import AllocatorSettings
from triosim.memory.liveness.lifetimes import Lifetime, Lifetimes
from triosim.memory.replay import Replay
from triosim.output_files import PathLike, writing_bytes

#: How the name of a snapshot ends.
SUFFIXES = (".pickle", ".pkl")
_PROTOCOL = 4
_SEGMENT_WORDS = ("segment_free", "segment_alloc")


def check_snapshot(path: PathLike) -> None:
    """Raise ``OutputError`` for a name that does not say that the file is a pickle, as the visualiser's own do."""
    if Path(path).suffix.lower() not in SUFFIXES:
        fix = f"end the name in {' or '.join(SUFFIXES)}; --format json prints the figures"
        raise OutputError("a snapshot is a pickle", where=str(path), fix=fix)


def write_snapshot(lifetimes: Lifetimes, played: Replay, path: PathLike) -> None:
    """Write the snapshot of a run: everything that its allocator did, and how its segments stand at the end.

    Raises ``OutputError`` for a name that ends in neither ``.pickle`` nor ``.pkl``.
    """
    check_snapshot(path)
    with writing_bytes(path) as file:
        pickle.dump(snapshot(lifetimes, played), file, protocol=_PROTOCOL)


def snapshot(lifetimes: Lifetimes, played: Replay) -> dict[str, Any]:
    """Return the snapshot of a run as plain data."""
    frames = _frames(lifetimes)
    streams = _streams(lifetimes)
    segments = sorted(played.allocator.segments.values(), key=lambda segment: segment.address)
    return {
        "segments": [row for segment in segments for row in _segment(segment, lifetimes, frames, streams)],
        "device_traces": [list(_trace(played, lifetimes, frames, streams))],
        "allocator_settings": _settings(played.allocator.settings),
    }


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1 if math.isinf(settings.max_split_size) else int(settings.max_split_size),
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {},
    }


def _streams(lifetimes: Lifetimes) -> dict[str, int]:
    """Return a number for each stream; the current one of the device is 0, as in CUDA."""
    names = {item.stream for item in lifetimes.items} - {"compute"}
    return {"compute": 0, **{name: number for number, name in enumerate(sorted(names), 1)}}


def _frames(lifetimes: Lifetimes) -> Any:
    """Return what stands for a stack of calls: the tensor, the operator that made it, and the modules around it."""

    @cache
    def around(layer: str) -> tuple[dict[str, Any], ...]:
        parts = layer.split(".") if layer else []
        return tuple(_frame(".".join(parts[:end]), parts[end - 1]) for end in range(len(parts), 0, -1))

    @cache
    def frames(number: int) -> list[dict[str, Any]]:
        item: Lifetime = lifetimes.items[number]
        place = item.operator
        ran = lifetimes.operators[place] if place >= 0 else None
        what = " x ".join(map(str, item.shape)) + (f" {item.dtype}" if item.dtype else "")
        name = ran.name if ran is not None else "before the step"
        phase = ran.phase if ran is not None else item.category
        return [_frame(item.category, what or f"{item.nbytes} bytes"), _frame(phase, name), *around(item.layer)]

    return frames


def _frame(filename: str, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": 0, "name": name}


def _segment(segment: Segment, lifetimes: Lifetimes, frames: Any, streams: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield a segment; of an expandable one, each run of blocks that has memory behind it."""
    for run in _runs(segment.blocks()):
        used = sum(block.size for block in run if block.used)
        yield {
            "device": 0,
            "address": run[0].address,
            "total_size": sum(block.size for block in run),
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(block.requested for block in run),
            "stream": streams[segment.stream],
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": [_block(block, frames) for block in run],
        }


def _runs(blocks: Iterable[MemoryBlock]) -> list[list[MemoryBlock]]:
    found: list[list[MemoryBlock]] = [[]]
    for block in blocks:
        if block.mapped:
            found[-1].append(block)
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


def _block(block: MemoryBlock, frames: Any) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": "active_allocated" if block.used else "inactive",
        "frames": frames(block.owner) if block.used else [],
    }


def _trace(played: Replay, lifetimes: Lifetimes, frames: Any, streams: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield what the allocator did, numbered in order."""
    for clock, entry in enumerate(_entries(played, lifetimes, frames, streams)):
        yield {**entry, "time_us": clock}


def _entries(played: Replay, lifetimes: Lifetimes, frames: Any, streams: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield what the allocator did; cudaMalloc and cudaFree come before the allocation that needed them."""
    segments = deque(played.allocator.events)
    births = 0
    for action in played.calls:
        births += action.birth
        while action.birth and segments and segments[0].when <= births:
            yield _segment_entry(segments.popleft(), played, streams)
        for kind in ("alloc",) if action.birth else ("free_requested", "free_completed"):
            entry = _entry(kind, action.address, action.nbytes, streams[action.stream], frames(action.number))
            yield {**entry, "category": lifetimes.items[action.number].category} if action.birth else entry
    for event in segments:
        yield _segment_entry(event, played, streams)
    failed = played.out_of_memory
    if failed is not None:
        entry = _entry("oom", 0, failed.nbytes, 0, [_frame(failed.category, failed.layer)])
        yield {**entry, "device_free": int(failed.free)}
    # The visualiser wants a category 'unknown' where there are any: this entry, which draws nothing, has it.
    yield {**_entry("snapshot", 0, 0, 0, []), "category": "unknown"}


def _segment_entry(event: SegmentEvent, played: Replay, streams: dict[str, int]) -> dict[str, Any]:
    words = ("segment_unmap", "segment_map") if played.allocator.settings.expandable_segments else _SEGMENT_WORDS
    return _entry(words[event.taken], event.address, event.nbytes, streams[event.stream], [])


def _entry(kind: str, address: int, nbytes: int, stream: int, frames: list[Any]) -> dict[str, Any]:
    return {"action": kind, "addr": address, "size": nbytes, "stream": stream, "frames": frames, "pool_id": (0, 0)}
