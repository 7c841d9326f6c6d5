"""Advice about a job: its changes are simulated as they are said, and the lines of its file make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim import cli
from triosim.config import RunConfig
from triosim.launch_files.job import ModelSizes
from triosim.launch_files.reading import read_launch_file
from triosim.simulation import simulate_config

MODEL = "llama3-8b(layers=4, hidden=1024, heads=8, kv_heads=4, feed_forward=2048, vocab=2048)"
JOB = """\
[parallelism]
tensor_parallel_degree = 4
[training]
seq_len = 512
local_batch_size = 1
global_batch_size = 16
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("job")
    job, output = folder / "job.toml", folder / "advice.json"
    job.write_text(JOB)
    assert cli.run(["advise", MODEL, "--like", str(job), "--gpus", "8", "--gpu", "H100", "-q", "-o", str(output)]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def of(answer: dict[str, Any], *changes: str) -> dict[str, Any]:
    return next(one for one in answer["found"] if one["changes"] == list(changes))


def simulated(text: str, folder: Path) -> float:
    (folder / "job.toml").write_text(text)
    options = read_launch_file(str(folder / "job.toml"), ModelSizes.of(MODEL, RunConfig.of())).options
    return simulate_config(MODEL, RunConfig.of(**{**options, "gpus": 8, "gpu": "H100"})).step_time_s


@pytest.mark.parametrize(
    ("change", "line", "edit"),
    [
        ("recompute full -> none", 'mode = "full"', 'mode = "none"'),
        ("tp 4 -> 2", "tensor_parallel_degree = 4", "tensor_parallel_degree = 2"),
        ("micro-batch size 1 -> 2", "local_batch_size = 1", "local_batch_size = 2"),
        ("compiled", "enable = false", "enable = true"),
    ],
)
def test_the_line_that_is_named_makes_the_step(
    answer: dict[str, Any], change: str, line: str, edit: str, tmp_path: Path
) -> None:
    """Where the file says a key that follows from others, or does not say it, no more is changed than needed."""
    found = of(answer, change)
    number = JOB.splitlines().index(line) + 1
    assert [one.partition("job.toml:")[2].partition(":")[0] for one in found["edits"]] == [str(number)]
    assert found["edits"][0].endswith(f"write {edit.partition(' = ')[2]}")
    assert found["step_time_s"] == pytest.approx(simulated(JOB.replace(line, edit), tmp_path), rel=1e-9)
    assert found["gain"] == pytest.approx(1 - found["step_time_s"] / answer["step_time_s"])


def test_the_job_as_it_is_comes_first(answer: dict[str, Any], tmp_path: Path) -> None:
    assert answer["step_time_s"] == pytest.approx(simulated(JOB, tmp_path), rel=1e-9)
    gains = [one["gain"] for one in answer["found"] if one["fits"]]
    assert gains == sorted(gains, reverse=True)


def test_two_changes_gain_more_than_each(answer: dict[str, Any]) -> None:
    pairs = [one for one in answer["found"] if len(one["changes"]) == 2]
    assert pairs
    for pair in pairs:
        assert all(pair["step_time_s"] < of(answer, change)["step_time_s"] for change in pair["changes"])
        assert not [line for line in pair["edits"] if "global_batch_size" in line]  # which stays


def test_a_key_is_not_left_out_where_the_rest_means_something_else(tmp_path: Path) -> None:
    """Without its option, torchtitan's selective mode would recompute every second layer."""
    text = JOB.replace('"full"', '"selective"\nselective_ac_option = "op"')
    (tmp_path / "job.toml").write_text(text)
    words = ("--like", str(tmp_path / "job.toml"), "--gpus", "8", "--gpu", "H100", "-q", "-o", str(tmp_path / "a.json"))
    assert cli.run(["advise", MODEL, *words]) == 0
    found = of(json.loads((tmp_path / "a.json").read_text()), "recompute save=mm/2,attention -> none")
    assert [line.partition("job.toml:")[2] for line in found["edits"]] == [
        '8: activation_checkpoint.mode: write "none"'
    ]


def test_what_the_framework_has_no_key_for_is_not_advised(answer: dict[str, Any]) -> None:
    said = {change for one in answer["found"] for change in one["changes"]}
    assert "without sequence parallelism" not in said
    assert "recompute full -> selective" not in said


def test_the_table_shows_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    assert (
        cli.run(["advise", MODEL, "--like", str(tmp_path / "job.toml"), "--gpus", "8", "--gpu", "H100", "--top", "2"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "changes were simulated" in shown
    assert "1: " in shown
    assert "3: " not in shown


def test_a_launch_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["advise", MODEL]) == 2
    assert "Missing option '--like'; give a launch file" in capsys.readouterr().err


ARGUMENTS = {"output_dir": "out", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "bf16": True}
ACCELERATE = "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 --mixed_precision bf16 train.py\n"
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 32 --bf16 --seq-length 512\n"
)
ZERO = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("name", "text", "change", "edits"),
    [
        ("job.json", json.dumps(ARGUMENTS, indent=1), "compiled", ["job.json: add torch_compile true"]),
        (
            *("job.json", json.dumps(ARGUMENTS, indent=1), "micro-batch size 1 -> 2"),
            ["job.json:3: per_device_train_batch_size: write 2", "job.json:4: gradient_accumulation_steps: write 2"],
        ),
        ("job.sh", ACCELERATE, "compiled", ["job.sh: add --dynamo_backend INDUCTOR"]),
        ("job.sh", MEGATRON, "micro-batch size 1 -> 2", ["job.sh:1: --micro-batch-size: write 2"]),
        ("job.sh", MEGATRON, "recompute none -> selective", ["job.sh: add --recompute-granularity selective"]),
        (
            *("job.json", json.dumps(ZERO, indent=1), "micro-batch size 1 -> 2"),
            ["job.json:2: train_micro_batch_size_per_gpu: write 2", "job.json:3: gradient_accumulation_steps: write 2"],
        ),
    ],
)
def test_the_lines_of_each_kind_of_file(
    name: str, text: str, change: str, edits: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument is added as one, a key as the file has them; of transformers only what it has keys for is advised."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    job = ("--like", name, "--gpus", "8", "--gpu", "H100", "--seq", "512", "-q", "-o", "advice.json")
    assert cli.run(["advise", MODEL, *job]) == 0
    found: dict[str, Any] = json.loads(Path("advice.json").read_text(encoding="utf-8"))
    assert of(found, change)["edits"] == edits
    assert all(": " in edit for one in found["found"] for edit in one["edits"])
