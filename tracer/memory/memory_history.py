"""What a script records of its device's memory (``torch.cuda.memory._record_memory_history``), and snapshots of it.

A snapshot has the form of ``torch.cuda.memory._snapshot()``, which PyTorch's visualiser reads
(``torch/cuda/_memory_viz.py``). An entry's time is its number: allocating takes no simulated time, and asking for the time
would let the host wait for the GPU.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from triosim.memory.allocator.blocks import MemoryBlock, Segment
from triosim.tracer.recorder.script_lines import OURS

_ACTIONS = {True: "segment_alloc", False: "segment_free"}


class MemoryHistory:
    """What the allocator of a device did since the script asked to record it, and where in the script it was asked for."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque()
        self._recorded = 0
        self._frames: dict[int, list[dict[str, Any]]] = {}  # of blocks in use, by address
        self._streams = {"compute": 0}
        self._enabled: str | None = None
        self._context: str | None = None

    def begin(
        self,
        enabled: str | bool | None = "all",
        context: str | bool | None = "all",
        stacks: Any = "all",
        max_entries: int = sys.maxsize,
        *_: Any,
        clear_history: bool = False,
        **__: Any,
    ) -> None:
        """Record from here on, or, with ``enabled=None``, no more (``torch.cuda.memory._record_memory_history``)."""
        if isinstance(
            enabled, bool
        ):  # the older form, in which the context is a truth and the third is the most entries
            enabled, context = "all" if enabled else None, "all" if context else None
            max_entries = stacks if isinstance(stacks, int) else max_entries
        self._enabled, self._context = enabled, context if isinstance(context, str) else None
        kept = () if enabled is None or clear_history else self._entries
        self._entries = deque(kept, maxlen=min(max_entries, sys.maxsize))

    def allocated(self, block: MemoryBlock) -> None:
        """Note that a block is in use."""
        if self._enabled is not None:
            frames = _stack() if self._context is not None else []
            self._frames[block.address] = frames
            self._add("alloc", block.address, block.size, block.segment.stream, frames)

    def freed(self, block: MemoryBlock) -> None:
        """Note that a block is free again."""
        frames = self._frames.pop(block.address, None)
        if self._enabled is not None:
            frames = _stack() if self._context == "all" else frames or []
            for action in ("free_requested", "free_completed"):
                self._add(action, block.address, block.size, block.segment.stream, frames)

    def segment(self, taken: bool, address: int, nbytes: int, stream: str, expandable: bool) -> None:
        """Note that memory was taken from the GPU or given back to it."""
        if self._enabled is not None:
            action = ("segment_unmap", "segment_map")[taken] if expandable else _ACTIONS[taken]
            self._add(action, address, nbytes, stream, _stack() if self._context == "all" else [])

    def failed(self, nbytes: int, free: float) -> None:
        """Note that an allocation did not fit."""
        if self._enabled is not None:
            self._add("oom", 0, nbytes, "compute", _stack() if self._context is not None else [], device_free=int(free))

    def entries(self) -> list[dict[str, Any]]:
        """Return what was recorded, and the snapshot that is taken now."""
        if self._enabled == "all":
            self._add("snapshot", 0, 0, "compute", [])
        return list(self._entries)

    def segment_row(self, segment: Segment, device: int) -> dict[str, Any]:
        """Return a segment and its blocks, as a snapshot has them."""
        blocks = [one for one in segment.blocks() if one.mapped]
        used = sum(one.size for one in blocks if one.used)
        return {
            "device": device,
            "address": segment.address,
            "total_size": segment.mapped,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(one.requested for one in blocks if one.used),
            "stream": self._number(segment.stream),
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": [self._block_row(one) for one in blocks],
        }

    def _block_row(self, block: MemoryBlock) -> dict[str, Any]:
        return {
            "address": block.address,
            "size": block.size,
            "requested_size": block.requested if block.used else 0,
            "state": "active_allocated" if block.used else "inactive",
            "frames": self._frames.get(block.address, []) if block.used else [],
        }

    def _add(
        self, action: str, address: int, nbytes: int, stream: str, frames: list[dict[str, Any]], **more: Any
    ) -> None:
        if self._enabled != "all":
            return
        self._recorded += 1
        self._entries.append(
            {
                **{"action": action, "addr": address, "size": nbytes, "stream": self._number(stream)},
                **{"frames": frames, "time_us": self._recorded, "pool_id": (0, 0), "compile_context": "N/A"},
                **{"user_metadata": "", **more},
            }
        )

    def _number(self, stream: str) -> int:
        return self._streams.setdefault(stream, len(self._streams))


def _stack() -> list[dict[str, Any]]:
    """Return the lines of the script, and of the libraries that it uses, that are running, the innermost first."""
    found = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found
