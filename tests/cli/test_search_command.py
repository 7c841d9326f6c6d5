"""``triosim search``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from triosim.cli import run

MODEL = "gpt2(layers=2, hidden=128, heads=4, vocab=512, sequence=64)"
SPACE = ["--gpus", "4", "--topology", "dgx-h100", "--global-batch-size", "8", "--vary", "tp=1,2,3", "--vary", "pp=1,2"]


def test_the_answer_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "search.json"
    assert run(["search", MODEL, *SPACE, "-o", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == "triosim: 6 points, 4 of them valid; invalid: 2 by 'gpus'\n"
    assert max(map(len, said.out.splitlines())) <= 80
    found = json.loads(path.read_text())
    assert (found["points"], found["invalid"]) == (6, {"gpus": 2})
    assert found["out_of_memory"] + found["excluded_by_bound"] + found["simulated"] == 4
    assert found["gap"] == 0.0
    assert found["certificate"].startswith("none of the points that the memory rule admits is better")
    times = [one["step_time_s"] for one in found["top"]]
    assert times == sorted(times)
    assert found["best"] == found["top"][0]
    assert {one["axis"] for one in found["neighbours"]} == {"tp", "pp"}


def test_the_command_of_a_point_simulates_it(tmp_path: Path) -> None:
    path, result = tmp_path / "search.json", tmp_path / "result.json"
    assert run(["search", MODEL, *SPACE, "--quiet", "-o", str(path)]) == 0
    best = json.loads(path.read_text())["best"]
    triosim, *arguments = shlex.split(best["command"])
    assert triosim == "triosim"
    assert run([*arguments, "--quiet", "-o", str(result)]) == 0
    assert json.loads(result.read_text())["step_time_s"] == best["step_time_s"]


def test_a_study_is_shown_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = str(tmp_path / "study.db")
    answers = []
    for arguments in ([MODEL, *SPACE, "--study", study], [MODEL, *SPACE, "--study", study], ["--show", study]):
        assert run(["search", *arguments, "--format", "json"]) == 0
        answers.append({**json.loads(capsys.readouterr().out), "seconds": 0.0})
    first, again, shown = answers
    assert first == again == shown


def test_several_numbers_of_gpus_are_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    arguments = ["--gpus", "2,4", "--topology", "dgx-h100", "--vary", "tp=1,2", "--objective", "fewest-gpus=1"]
    assert run(["search", MODEL, "--global-batch-size", "8", *arguments, "--quiet", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["best"]["gpus"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vary", "tp=0"], "--vary tp: 0 is less than 1"),
        (["--vary", "tpp=1"], "--vary tpp: there is no option 'tpp' that can vary; did you mean 'tp'?"),
        (["--vary", "tp=3"], "no point of the space is valid: 1 break the rule 'gpus'"),
        (["--objective", "speed"], "--objective: 'speed' is no objective"),
        (["--within", "two"], "--within: 'two' is not a share; give one such as 2%"),
        (["--space", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file or directory"),
        (["--show", "nowhere.db"], "nowhere.db: there is no such study"),
        (["--without-rule", "batch"], "--without-rule: there is no rule 'batch' to leave out"),
        (["--memory-margin", "-1"], "--memory-margin: '-1' is not a share"),
        (["-o", "/"], "/: is a folder, not a file"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["search", MODEL, "--gpus", "4", *arguments, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
