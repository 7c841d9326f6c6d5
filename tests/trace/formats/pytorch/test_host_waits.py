"""The time in which a host waits for its GPU is no cost of what it launches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_events import event

from triosim.trace.formats import read
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Mark, Trace


def launched(
    number: int, call: tuple[float, float], runs: tuple[float, float], name: str = "gemm"
) -> list[dict[str, Any]]:
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return [
        event("cuda_runtime", "cudaLaunchKernel", *call, correlation=number),
        event(category, name, *runs, 7, correlation=number, stream=7),
    ]


def rank(folder: Path, events: list[dict[str, Any]]) -> Trace:
    """Return the trace of the only rank of two that has a profile."""
    data = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(data), encoding="utf-8")
    found = read(folder)
    assert isinstance(found, TaskStreams)
    return found.traces[0]


def host_microseconds(trace: Trace) -> list[float]:
    return [round((one.host_seconds or 0.0) * 1e6, 3) for one in trace.operators]


def test_a_call_that_synchronizes_is_no_part_of_the_next_launch(tmp_path: Path) -> None:
    waits = event("cuda_runtime", "cudaStreamSynchronize", 10, 500, correlation=9)
    trace = rank(tmp_path, [*launched(1, (0, 4), (8, 500)), waits, *launched(2, (515, 4), (521, 9))])
    assert host_microseconds(trace) == [4, 9]
    assert trace.marks == (Mark(1, "synchronize", "compute"),)


def test_a_copy_that_returns_when_it_is_over_waits(tmp_path: Path) -> None:
    copy = launched(2, (10, 500), (505, 3), "Memcpy DtoH (Device -> Pageable)")
    trace = rank(tmp_path, [*launched(1, (0, 4), (8, 490)), *copy, *launched(3, (515, 4), (521, 9))])
    assert host_microseconds(trace) == [4, 6, 9]
    assert trace.marks == (Mark(2, "synchronize", "compute"),)


def test_a_short_kernel_that_ends_before_its_launch_returns_is_no_wait(tmp_path: Path) -> None:
    trace = rank(tmp_path, [*launched(1, (0, 9), (5, 1)), *launched(2, (10, 4), (16, 9))])
    assert host_microseconds(trace) == [9, 5]
    assert trace.marks == ()


@pytest.mark.parametrize(("before", "host"), [(1000, 4), (10, 304)])
def test_a_launch_waits_where_the_queue_is_full(tmp_path: Path, before: int, host: float) -> None:
    events = [one for n in range(before) for one in launched(n, (4.0 * n, 4), (5000 + 10 * n, 9))]
    events += launched(before, (4.0 * before, 304), (5000 + 10 * before, 9))
    assert host_microseconds(rank(tmp_path, events))[-1] == host


def test_a_call_of_a_single_rank_s_profile_costs_what_its_host_did_not_wait(tmp_path: Path) -> None:
    shaped = {"Input Dims": [[4, 8], [3, 8]], "Input type": ["float", "float"]}
    data = [
        event("cpu_op", "aten::linear", 0, 10, **shaped),
        *launched(1, (1, 4), (8, 490)),
        event("cpu_op", "aten::item", 12, 510, **{"Input Dims": [[1]], "Input type": ["float"]}),
        *launched(2, (15, 5), (499, 3), "Memcpy DtoH (Device -> Pinned)"),
        event("cuda_runtime", "cudaStreamSynchronize", 20, 500, correlation=9),
    ]
    (tmp_path / "profile.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": data}), encoding="utf-8")
    trace = read(tmp_path / "profile.json")
    assert isinstance(trace, Trace)
    assert host_microseconds(trace) == [10, 10]
