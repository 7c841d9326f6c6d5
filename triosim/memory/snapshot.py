"""A memory snapshot for PyTorch's own visualiser (pytorch.org/memory_viz), in the form of ``torch.cuda.memory._snapshot()``.

The file is a pickle, because that is what the visualiser reads; triosim writes such files and never reads one. Only plain
dicts, lists, texts and numbers are in it, in pickle's protocol 4, which the visualiser's own reader knows.
Source of the keys: the docstring of ``torch.cuda.memory._snapshot`` and ``torch/cuda/_memory_viz.py`` (PyTorch 2.13).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from triosim.errors import OutputError
from triosim.memory.allocator.allocator import SegmentEvent
from triosim.memory.allocator.blocks import MemoryBlock, Segment
from triosim.memory.liveness.lifetimes import Lifetimes
from triosim.memory.replay import Replay
from triosim.output_files import PathLike, writing_bytes

#: How the name of a snapshot ends.
SUFFIXES = (".pickle", ".pkl")
_PROTOCOL = 4


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
    written = _Snapshot(lifetimes, played)
    segments = sorted(played.allocator.segments.values(), key=lambda segment: segment.address)
    return {
        "segments": [row for segment in segments for row in written.segment(segment)],
        "device_traces": [[{**entry, "time_us": clock} for clock, entry in enumerate(written.entries())]],
        "allocator_settings": played.allocator.settings.as_pytorch(),
    }


class _Snapshot:
    """The parts of a run's snapshot."""

    def __init__(self, lifetimes: Lifetimes, played: Replay) -> None:
        self._lifetimes = lifetimes
        self._played = played
        names = {item.stream for item in lifetimes.items} - {"compute"}
        self._streams = {
            "compute": 0,
            **{name: number for number, name in enumerate(sorted(names), 1)},
        }  # 0: as in CUDA
        self._frames = cache(self._stack)

    def segment(self, segment: Segment) -> Iterator[dict[str, Any]]:
        """Yield a segment; of an expandable one, each run of blocks that has memory."""
        for is_mapped, run in groupby(segment.blocks(), key=lambda block: block.mapped):
            if not is_mapped:
                continue
            blocks = list(run)
            used = sum(block.size for block in blocks if block.used)
            yield {
                "device": 0,
                "address": blocks[0].address,
                "total_size": sum(block.size for block in blocks),
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block.requested for block in blocks),
                "stream": self._streams[segment.stream],
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": segment.expandable,
                "frames": [],
                "blocks": [self._block(block) for block in blocks],
            }

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what the allocator did; cudaMalloc and cudaFree come before the allocation that needed them."""
        segments = deque(self._played.allocator.events)
        births = 0
        for call in self._played.calls:
            births += call.birth
            while call.birth and segments and segments[0].when <= births:
                yield self._segment_entry(segments.popleft())
            for kind in ("alloc",) if call.birth else ("free_requested", "free_completed"):
                frames = self._frames(call.number)
                entry = _entry(kind, call.address, call.nbytes, self._streams[call.stream], frames)
                yield {**entry, "category": self._lifetimes.items[call.number].category} if call.birth else entry
        yield from map(self._segment_entry, segments)
        failed = self._played.out_of_memory
        if failed is not None:
            entry = _entry("oom", 0, failed.nbytes, 0, [_frame(failed.category, failed.layer)])
            yield {**entry, "device_free": int(failed.free)}
        # The visualiser wants a category 'unknown' where there are any: this entry, which draws nothing, has it.
        yield {**_entry("snapshot", 0, 0, 0, []), "category": "unknown"}

    def _stack(self, number: int) -> list[dict[str, Any]]:
        """Return the frames in place of a stack of calls: the tensor, the operator that made it, and the modules around it."""
        item = self._lifetimes.items[number]
        ran = self._lifetimes.operators[item.operator] if item.operator >= 0 else None
        what = " x ".join(map(str, item.shape)) + (f" {item.dtype}" if item.dtype else "")
        name = ran.name if ran is not None else "before the step"
        phase = ran.phase if ran is not None else item.category
        parts = item.layer.split(".") if item.layer else []
        modules = [_frame(".".join(parts[:end]), parts[end - 1]) for end in range(len(parts), 0, -1)]
        return [_frame(item.category, what or f"{item.nbytes} bytes"), _frame(phase, name), *modules]

    def _block(self, block: MemoryBlock) -> dict[str, Any]:
        return {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested,
            "state": "active_allocated" if block.used else "inactive",
            "frames": self._frames(block.owner) if block.used else [],
        }

    def _segment_entry(self, event: SegmentEvent) -> dict[str, Any]:
        expandable = self._played.allocator.settings.expandable_segments
        words = ("segment_unmap", "segment_map") if expandable else ("segment_free", "segment_alloc")
        return _entry(words[event.taken], event.address, event.nbytes, self._streams[event.stream], [])


def _frame(filename: str, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": 0, "name": name}


def _entry(kind: str, address: int, nbytes: int, stream: int, frames: list[Any]) -> dict[str, Any]:
    return {"action": kind, "addr": address, "size": nbytes, "stream": stream, "frames": frames, "pool_id": (0, 0)}
