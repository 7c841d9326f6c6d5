"""Advice about a job: its changes are simulated as they are said, and the lines of its file make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim import cli
from triosim.config import RunConfig
from triosim.configuration_search.advice.changes import changes
from triosim.launch_files.job import Job, ModelSizes
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


OFFLOADED = """\
torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 --bf16 --seq-length 512 \\
  --tensor-model-parallel-size 2 --recompute-granularity full --recompute-num-layers 1 --recompute-method uniform \\
  --optimizer-cpu-offload --use-distributed-optimizer --attention-backend unfused
"""


def advised(tmp_path: Path, name: str, text: str, model: str = MODEL) -> dict[tuple[str, ...], dict[str, Any]]:
    (tmp_path / name).write_text(text)
    words = ("--like", str(tmp_path / name), "--gpus", "8", "--gpu", "H100", "-q", "-o", str(tmp_path / "a.json"))
    assert cli.run(["advise", model, *words]) == 0
    return {tuple(one["changes"]): one for one in json.loads((tmp_path / "a.json").read_text())["found"]}


def test_what_memory_allows_is_neither_offloaded_nor_computed_again(tmp_path: Path) -> None:
    found = advised(tmp_path, "job.sh", OFFLOADED)
    lines = {
        ("offload optimizer=host -> none",): "job.sh:3: --optimizer-cpu-offload: leave it out",
        ("recompute full -> none",): "job.sh:2: --recompute-granularity: leave it out",
        ("attention math -> its default",): "job.sh:3: --attention-backend: write auto",
    }
    for change, line in lines.items():
        assert [one.partition("job.sh:")[2] for one in found[change]["edits"]] == [line.partition("job.sh:")[2]]
        assert found[change]["gain"] > 0
    back = advised(tmp_path, "job.sh", OFFLOADED.replace("--optimizer-cpu-offload ", ""))
    assert back["offload none -> optimizer=host",]["gain"] < 0


def test_a_key_that_means_nothing_for_one_replica_stays(tmp_path: Path) -> None:
    """With tp on all GPUs no optimizer is divided, whether or not the file still asks for that."""
    found = advised(tmp_path, "job.sh", OFFLOADED.replace("parallel-size 2", "parallel-size 4"))["tp 4 -> 8",]
    assert [one.partition("job.sh:")[2] for one in found["edits"]] == ["2: --tensor-model-parallel-size: write 8"]


def test_a_new_axis_is_as_the_framework_has_it(tmp_path: Path) -> None:
    """torchtitan divides tokens wherever it divides tensors; Megatron-LM asks for that."""
    alone = JOB.replace("tensor_parallel_degree = 4", "tensor_parallel_degree = 1")
    found = advised(tmp_path, "job.toml", alone)["tp 1 -> 2",]
    assert [one.partition("job.toml:")[2] for one in found["edits"]] == [
        "2: parallelism.tensor_parallel_degree: write 2"
    ]
    assert found["step_time_s"] == pytest.approx(
        simulated(alone.replace("degree = 1", "degree = 2"), tmp_path), rel=1e-9
    )


def test_each_option_of_a_job_is_tried_in_both_directions() -> None:
    model = ModelSizes("m", True, {"experts": 8, "layers": 8})
    options = {"micro_batch_size": 2, "micro_batches": 4, "stack": "eager", "dtype": "bfloat16"}

    def said(**settings: Any) -> set[str]:
        return {one.shown for one in changes(Job(64, 16, {**options, **settings}, model), 8)}

    small, large = said(fsdp=64, seq=32768), said(fsdp=8, ddp=2, ep=2, tp=2, pp=2, cp=2, seq=32768)
    assert {"tp 1 -> 2", "pp 1 -> 2", "cp 1 -> 2", "ep 1 -> 2", "compiled"} <= small
    assert {"tp 2 -> 1", "pp 2 -> 1", "cp 2 -> 1", "ep 2 -> 1"} <= large
    assert "parameters are shared in each node: fsdp=8" in small
    assert "parameters are shared over all: fsdp=16" in large
    there = said(fsdp=64, offload="optimizer=host,parameters=host", stack="compiled", **{"options.prefetch": 0})
    assert {"offload optimizer=host,parameters=host -> none", "not compiled", "prefetch 0 -> its default"} <= there
    assert "offload optimizer=host,parameters=host -> optimizer=host" in there
    assert "offload none -> optimizer=host" in small
    pairs = [
        ("overlap", {"sequence_parallel": True}, {"options.overlap": "ring"}, "overlapped tensor parallelism"),
        ("sequence", {}, {"sequence_parallel": True}, "sequence parallelism"),
        ("experts", {"ep": 2}, {"ep": 2, "ep_overlap": True}, "overlapped experts"),
    ]
    for _, off, on, shown in pairs:
        assert f"with {shown}" in said(fsdp=32, tp=2, **off)
        assert f"without {shown}" in said(fsdp=32, tp=2, **on)
    assert "schedule gpipe -> 1f1b" in said(fsdp=32, pp=2, schedule="gpipe")
    assert {"virtual stages -> 1", "virtual stages -> 4"} <= said(
        fsdp=32, pp=2, schedule="interleaved", virtual_stages=2
    )
    assert {"cp by an all-gather"} <= large <= large | said(cp=2, **{"options.cp": "all-gather"})
    assert {"buckets of 26.2 MB -> 105 MB", "buckets of 26.2 MB -> 6.55 MB"} <= said(ddp=64)
