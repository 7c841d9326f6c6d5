"""Profiles of every rank, as ``--kineto`` writes them, as HolisticTraceAnalysis sees them: the figures of the result.

It needs an environment with ``pip install HolisticTraceAnalysis "pandas<3"``, whose Python ``HTA_PYTHON`` names.

An error is relative to the figure of the result, or to a hundredth of the step where the figure is smaller. The critical path
of a step is compared where hosts keep ahead of their GPUs but for less than the claim: the analysis does not follow a host from
the thread of the forward pass to that of the backward pass, and its path is shorter by up to what a GPU waits for launches.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import triosim
from triosim.reports.kineto.activity import activities, lead
from triosim.results.result import Result
from triosim.tasks import Copy, Handle
from validation.report import DataAbsent, Row

CLAIM = 1e-3
_SCRIPT = Path(__file__).parent / "scripts" / "hta_figures.py"
_STREAMS = Path(__file__).parents[1] / "tests" / "golden" / "data" / "streams_32.json.gz"
_LLAMA = {"gpu": "H100", "seq": 2048, "batch_size": 4, "topology": "dgx-h100"}
_INTERLEAVED = {
    "gpu": "A100", "topology": "dgx-a100", "parallel": "pp=2", "micro_batches": 4, "schedule": "interleaved",
    "virtual_stages": 2,
}  # fmt: skip
_SMALLEST = 0.01  # of the step
_LAUNCH_BOUND = CLAIM  # of the step, in which a GPU waits for launches
_LAUNCH = 1000  # nanoseconds of a launch at the end of its call

#: A name, a model or a trace, and the options of its step.
RUNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ddp", "gpt2", {"gpu": "A100", "parallel": "ddp=4", "topology": "dgx-a100"}),
    (
        "ddp, free launches",
        "gpt2",
        {"gpu": "A100", "parallel": "ddp=4", "topology": "dgx-a100", "host_overhead": "none"},
    ),
    ("ddp, two steps", "resnet50", {"gpu": "A100", "parallel": "ddp=4", "topology": "dgx-a100", "iterations": 2}),
    ("fsdp", "llama3.2-1b", {"parallel": "fsdp=4", **_LLAMA}),
    (
        "fsdp, two micro-batches",
        "bert-large",
        {"parallel": "fsdp=4", "micro_batches": 2, "gpu": "A100", "topology": "dgx-a100"},
    ),
    (
        "dp and fsdp",
        "qwen3-8b",
        {"parallel": "dp=2,fsdp=4", "seq": 1024, "layers": 3, "gpu": "B200", "topology": "dgx-b200"},
    ),
    (
        "optimizer on the host",
        "gpt2",
        {"parallel": "fsdp=4", "offload": "optimizer=host", "gpu": "A100", "topology": "dgx-a100"},
    ),
    (
        "activations on the host",
        "gpt2",
        {"parallel": "fsdp=4", "offload": "activations=host", "gpu": "A100", "topology": "dgx-a100"},
    ),
    ("tp", "llama3.2-1b", {"parallel": "tp=4", **_LLAMA}),
    ("pp", "llama3.2-1b", {"parallel": "pp=4", "micro_batches": 4, **_LLAMA}),
    ("interleaved", "gpt2", _INTERLEAVED),
    ("interleaved, free launches", "gpt2", {**_INTERLEAVED, "host_overhead": "none"}),
    ("zero bubble", "llama3.2-1b", {"parallel": "pp=2", "micro_batches": 4, "schedule": "zero-bubble", **_LLAMA}),
    ("dp, pp and tp", "llama3.2-1b", {"parallel": "dp=2,pp=2,tp=2", "micro_batches": 4, **_LLAMA}),
    ("captured", str(_STREAMS), {"topology": "switch(32, bandwidth=450 GB/s, latency=1 us)"}),
)


def rows() -> list[Row]:
    """Return a row for each analysis of each run. Raises ``DataAbsent`` without HolisticTraceAnalysis."""
    python = os.environ.get("HTA_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import hta"], capture_output=True, check=False).returncode:
        raise DataAbsent(
            "HolisticTraceAnalysis is not there (python -m venv hta; hta/bin/pip install HolisticTraceAnalysis 'pandas<3'; "
            "HTA_PYTHON=hta/bin/python)"
        )
    found = []
    for name, subject, options in RUNS:
        result = triosim.simulate(subject, timeline=True, **options)
        with tempfile.TemporaryDirectory() as place:
            result.save_kineto(place)
            ran = subprocess.run([python, str(_SCRIPT), place], capture_output=True, text=True, check=True)
        errors: dict[str, list[float]] = {}
        seen = json.loads(ran.stdout)
        for what, one, own in pairs(result, seen):
            errors.setdefault(what, []).append(abs(one - own) / max(abs(own), _SMALLEST * result.step_time_s))
        found += [
            Row(f"{name}: {what}", "HolisticTraceAnalysis", len(some), max(some), CLAIM)
            for what, some in errors.items()
        ]
    return found


def pairs(result: Result, seen: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield a name, the analysis's figure and the result's, in seconds of a step."""
    iterations, step = len(result.data.iterations), result.step_time_s
    ranks = {rank.rank: rank for rank in result.data.ranks}
    second = 1e-6 / iterations
    handles = _by_rank(result)
    ahead = max(lead(activities(some)) for some in handles.values())  # by which GPUs begin later than hosts
    for row in seen["temporal"]:
        rank = ranks[row["rank"]]
        outside = step - row["kernel_time(us)"] * second  # before the first kernel and after the last
        yield "computing", row["compute_time(us)"] * second, step - rank.exposed_communication_s - rank.idle_s
        yield "exposed communication", row["non_compute_time(us)"] * second, rank.exposed_communication_s
        yield "idle", row["idle_time(us)"] * second + outside, rank.idle_s
    queued = {rank: _queued_copies(some) for rank, some in handles.items()}
    for row in seen["overlap"]:
        rank = ranks[row["rank"]]
        if queued[rank.rank] is not None:
            continue  # the analysis counts what NCCL's kernels hide, the result what copies hide too
        hidden = rank.communication_s - rank.exposed_communication_s
        yield "overlap", row["comp_comm_overlap_pctg"] / 100 * rank.communication_s, hidden
    for number, sums in _kernel_sums(seen).items():
        record = result.recording.ranks[number] if result.recording is not None else None
        assert record is not None
        transfers = sum(one.finished - one.arrived for one in record.communication.transfers) - (queued[number] or 0.0)
        computing = step - ranks[number].exposed_communication_s - ranks[number].idle_s
        yield "kernels that compute", sums["COMPUTATION"] * second, computing
        yield "kernels of NCCL and copies", (sums["COMMUNICATION"] + sums["MEMORY"]) * second, transfers / iterations
        if record.idle_launch_wait() / iterations < _LAUNCH_BOUND * step:
            path = seen["critical_path"][str(number)]["total"] * 1e-6
            yield "critical path", path, record.iterations[0] + ahead * 1e-9
        longest = _longest_queue(handles[number], ahead)
        yield "queue length", seen["queue"][str(number)] / longest * step, step


