"""Events of PyTorch's profiler as tests write them; times are in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triosim
from triosim.trace import Trace

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, thread: int = 1, **about: Any) -> Event:
    """Return what ran for some time on a thread of the host or a stream of the GPU."""
    where = {"pid": 1, "tid": thread, "ts": start, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **where, "args": about}


def reduction(elements: int, **about: Any) -> Event:
    """Return what an event says of an all-reduce of so many numbers over ranks 0 and 1."""
    stated = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    return {**stated, "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", **about}


def read_profile(folder: Path, events: list[Event]) -> Trace:
    """Write a profile of one GPU, and return the trace that it is read as."""
    path = folder / "profile.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    found = triosim.load_trace(path)
    assert isinstance(found, Trace)
    return found
