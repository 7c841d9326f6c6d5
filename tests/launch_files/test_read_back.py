"""Jobs that people have: scripts, the Trainer's arguments and the files that they name, read into the options of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from triosim import cli
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.launch_files.job import ModelSizes
from triosim.launch_files.reading import LaunchFile, read_launch_file

SCRIPT = """\
#!/bin/bash
GPUS_PER_NODE=8
NODES=${NODES:-4}
WORLD=$(($GPUS_PER_NODE*$NODES))
SAVE=$1 # where checkpoints go
DISTRIBUTED=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NODES  # machines
)
MODEL="--num-layers 32 --hidden-size 4096"
PARALLEL=(--tensor-model-parallel-size 4 --sequence-parallel)
if [[ "$MODE" == "long" ]] || [ $GPUS_PER_NODE -lt 8 ]; then
    PARALLEL+=(--context-parallel-size 2)
else
    PARALLEL+=(--pipeline-model-parallel-size 2)
fi
if [ ! -d "$SAVE" ]; then
    mkdir -p "$SAVE"
fi
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py $MODEL "${PARALLEL[@]}" \\
    --micro-batch-size 1 --global-batch-size $((WORLD * 4)) --seq-length 4096 --bf16 \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --save $SAVE --lr 3e-4
"""


def read(folder: Path, name: str, text: str, **files: Any) -> LaunchFile:
    (folder / name).write_text(text)
    for other, content in files.items():
        (folder / f"{other}.json").write_text(json.dumps(content))
    return read_launch_file(str(folder / name), ModelSizes.of("llama3-8b", RunConfig.of()))


def test_a_script_of_megatron(tmp_path: Path) -> None:
    """Its variables, arrays and branches are followed; what the shell alone knows and nothing depends on is passed over."""
    found = read(tmp_path, "run.sh", SCRIPT.replace('"$MODE"', '"short"'))
    assert found.options == {
        "parallel": "fsdp,tp=4,pp=2",
        "gpus": 32,
        "sequence_parallel": True,
        "schedule": "1f1b",
        "seq": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 128,
        "dtype": "bfloat16",
        "gradient_dtype": "float32",
        "stack": "megatron",
        "optimizer": "master-adamw",
        "options": {"stages": "equal"},
    }
    assert found.lines["pipeline-model-parallel-size"].endswith("run.sh:15: --pipeline-model-parallel-size")


def test_a_branch_that_only_a_shell_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"run.sh:12: 'if' cannot be followed; write the script as it runs"):
        read(tmp_path, "run.sh", SCRIPT)


def test_the_trainer_fills_in_what_deepspeed_leaves_open(tmp_path: Path) -> None:
    arguments = "--per_device_train_batch_size 4 --bf16 --deepspeed ds.json --learning_rate 1e-5"
    text = f"torchrun --nproc-per-node 8 train.py {arguments}\n"
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1e7}
    auto = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "bf16": {"enabled": "auto"}}
    found = read(tmp_path, "run.sh", text, ds={**auto, "zero_optimization": zero}).options
    assert (found["parallel"], found["gpus"]) == ("zero2", 8)
    assert (found["micro_batch_size"], found["micro_batches"]) == (4, 1)
    assert (found["dtype"], found["bucket_size"]) == ("bfloat16", 2e7)


def test_arguments_of_the_trainer_as_json(tmp_path: Path) -> None:
    given = {"output_dir": "out", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True}
    found = read(
        tmp_path, "args.json", json.dumps({**given, "gradient_checkpointing": True, "warmup_ratio": 0.1})
    ).options
    assert (found["parallel"], found["precision"], found["recompute"]) == ("ddp", "mixed", "checkpoint")
    assert (found["micro_batch_size"], found["micro_batches"]) == (2, 4)


def test_accelerate_launch_with_its_file_and_the_one_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    ds = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    found = read(tmp_path, "run.sh", "accelerate launch --config_file a.yaml train.py --epochs 3\n", ds=ds).options
    assert (found["parallel"], found["gpus"], found["micro_batch_size"]) == ("fsdp", 16, 2)


def test_what_nobody_fills_in_is_left_open(tmp_path: Path) -> None:
    """A file of DeepSpeed for the Trainer, by itself: its dtype is read as bf16, and said to be open, as its batch is."""
    zero = {"stage": 3, "overlap_comm": True}
    auto = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    found = read(tmp_path, "ds.json", json.dumps({**auto, "zero_optimization": zero}))
    assert found.options["dtype"] == "bfloat16"
    assert {"dtype", "micro_batch_size"} < {*found.unsaid}
    half = read(tmp_path, "ds.json", json.dumps({**auto, "zero_optimization": zero, "fp16": {"enabled": True}}))
    assert half.options["dtype"] == "float16"
    assert "dtype" not in half.unsaid


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", "full/2"),
        ("selective_ac_option = '3'\nearly_stop = true", "checkpoint/3"),
        ("selective_ac_option = '1'", "full"),
        ("selective_ac_option = 'op'", "save=mm/2,attention"),
    ],
)
def test_torchtitan_checkpoints_each_second_layer_by_default(text: str, policy: str, tmp_path: Path) -> None:
    """As torchtitan 0.2.2 does where a file has no section ``activation_checkpoint``."""
    found = read(tmp_path, "job.toml", f"[training]\nseq_len = 64\n[activation_checkpoint]\n{text}\n")
    assert found.options["recompute"] == policy


def test_torchtitan_with_arguments_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[activation_checkpoint]\nmode = "none"\n[training]\nseq_len = 1024\n')
    text = "torchrun --nproc-per-node 8 --nnodes 2 -m torchtitan.train --job.config_file job.toml"
    found = read(tmp_path, "run.sh", f"{text} --parallelism.tensor_parallel_degree 4 --training.seq_len 2048\n").options
    assert (found["parallel"], found["gpus"], found["seq"]) == ("fsdp,tp=4", 16, 2048)


def test_a_file_that_names_itself_is_refused(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: a.yaml\n"
    with pytest.raises(OptionError, match=r"a.yaml: names itself"):
        read(tmp_path, "a.yaml", text)


def test_the_best_point_of_a_search_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = "llama3-8b(layers=2, hidden=256, heads=4, kv_heads=4, feed_forward=512, vocab=512)"
    sizes = ("--gpus", "4", "--seq", "64", "--global-batch-size", "8", "--vary", "tp=1,2", "--top", "1", "--jobs", "1")
    launch = str(tmp_path / "launch")
    assert cli.run(["search", model, *sizes, "-q", "--export", launch, "--for", "megatron", "--for", "accelerate"]) == 0
    assert sorted(path.name for path in (tmp_path / "launch").iterdir()) == ["accelerate.yaml", "megatron.sh"]
    assert "not in the files of megatron: stack: simulated was compiled, this is megatron" in capsys.readouterr().err


def test_jobs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each by its file's name, with the speed-up over the first."""
    job = '[activation_checkpoint]\nmode = "none"\n[training]\nseq_len = 64\nlocal_batch_size = 2\n'
    (tmp_path / "a.toml").write_text(job)
    (tmp_path / "b.toml").write_text(f"{job}[parallelism]\ntensor_parallel_degree = 2\n")
    files = ("--like", str(tmp_path / "a.toml"), "--like", str(tmp_path / "b.toml"))
    model = "llama3-8b(layers=2, hidden=256, heads=4, kv_heads=4, feed_forward=512, vocab=512)"
    assert cli.run(["compare", model, *files, "--gpus", "4", "--format", "json", "-q"]) == 0
    runs = {one["label"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert {name: one["parallel"] for name, one in runs.items()} == {"a.toml": "fsdp", "b.toml": "fsdp,tp=2"}
    assert {one["global_batch_size"] for one in runs.values()} == {8, 4}
    assert runs["a.toml"]["speed_up"] == 1.0
    faster = runs["b.toml"]["throughput_samples_per_s"] / runs["a.toml"]["throughput_samples_per_s"]
    assert runs["b.toml"]["speed_up"] == pytest.approx(faster)