def _by_rank(result: Result) -> dict[int, list[Handle]]:
    by_rank: dict[int, list[Handle]] = {}
    assert result.recording is not None
    for handle in result.recording.handles or ():
        by_rank.setdefault(handle.rank, []).append(handle)
    return by_rank


def _queued_copies(handles: list[Handle]) -> float | None:
    """Return for how many seconds a rank's copies waited for their engines, which no kernel shows; None without copies."""
    copies = [one for one in handles if isinstance(one.task, Copy)]
    return math.fsum((one.started or 0.0) - (one.arrived or 0.0) for one in copies) if copies else None


def _longest_queue(handles: list[Handle], ahead: int) -> int:
    """Return how many operations are launched and not begun at most on a stream of a rank."""
    changes: dict[str, list[tuple[int, int]]] = {}
    for one in activities(handles):
        if one.runs:
            launched = max(one.called, one.returned - _LAUNCH)
            changes.setdefault(one.stream, []).extend(((launched, 1), (one.begin + ahead, -1)))
    return max(max(accumulate(change for _, change in sorted(some))) for some in changes.values())


def _kernel_sums(seen: dict[str, Any]) -> dict[int, Counter[str]]:
    """Return the microseconds of each rank's kernels by kind."""
    found: dict[int, Counter[str]] = {}
    for row in seen["kernels"]:
        found.setdefault(row["rank"], Counter())[row["kernel_type"]] += row["sum (us)"]
    return found
