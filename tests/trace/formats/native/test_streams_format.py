"""A file of task streams: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from streams import Script

import triosim
from triosim.errors import TraceError
from triosim.trace.formats import read_trace
from triosim.trace.task_streams import TaskStreams

FIRST = Script().run(1, 2).mark("record", "compute", 4).ask("send", "pp", 64, peer=1, work=0, stream="side")
SECOND = Script().ask("recv", "pp", 64, peer=0).run(3).ask("broadcast", "dp", 8, root=1)
STREAMS = TaskStreams(
    {0: FIRST.trace(8), 3: SECOND.trace(8)}, (0, 3, 0, 3), {"pp": ((0, 1), (2, 3)), "dp": ((1, 3),)}, "", 16
)


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Any]:
    triosim.save_trace(STREAMS, tmp_path / "good.json")
    found: dict[str, Any] = json.loads((tmp_path / "good.json").read_text())
    return found


def read_back(data: object, tmp_path: Path) -> Any:
    path = tmp_path / "streams.json"
    path.write_text(json.dumps(data))
    return triosim.load_trace(path)


@pytest.mark.parametrize("name", ["streams.json", "streams.json.gz", "named.txt"])
def test_streams_are_the_same_after_writing_and_reading(tmp_path: Path, name: str) -> None:
    triosim.save_trace(STREAMS, tmp_path / name)
    read = triosim.load_trace(tmp_path / name)
    assert isinstance(read, TaskStreams)
    assert (read.like, read.groups, read.global_batch_size) == (STREAMS.like, STREAMS.groups, 16)
    assert read.source == str(tmp_path / name)
    assert read.traces.keys() == STREAMS.traces.keys()
    for rank, trace in read.traces.items():
        assert (trace.operators, trace.marks) == (STREAMS.traces[rank].operators, STREAMS.traces[rank].marks)
        assert (trace.batch_size, trace.times) == (8, "made up")


@pytest.mark.parametrize("together", [True, False])
def test_a_file_says_whether_its_operators_were_measured_beside_the_communication(
    tmp_path: Path, together: bool
) -> None:
    triosim.save_trace(dataclasses.replace(STREAMS, measured_together=together), tmp_path / "streams.json")
    read = triosim.load_trace(tmp_path / "streams.json")
    assert isinstance(read, TaskStreams)
    assert read.measured_together == together


WRONG: list[tuple[str, list[Any], Any, str, str]] = [
    ("later version", ["schema"], "triosim-streams/2", "schema", "triosim-streams/1"),
    ("no ranks", ["like"], [], "like", "no ranks"),
    ("like nobody", ["like", 1], 2, "like[1]", "rank 2 was not captured; captured: 0, 3"),
    ("like a half", ["like", 1], 0.5, "like[1]", "not an integer"),
    ("no traces", ["traces"], {}, "traces", "there is no trace"),
    ("trace of no rank", ["traces", "4"], {}, "traces.4", "not a rank from 0 to 3"),
    ("trace of a name", ["traces", "first"], {}, "traces.first", "not a rank"),
    ("groups no object", ["groups"], [], "groups", "not an object"),
    ("group no list", ["groups", "pp", 0], 3, "groups.pp[0]", "not a list"),
    ("stranger", ["groups", "pp", 0, 0], 9, "groups.pp[0][0]", "there is no rank 9 in a world of 4"),
    ("twice", ["groups", "pp", 0, 0], 1, "groups.pp[0][1]", "rank 1 is in two groups of 'pp'"),
    (
        "absent group",
        ["groups", "dp"],
        [],
        "traces.3.operators[2].communication.group",
        "rank 3 belongs to no group of 'dp'",
    ),
    (
        "peer of nobody",
        ["traces", "0", "operators", 2, "communication", "peer"],
        2,
        "traces.0.operators[2].communication.peer",
        "none at index 2",
    ),
    ("operator's time", ["traces", "3", "operators", 1, "seconds"], -1, "traces.3.operators[1].seconds", "negative"),
    ("mark of a trace", ["traces", "0", "marks", 0, "kind"], "x", "traces.0.marks[0].kind", "known: record"),
    ("unknown key", ["group"], {}, "group", "did you mean 'groups'?"),
    ("measured perhaps", ["measured_together"], 1, "measured_together", "not true or false"),
    ("memory of all", ["memory_bound"], 1.5, "memory_bound", "at most 1"),
    ("batch of none", ["global_batch_size"], 0, "global_batch_size", "at least 1"),
]


@pytest.mark.parametrize(("keys", "value", "place", "said"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_an_error_names_file_key_and_what_is_wrong(
    good: dict[str, Any], tmp_path: Path, keys: list[Any], value: Any, place: str, said: str
) -> None:
    document = copy.deepcopy(good)
    target: Any = document
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    with pytest.raises(TraceError) as error:
        read_back(document, tmp_path)
    assert f"streams.json: {place}: " in str(error.value)
    assert said in str(error.value)


def test_streams_are_no_trace_of_one_gpu(tmp_path: Path) -> None:
    triosim.save_trace(STREAMS, tmp_path / "streams.json")
    with pytest.raises(TraceError, match="holds the task streams of 4 ranks, not a trace of one GPU"):
        read_trace(tmp_path / "streams.json")
