"""The timeline is what a viewer of Chrome trace events expects."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hand_made_run import handle, recording, result
from trace_slices import assert_nested

import triosim
from triosim.cli import main as cli
from triosim.engine import Recording
from triosim.engine.recording import RankRecord
from triosim.reports.files.timeline import write_timeline
from triosim.tasks import Compute

Event = dict[str, Any]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    path = tmp_path_factory.mktemp("timeline") / "timeline.json.gz"
    result().save_timeline(path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert content["displayTimeUnit"] == "ms"
    found: list[Event] = content["traceEvents"]
    return found


def of(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def track_names(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}


def test_each_gpu_is_a_process_and_each_stream_a_track(events: list[Event]) -> None:
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {1: "GPU 0 (gpu0)", 2: "GPU 1 (gpu1)", 3: "links"}
    tracks = track_names(events)
    assert {name for (process, _), name in tracks.items() if process == 1} == {
        "compute", "p2p", "communication", "network out"
    }  # fmt: skip
    assert all(process > 0 and track > 0 for process, track in tracks)


def test_each_operator_is_a_slice_in_microseconds(events: list[Event]) -> None:
    slices = [e for e in of(events, "X") if e["pid"] == 1 and e["cat"] in ("forward", "backward", "optimizer")]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [
        ("aten::conv2d", 0, 1000),
        ("aten::addmm", 1000, 2000),
        ("aten::mm", 3000, 2000),
        ("aten::conv", 5000, 2000),
        ("aten::add_", 9000, 1000),
    ]
    assert slices[0]["args"] == {"layer": "a", "phase": "forward", "operator": 0}


def test_a_collective_says_its_bytes_its_group_and_how_long_it_waited(events: list[Event]) -> None:
    first = next(e for e in of(events, "X") if e["name"].startswith("all_reduce"))
    assert (first["ts"], first["dur"]) == (5000, 4000)
    assert first["args"] == {"waiting_us": 1000, "bytes": 10e6, "group": "0-1", "axis": "dp", "layers": "a, b"}
    waiting = [(e["pid"], e["ts"], e["dur"]) for e in of(events, "X") if e["name"] == "waiting"]
    assert waiting == [(1, 5000, 1000)]


def test_slices_of_one_track_nest_or_keep_apart(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in of(events, "X"):
        tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in tracks.values():
        for start, end in spans:
            for other_start, other_end in spans:
                assert not start < other_start < end < other_end


def test_arrows_lead_from_a_send_to_its_receive_and_along_a_flow(events: list[Event]) -> None:
    tails = {e["id"]: e for e in of(events, "s")}
    heads = {e["id"]: e for e in of(events, "f")}
    assert tails.keys() == heads.keys()
    assert sorted(e["cat"] for e in tails.values()) == ["flow", "send"]
    names = track_names(events)
    for number, tail in tails.items():
        head = heads[number]
        assert (tail["pid"], head["pid"]) == (1, 2)
        assert head["bp"] == "e"
        for end in (tail, head):
            around = [
                e
                for e in of(events, "X")
                if (e["pid"], e["tid"]) == (end["pid"], end["tid"]) and e["ts"] <= end["ts"] < e["ts"] + e["dur"]
            ]
            assert around, f"{end} binds to no slice of {names[end['pid'], end['tid']]}"


def test_a_links_counter_shows_its_share_and_the_last_of_two_changes_at_once(events: list[Event]) -> None:
    assert [(e["name"], e["ts"], e["args"]) for e in of(events, "C")] == [
        ("forth utilisation", 1000, {"%": 100.0}),
        ("forth utilisation", 2000, {"%": 0.0}),
    ]


def test_tasks_of_one_stream_that_overlap_get_tracks_beside_each_other(tmp_path: Path) -> None:
    made = result()
    assert made.topology is not None
    tasks = [Compute.of(name, 2e-3, stream=None) for name in "xyz"]
    run = Recording(
        [RankRecord(0)], handles=[handle(0, task, at, at, at + 2) for at, task in enumerate(tasks)], end=4e-3
    )
    write_timeline(run, made.topology, None, tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert set(track_names(found).values()) == {"unordered", "unordered (2)"}
    test_slices_of_one_track_nest_or_keep_apart(found)


def test_slices_that_touch_do_not_overlap_when_a_viewer_adds_their_times(tmp_path: Path) -> None:
    """2.301 + 0.1 is 2.4010000000000002 in floats: speedscope takes such a slice for the caller of the next one."""
    made = result()
    assert made.topology is not None
    ends = [2.301e-3, 2.401e-3, 2.4013e-3, 4.5e-3]  # ms; the third takes less than half a nanosecond
    starts = [0.0, *ends[:-1]]
    tasks = [Compute.of(name, (end - start) * 1e-3) for name, start, end in zip("wxyz", starts, ends, strict=True)]
    handles = [handle(0, task, start, start, end) for task, start, end in zip(tasks, starts, ends, strict=True)]
    write_timeline(
        Recording([RankRecord(0)], handles=handles, end=2e-3), made.topology, None, tmp_path / "t.json", title="four"
    )
    found = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = of(found, "X")
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [
        ("w", 0, 2.301),
        ("x", 2.301, 0.0995),
        ("z", 2.401, 2.099),
    ]
    (instant,) = of(found, "i")
    assert (instant["name"], instant["ts"]) == ("y of y", 2.401)
    assert track_names(found)[instant["pid"], instant["tid"]] == "takes no time"


def test_no_two_tracks_share_a_number_and_none_has_that_of_its_process(events: list[Event]) -> None:
    named = [(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert len({track for _, track in named}) == len(named)
    assert not {track for _, track in named} & {process for process, _ in named}
    for gpu in (1, 2):  # in the order of their numbers, as in that of their sort keys: alike on every GPU
        order = {
            e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index" and e["pid"] == gpu
        }
        assert sorted(order) == sorted(order, key=order.__getitem__)


@pytest.mark.parametrize("option", ["--timeline", "--kineto"])
def test_a_timeline_of_some_ranks_shows_these_alone(tmp_path: Path, option: str) -> None:
    trace = Path(__file__).parents[2] / "examples" / "traces" / "vgg11_a100_fake.json.gz"
    command = ["simulate", str(trace), "-p", "ddp", "-n", "4", "-t", "dgx-a100", "-q", "--timeline-ranks", "0,2-3"]
    assert cli.run([*command, option, str(tmp_path / "run.json")]) == 0
    if option == "--kineto":
        shown = {file.name for file in (tmp_path / "run.json").iterdir()}
        assert shown == {f"rank-{rank}.json.gz" for rank in (0, 2, 3)}
        return
    found = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    computing = {e["pid"] - 1 for e in of(found, "X") if e["cat"] == "forward"}
    assert computing == {0, 2, 3}
    flows = {(e["args"]["from"], e["args"]["to"]) for e in of(found, "X") if e["cat"] == "flow"}
    assert flows == {("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu3"), ("gpu3", "gpu0")}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--timeline-ranks", "0"], "--timeline-ranks: has no effect without --timeline or --kineto"),
        (["--timeline-ranks", "0,9", "--timeline", "t.json"], "there is no rank 9; give ranks from 0 to 1"),
        (["--timeline-ranks", "first", "--timeline", "t.json"], "'first' names no ranks; write 0,8 or 0-3"),
        (["--timeline-ranks", "3-1", "--timeline", "t.json"], "'3-1' names no ranks"),
    ],
)
def test_ranks_that_there_are_not_are_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], what: str
) -> None:
    trace = Path(__file__).parents[2] / "examples" / "traces" / "vgg11_a100_fake.json.gz"
    monkeypatch.chdir(tmp_path)
    assert cli.run(["simulate", str(trace), "-p", "ddp=2", "-t", "dgx-a100", "-q", *options]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_flows_beyond_what_a_viewer_bears_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triosim.reports.files import timeline

    monkeypatch.setattr(timeline, "MAX_FLOWS", 0)
    made = result(recording())
    made.save_timeline(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["otherData"]["left out: flows"] == 1
    assert not [e for e in content["traceEvents"] if e.get("cat") == "flow"]


@pytest.mark.parametrize(("parallel", "options"), [("ddp=4", {}), ("pp=4", {"micro_batches": 4}), ("fsdp=4", {})])
def test_slices_nest_as_viewers_count(tmp_path: Path, parallel: str, options: dict[str, int]) -> None:
    """speedscope counts from the first slice of a track, in floats."""
    trace = Path(__file__).parents[2] / "examples" / "traces" / "gpt2_a100_fake.json.gz"
    run = triosim.simulate(trace, parallel, topology="dgx-a100", timeline=True, **options)
    run.save_timeline(tmp_path / "timeline.json")
    run.save_kineto(tmp_path / "profiles")
    assert_nested(json.loads((tmp_path / "timeline.json").read_text())["traceEvents"])
    profile = gzip.decompress((tmp_path / "profiles" / "rank-0.json.gz").read_bytes())
    assert_nested(json.loads(profile)["traceEvents"])
