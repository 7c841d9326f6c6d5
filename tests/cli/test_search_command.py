"""``triosim search``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from triosim.cli import run
from triosim.configuration_search.study import StudyError, shown

MODEL = "gpt2(layers=2, hidden=128, heads=4, vocab=512, sequence=64)"
SPACE = ["--gpus", "4", "--topology", "dgx-h100", "--global-batch-size", "8", "--vary", "tp=1,2,3", "--vary", "pp=1,2"]


def test_the_answer_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "search.json"
    assert run(["search", MODEL, *SPACE, "-o", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == "triosim: 6 points, 4 of them valid; invalid: 2 by 'gpus'\n"
    assert max(len(line) for line in said.out.splitlines() if "triosim simulate" not in line) <= 80
    found = json.loads(path.read_text())
    assert f"1. {found['best']['command']}" in said.out.splitlines()  # in one line, which can be copied
    assert (found["points"], found["invalid"]) == (6, {"gpus": 2})
    assert found["out_of_memory"] + found["excluded_by_bound"] + found["simulated"] == 4
    assert found["gap"] == 0.0
    assert found["certificate"].startswith("none of the points that the memory rule admits is better")
    times = [one["step_time_s"] for one in found["top"]]
    assert times == sorted(times)
    assert found["best"] == found["top"][0]
    assert {one["axis"] for one in found["neighbours"]} == {"tp", "pp"}
    assert all((one["change"] is None) == bool(one["reason"]) for one in found["neighbours"])


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


def test_an_objective_that_no_point_reaches_has_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, study = tmp_path / "search.json", str(tmp_path / "study.db")
    arguments = [MODEL, *SPACE, "--objective", "fewest-gpus=1e15", "--study", study]
    assert run(["search", *arguments, "-o", str(path)]) == 0
    assert "no point reaches what the objective asks for" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert (found["simulated"], found["best"], found["top"], found["certificate"]) == (4, None, [], "none")
    assert run(["search", "--show", study, "--objective", "fewest-gpus=1e15"]) == 0
    assert "interrupted" not in capsys.readouterr().out


def test_the_first_is_likely_to_be_faster_than_the_second(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    assert run(["search", MODEL, *SPACE, "--quiet", "-o", str(path), "--jobs", "2"]) == 0
    assert 0.5 <= json.loads(path.read_text())["chance_first_is_faster"] <= 1.0


def test_a_search_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "search.svg"
    assert (
        run(["search", MODEL, *SPACE, "--quiet", "--plot", str(path), "--objective", "step-time,memory-headroom"]) == 0
    )
    assert "none better in all objectives" in path.read_text()
    assert run(["search", MODEL, *SPACE, "--plot", str(tmp_path / "search.txt")]) == 2
    assert "is not a known kind of picture" in capsys.readouterr().err


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    study, path = tmp_path / "study.db", tmp_path / "search.json"
    command = [
        sys.executable,
        "-m",
        "triosim",
        "search",
        MODEL,
        *SPACE,
        "--study",
        str(study),
        "--jobs",
        "2",
        "--quiet",
    ]
    process = subprocess.Popen(command)
    while not (study.exists() and _known(study)):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = _known(study)
    assert run(["search", MODEL, *SPACE, "--study", str(study), "--quiet", "-o", str(path)]) == 0
    assert len(_known(study)) == 4
    assert before <= _known(study)
    assert json.loads(path.read_text())["gap"] == 0.0


def _known(study: Path) -> set[str]:
    """Return the points that a study has something of."""
    with suppress(StudyError), shown(study) as found:
        return {one.key for one in found.outcomes()}
    return set()


def test_two_searches_share_a_study(tmp_path: Path) -> None:
    study = str(tmp_path / "study.db")
    command = [sys.executable, "-m", "triosim", "search", MODEL, *SPACE, "--study", study, "--format", "json"]
    searches = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    first, second = (json.loads(one.communicate()[0]) for one in searches)
    assert first["best"]["step_time_s"] == second["best"]["step_time_s"]
    assert first["gap"] == second["gap"] == 0.0


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
        (["--vary", "gpu=H100,H1000"], "--vary gpu: there is no GPU 'H1000' in the catalogue; did you mean 'H100'?"),
        (["--vary", "network=packet,foo"], "--vary network: unknown network 'foo'; known: "),
        (["--vary", "schedule=foo", "--vary", "pp=2"], "--vary schedule: unknown schedule 'foo'; known: 1f1b"),
        (["--vary", "recompute=foo"], "--vary recompute: unknown policy 'foo'; known: "),
        (["--screen", "foo"], "unknown network 'foo'; known: "),
        (["--vary", "tp=4", "--global-batch-size", "8", "--option", "foo=1"], "none of the 1 valid points can run: "),
        (["--objective", "speed"], "--objective: 'speed' is no objective"),
        (["--within", "two"], "--within: 'two' is not a share; give one such as 2%"),
        (["--space", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file or directory"),
        (["--show", "nowhere.db"], "nowhere.db: there is no such study"),
        (["--without-rule", "batch"], "--without-rule: 'batch' is a rule for all points: the global batch divides"),
        (
            ["--without-rule", "price"],
            "--without-rule: 'price' is a rule for all points: the network costs no more than its budget; ",
        ),
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


def test_a_trace_without_tokens_has_samples(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(Path(__file__).parents[2] / "examples" / "traces" / "vgg11_a100_fake.json.gz")
    assert run(["search", trace, "--gpus", "2", "--vary", "recompute=none,selective", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "samples/s" in said
    assert "tokens/s" not in said
    assert " recompute=selective    refused" in said
    assert "refused: recompute: 'selective' finds nothing to recompute" in " ".join(said.split())
