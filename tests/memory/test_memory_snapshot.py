"""The snapshot for PyTorch's memory visualiser: in its format, and telling the same story as the allocator."""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import pytest
from storage_traces import MIB, Step, training_step

from triosim.memory import AllocatorSettings, MemoryReport, analyse
from triosim.memory.snapshot import snapshot, write_snapshot

#: What the reader in pytorch.org/memory_viz (torch/utils/viz/MemoryViz.js, function unpickle) understands.
READABLE = (
    *(
        "PROTO",
        "FRAME",
        "MEMOIZE",
        "MARK",
        "STOP",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
    ),
    *(
        "BINFLOAT",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "EMPTY_LIST",
        "APPEND",
        "APPENDS",
        "EMPTY_DICT",
        "SETITEM",
        "SETITEMS",
    ),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "LIST"),
)


def taken(report: MemoryReport) -> dict[str, Any]:
    return snapshot(report.usage.lifetimes, report.attempt)


def failing() -> MemoryReport:
    step = Step()
    step.found(12 * MIB, "parameter", "fc")
    step.run("aten::addmm", "forward", "fc")
    step.take(12 * MIB, "activation", "fc")
    return analyse(step.trace(), capacity=20 * MIB, context=0)


REPORTS = {
    "fits": lambda: analyse(training_step().trace(), "H100"),
    "expandable": lambda: analyse(training_step().trace(), settings=AllocatorSettings(expandable_segments=True)),
    "fails": failing,
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_file_holds_only_what_the_visualiser_reads(name: str, tmp_path: Path) -> None:
    """Its opcodes are looked at; the pickle itself is never loaded."""
    report = REPORTS[name]()
    path = tmp_path / "memory.pickle"
    write_snapshot(report.usage.lifetimes, report.attempt, path)
    opcodes = list(pickletools.genops(path.read_bytes()))
    assert {opcode.name for opcode, _, _ in opcodes} <= set(READABLE)
    assert opcodes[0][1] == 4  # the protocol


@pytest.mark.parametrize("name", REPORTS)
def test_the_events_lead_to_the_segments(name: str) -> None:
    """Played from an empty GPU, allocations and frees leave the blocks that the segments show, and segments likewise."""
    shot = taken(REPORTS[name]())
    blocks: dict[int, int] = {}
    reserved = 0
    for event in shot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in blocks
            blocks[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert blocks.pop(event["addr"]) == event["size"]
        elif event["action"] in ("segment_alloc", "segment_map"):
            reserved += event["size"]
        elif event["action"] in ("segment_free", "segment_unmap"):
            reserved -= event["size"]
        assert sum(blocks.values()) <= reserved
    shown = {
        block["address"]: block["requested_size"]
        for segment in shot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert shown == blocks
    assert sum(segment["total_size"] for segment in shot["segments"]) == reserved
    for segment in shot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


def test_an_allocation_says_what_it_is_for() -> None:
    events = taken(analyse(training_step().trace()))["device_traces"][0]
    activation = next(event for event in events if event.get("category") == "activation")
    assert [(frame["filename"], frame["name"]) for frame in activation["frames"]] == [
        ("activation", "8388608 bytes"),
        ("forward", "aten::addmm"),
        ("fc", "fc"),
    ]
    assert any(event.get("category") == "unknown" for event in events)  # without it the visualiser fails


def test_a_step_that_does_not_fit_ends_with_its_failure() -> None:
    last = taken(failing())["device_traces"][0][-2]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 12 * MIB, 8 * MIB)


@pytest.mark.parametrize("name", REPORTS)
def test_pytorchs_own_tools_digest_it(name: str) -> None:
    visualiser = pytest.importorskip("torch.cuda._memory_viz")
    report = REPORTS[name]()
    shot = taken(report)
    reserved = visualiser.Bytes(report.attempt.allocator.reserved)
    assert f"total_reserved: {reserved}" in visualiser.segsum(shot)
    assert "Active Memory Timeline" in visualiser.trace_plot(shot)
    assert "Allocator State History" in visualiser.segment_plot(shot)
    lines = visualiser.segments(shot, format_flamegraph=str)
    in_use = sum(int(line.rsplit(" ", 1)[1]) for line in lines.splitlines() if ";active_allocated;" in line)
    assert in_use == report.attempt.allocator.allocated
    assert visualiser.trace(taken(report)).startswith("Device 0")
