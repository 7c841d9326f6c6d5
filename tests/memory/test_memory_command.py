"""``triosim memory`` from end to end: what it shows and writes, and how it answers what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from storage_traces import MIB, training_step

import triosim
from triosim.cli import run
from triosim.memory import analyse
from triosim.reports.terminal.memory_table import size
from triosim.trace.formats import write
from triosim.trace.task_streams import TaskStreams

SHIPPED = Path(__file__).parents[2] / "examples" / "traces" / "resnet50_a100_fake.json.gz"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "step.json"
    write(training_step().trace("NVIDIA H100 80GB HBM3"), path)
    return str(path)


def test_it_shows_the_peak_by_category_and_module(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", trace, "--no-workspace"]) == 0
    shown = capsys.readouterr().out
    text = " ".join(shown.replace("│", " ").split())
    assert "20.0 MiB of tensors, in aten::addmm of fc (operator 1 of 3, forward)" in text
    assert "fits; 78.5 GiB are left" in text
    assert max(map(len, shown.splitlines())) <= 80
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("fc "))
    assert row == ["fc", "4.0", "4.0", "4.0", "8.0", "-", "20.0"]


def test_json_says_the_same_in_bytes(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", trace, "--no-workspace", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["world"]) == ("triosim-memory/1", 1)
    (rank,) = found["ranks"]
    assert rank["peak"] == {
        "tensor_bytes": 20 * MIB,
        "live_bytes": 20 * MIB,
        "allocated_bytes": 20 * MIB,
        "reserved_bytes": 20 * MIB,
        "operator": 0,
        "name": "aten::addmm",
        "layer": "fc",
        "phase": "forward",
    }
    assert rank["fits"] is True
    assert rank["out_of_memory"] is None
    assert rank["start_bytes"] == {"parameter": 4 * MIB, "optimizer_state": 4 * MIB, "gradient": 4 * MIB}


def test_status_3_says_that_it_does_not_fit(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["memory", trace, "--no-workspace", "--capacity", "19MiB", "--context", "0"]
    assert run([*small, "--fail-on-oom"]) == 3
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "does not fit: the first step fails before the first operator" in shown
    assert "on a GPU that is large enough it reserves 20.0 MiB" in shown
    assert run(small) == 0
    assert run(["memory", trace, "--fail-on-oom"]) == 0


def test_pictures_and_snapshots_are_written(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, snapshot = tmp_path / "memory.png", tmp_path / "memory.pickle"
    assert run(["memory", trace, "--plot", str(picture), "--snapshot", str(snapshot), "--quiet"]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert snapshot.stat().st_size > 1000


def test_a_trace_without_storages_is_estimated_not_far_from_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = triosim.load_trace(SHIPPED)
    path = tmp_path / "without.json.gz"
    write(replace(captured, storages=()), path)
    assert run(["memory", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "note: an estimate" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert run(["memory", str(SHIPPED)]) == 0
    assert "note: an estimate" not in capsys.readouterr().out
    estimate = analyse(replace(captured, storages=()))
    assert estimate.peak_live == pytest.approx(analyse(captured).peak_live, rel=0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "H1000"], "there is no GPU 'H1000'"),
        (["--capacity", "many"], "'many' is not a quantity"),
        (["--capacity", "-1 GiB"], "--capacity: -1 GiB is not a number of bytes"),
        (["--capacity", "100 MiB"], "is no larger than the CUDA context"),
        (["--allocator", "backend:cudaMallocAsync"], "--allocator: 'backend' is not known"),
        (["--rank", "3"], "--rank: the trace is of one GPU"),
        (["--depth", "0"], "--depth: 0 is less than 1"),
        (["--plot", "memory.bmp"], "is not a known kind of picture"),
        (["--snapshot", "memory.json"], "memory.json: a snapshot is a pickle; end the name in .pickle or .pkl"),
        (["--snapshot", "no/such/folder/m.pickle"], "the folder 'no/such/folder' does not exist"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    options: list[str], said: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", trace, *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_of_many_ranks_the_one_that_needs_most_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    light, heavy = training_step().trace(), training_step(buffer=30 * MIB).trace()
    path = tmp_path / "streams.json.gz"
    write(TaskStreams({0: light, 2: heavy}, (0, 0, 2, 2), {}), path)
    assert run(["memory", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "rank       2" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["2-3", *["50.0", "MiB", "50.0", "MiB", "50.0", "MiB", "?"]] in rows
    assert ["0-1", *["20.0", "MiB", "20.0", "MiB", "20.0", "MiB", "?"]] in rows
    assert run(["memory", str(path), "--rank", "1", "--format", "json"]) == 0
    assert [row["rank"] for row in json.loads(capsys.readouterr().out)["ranks"]] == [0]
    assert run(["memory", str(path), "--rank", "4"]) == 2
    assert "--rank: there is no rank 4; give one from 0 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (512, "512 B"),
        (1536, "1.50 KiB"),
        (10 * MIB, "10.0 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (123 * 2**30, "123 GiB"),
    ],
)
def test_sizes_are_shown_in_powers_of_two(nbytes: int, said: str) -> None:
    assert size(nbytes) == said


def test_the_report_is_the_same_every_time() -> None:
    first, second = (analyse(training_step().trace(), "H100") for _ in range(2))
    assert first.replay.calls == second.replay.calls
