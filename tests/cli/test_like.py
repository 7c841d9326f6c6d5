"""``--like`` of memory and search, what it says of files that leave much to the script, and models that no framework trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triosim.cli import run

JOB = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[training]
seq_len = 1024
local_batch_size = 2
[activation_checkpoint]
mode = "none"
"""
ACCELERATE = """
distributed_type: FSDP
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
"""
TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces"


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.toml").write_text(JOB)
    return str(tmp_path / "job.toml")


def test_the_memory_of_a_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "llama3-8b", "--like", job, "--gpus", "8", "--format", "json"]) == 0
    like = json.loads(capsys.readouterr().out)
    options = ["-p", "fsdp=4,tp=2", "--seq", "1024", "--micro-batch-size", "2", "--micro-batches", "1"]
    options += ["--stack", "eager", "--optimizer", "fused-adamw", "--sequence-parallel", "--gradient-dtype", "fp32"]
    given = ["memory", "llama3-8b", *options, "--option", "shard_dtype=float32", "--option", "embedding_gradient=whole"]
    assert run([*given, "--format", "json"]) == 0
    assert like["ranks"] == json.loads(capsys.readouterr().out)["ranks"]


def test_a_search_keeps_the_batch_of_the_job(job: str, tmp_path: Path) -> None:
    """Four replicas of two samples are eight, whatever the point."""
    found = tmp_path / "found.json"
    options = ["--gpus", "8", "-t", "dgx-h100", "--vary", "tp=2,4", "--jobs", "1", "--quiet", "-o", str(found)]
    assert run(["search", "llama3-8b", "--like", job, *options]) == 0
    answer = json.loads(found.read_text())
    assert answer["axes"] == {"tp": [2, 4]}
    assert all("--global-batch-size 8" in one["command"] for one in answer["top"])
    assert all("--seq 1024" in one["command"] and "--parallel fsdp=" in one["command"] for one in answer["top"])


def test_a_search_for_a_job_on_several_clusters_is_refused(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "llama3-8b", "--like", job, "--vary", "gpus=8,16"]) == 2
    assert "--gpus: a launch file is of one cluster" in capsys.readouterr().err


def test_what_a_file_leaves_to_the_script_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    small = "llama3-8b(layers=2)"
    assert run(["simulate", small, "--like", str(path), "-t", "dgx-h100", "--seq", "512", "-q"]) == 0
    said = capsys.readouterr().err
    assert (
        "does not say --micro-batch-size (1), --micro-batches (1), --optimizer (as the stack has it), --recompute"
        in said
    )
    assert "--seq" not in said
    everything = ["--seq", "512", "--global-batch-size", "8", "--optimizer", "adamw", "--recompute", "none"]
    assert run(["simulate", small, "--like", str(path), "-t", "dgx-h100", "-q", *everything]) == 0
    assert "does not say" not in capsys.readouterr().err


@pytest.mark.parametrize("model", ["resnet50", "vit-b-16", str(TRACES / "resnet50_a100_fake.json.gz")])
@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
def test_images_are_trained_by_no_framework_of_language_models(
    model: str, framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["-p", "ddp=2", "-t", "dgx-a100", "--for", framework, "--export", str(tmp_path / "out"), "-q"]
    assert run(["simulate", model, *options]) == 2
    said = capsys.readouterr().err
    assert f"--for {framework}: " in said
    assert "does not train" in said
    assert "give --for deepspeed or accelerate" in said
    assert not (tmp_path / "out").exists()


def test_a_search_refuses_such_a_model_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpus", "8", "-t", "dgx-h100", "--for", "torchtitan", "--export", str(tmp_path)]
    assert run(["search", "bert-large", *options]) == 2
    said = capsys.readouterr().err
    assert "torchtitan 0.2.2 does not train bert-large" in said
    assert "valid" not in said


def test_an_export_says_how_long_its_own_step_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSpeed has an optimizer with fp32 copies: the step of its files is that of this option."""
    options = ["-p", "zero1=4", "-t", "dgx-h100", "--seq", "512", "--stack", "eager", "-q"]
    assert run(["simulate", "gpt2", *options, "--for", "deepspeed", "--export", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "in all, the step of these files takes " in said
    assert "in all, the step of these files takes " in (tmp_path / "deepspeed.txt").read_text()
