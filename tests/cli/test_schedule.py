"""``triosim schedule``, and ``--schedule`` of ``triosim simulate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import traces

from triosim.cli import run
from triosim.trace.formats import write


def test_a_schedule_is_shown_with_its_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_time_s"] == pytest.approx((8 + 3) * 3)
    assert [rank["bubble_s"] for rank in found["ranks"]] == pytest.approx([9.0] * 4)
    assert [rank["micro_batches_held"] for rank in found["ranks"]] == [4, 3, 2, 1]
    first = [one for one in found["actions"] if one["rank"] == 3][:2]
    assert [(one["action"], one["start_s"], one["end_s"]) for one in first] == [("3F0", 3.0, 4.0), ("3B0", 4.0, 6.0)]


def test_times_of_a_stage_are_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--stages", "2", "--micro-batches", "2", "--times", "1,2,0.5", "--format", "json"]
    assert run(["schedule", "zero-bubble", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["bubble_s"] == pytest.approx(1 + 2 - 0.5)


def test_the_table_tells_a_persons_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "interleaved", "--stages", "2", "--micro-batches", "2", "--virtual-stages", "3"]) == 0
    shown = capsys.readouterr().out
    assert "interleaved: 2 ranks, 6 stages, 2 micro-batches" in shown
    assert "0, 2, 4" in shown
    assert "a step takes 21 s" in shown


def test_an_option_of_a_plug_in_is_given_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    eager = Path(__file__).parents[2] / "examples" / "plugins" / "eager_1f1b.py"
    command = ["schedule", f"{eager}:Eager1F1B", "--stages", "2", "--micro-batches", "4", "--format", "json"]
    held = []
    for ahead in (1, 3):
        assert run([*command, "--option", f"ahead={ahead}"]) == 0
        held.append(json.loads(capsys.readouterr().out)["ranks"][0]["micro_batches_held"])
    assert held == [2, 4]  # so many forward passes ahead, and the one that runs


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_and_a_table_are_written(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, table = tmp_path / f"x.{suffix}", tmp_path / "x.csv"
    arguments = ["--stages", "2", "--micro-batches", "4", "--plot", str(picture), "-o", str(table), "--quiet"]
    assert run(["schedule", "dualpipe", *arguments]) == 0
    assert picture.stat().st_size > 1000
    assert table.read_text(encoding="utf-8").startswith("rank,slot,action\n0,0,0F0\n0,1,1F2\n")


def test_a_picture_numbers_every_micro_batch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "x.svg"
    assert run(["schedule", "gpipe", "--stages", "2", "--micro-batches", "3", "--plot", str(picture), "--quiet"]) == 0
    text = picture.read_text(encoding="utf-8")
    for number in range(3):
        assert text.count(f"<!-- {number} -->") >= 4  # two ranks, forward and backward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "zerobubble", "--stages", "4"], "did you mean 'zero-bubble'?"),
        (["schedule", "dualpipe", "--stages", "3"], "3 pipeline ranks are an odd number; use an even one"),
        (["schedule", "1f1b", "--stages", "0"], "--stages: 0 is less than 1; give 1 or more"),
        (["schedule", "1f1b", "--stages", "2", "--micro-batches", "0"], "0 is less than 1"),
        (["schedule", "1f1b", "--stages", "2", "--times", "1,2"], "--times: '1,2' is not three numbers"),
        (["schedule", "1f1b", "--stages", "2", "--times", "1,0,1"], "--times: 1,0,1 are not three positive times"),
        (["schedule", "1f1b", "--stages", "2", "--plot", "x.txt"], "x.txt: is not a known kind of picture"),
        (["schedule", "1f1b", "--stages", "2", "-o", "x.json"], "x.json: does not name a CSV file; end it in .csv"),
        (
            ["simulate", "TRACE", "-p", "pp=2", "--schedule", "interleaved", "--micro-batches", "1"],
            "are not divisible by 2",
        ),
        (["simulate", "TRACE", "-p", "pp=2", "--virtual-stages", "2"], "'1f1b' has no virtual stages"),
        (["simulate", "TRACE", "-p", "pp=2", "--virtual-stages", "0"], "0 is less than 1"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    write(traces.mlp(), path)
    assert run([str(path) if word == "TRACE" else word for word in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_simulation_reads_a_schedule_and_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, table = tmp_path / "trace.json", tmp_path / "mine.csv"
    write(traces.mlp(), trace)
    assert run(["schedule", "zero-bubble", "--stages", "2", "--micro-batches", "4", "-o", str(table), "--quiet"]) == 0
    steps = []
    for name in (str(table), "zero-bubble"):
        assert (
            run(["simulate", str(trace), "-p", "pp=2", "--micro-batches", "4", "--schedule", name, "--format", "json"])
            == 0
        )
        steps.append(json.loads(capsys.readouterr().out))
    assert steps[0]["step_time_s"] == steps[1]["step_time_s"]
    assert "schedule" in json.dumps(steps[0]["inputs"])


def test_an_option_without_a_pipeline_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    write(traces.mlp(), trace)
    assert run(["simulate", str(trace), "-p", "ddp", "-n", "2", "--schedule", "gpipe", "--format", "json"]) == 0
    assert "--schedule has no effect without pp" in capsys.readouterr().out


def test_a_table_says_by_itself_how_many_virtual_stages_a_rank_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "mine.csv")
    named = ["schedule", "interleaved", "--stages", "2", "--micro-batches", "4", "--virtual-stages", "2"]
    assert run([*named, "-o", table, "--quiet"]) == 0
    of_table = ["schedule", table, "--stages", "2", "--micro-batches", "4", "--quiet"]
    assert run(of_table) == 0
    assert run([*of_table, "--virtual-stages", "2"]) == 2
    said = f"'{table}' says by itself how many virtual stages a rank has; leave --virtual-stages out"
    assert said in capsys.readouterr().err
