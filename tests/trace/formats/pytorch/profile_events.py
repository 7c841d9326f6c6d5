"""Events of PyTorch's profiler as tests write them; times are in microseconds."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, thread: int = 1, **about: Any) -> Event:
    """Return what ran for some time on a thread of the host or a stream of the GPU."""
    where = {"pid": 1, "tid": thread, "ts": start, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **where, "args": about}
