"""Launch commands: accelerate with its file, the Trainer under accelerate, DeepSpeed's hosts, torchtitan's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.launch_files.job import ModelSizes
from triosim.launch_files.reading import read_launch_file

MODEL = ModelSizes.of("llama3-8b", RunConfig.of())
FSDP = (
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_reshard_after_forward: true\n"
)
ZERO = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 16\ndeepspeed_config:\n  zero_stage: 3\n"
ZERO += "  gradient_accumulation_steps: 4\n"
STAGE_2 = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
STAGE_2 += '"zero_optimization": {"stage": 2, "overlap_comm": true}}'
TOML = "[training]\nlocal_batch_size = 2\n[compile]\nenable = true\n"


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads a command beside the files that it may name."""
    files = {"fsdp.yaml": FSDP, "zero.yaml": ZERO, "ds.json": STAGE_2, "job.toml": TOML}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hosts").write_text("# two machines\nnode-1 slots=8\nnode-2 slots=4\n")

    def options(command: str) -> dict[str, Any]:
        (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{command}\n")
        return dict(read_launch_file(str(tmp_path / "job.sh"), MODEL).options)

    return options


def test_arguments_beside_the_file_of_accelerate_come_first(read: Any) -> None:
    assert read("accelerate launch --config_file fsdp.yaml train.py --epochs 3")["gpus"] == 8
    found = read(
        "accelerate launch --config_file fsdp.yaml --num_processes 16 --mixed_precision fp16 "
        "--fsdp_reshard_after_forward false train.py --num-layers 4"
    )
    assert (found["gpus"], found["dtype"], found["options"]["reshard"]) == (16, "float16", "no")
    assert read("accelerate launch --config_file fsdp.yaml --multi_gpu train.py")["parallel"] == "ddp"


def test_the_trainer_trains_as_the_file_of_accelerate_says(read: Any) -> None:
    trainer = "train.py --output_dir x --per_device_train_batch_size 2 --gradient_checkpointing True"
    found = read(f"accelerate launch --config_file fsdp.yaml {trainer}")
    assert (found["parallel"], found["dtype"], found["micro_batch_size"]) == ("fsdp", "bfloat16", 2)
    assert (found["recompute"], found["options"]) == ("checkpoint", {"shard_dtype": "float32"})
    found = read(f"accelerate launch --config_file zero.yaml {trainer}")
    assert (found["parallel"], found["micro_batches"], found["optimizer"]) == ("fsdp", 4, "master-adamw")
    assert "options" not in found
    found = read(f"accelerate launch --config_file fsdp.yaml {trainer} --fp16 --gradient_accumulation_steps 2")
    assert (found["dtype"], found["micro_batches"]) == ("float16", 2)


def test_deepspeed_keeps_fp32_parameters_whatever_optimizer_the_trainer_names(read: Any) -> None:
    found = read(
        "torchrun --nproc-per-node 8 train.py --output_dir x --bf16 True --deepspeed ds.json --optim adamw_torch"
    )
    assert (found["parallel"], found["gpus"], found["optimizer"]) == ("zero2", 8, "master-adamw")


def test_tf32_is_of_products_in_fp32_alone(read: Any) -> None:
    trainer = "torchrun --nproc-per-node 8 train.py --output_dir x --tf32 True"
    assert read(trainer)["products"] == "tf32"
    assert "products" not in read(f"{trainer} --bf16 True")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("--hostfile=hosts", 12),
        ("--hostfile hosts --num_nodes 1", 8),
        ("--hostfile hosts --num_gpus 2", 4),
        ("--hostfile hosts --exclude node-2:0", 11),
        ("--hostfile hosts --exclude node-1", 4),
        ("--hostfile hosts --include node-1@node-2:0,2", 10),
        ("--include localhost:0,1,2", 3),
        ("--hostfile elsewhere --num_nodes 2 --num_gpus 8", 16),
        ("--hostfile elsewhere", None),
    ],
)
def test_deepspeed_takes_the_gpus_of_its_hosts(words: str, gpus: int | None, read: Any) -> None:
    assert read(f"deepspeed {words} train.py --deepspeed --deepspeed_config ds.json").get("gpus") == gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node-1 slots=8\nnode-2 8\n", "hosts:2: 'node-2 8' is no host with its GPUs; write node-1 slots=8"),
        ("a slots=8\na slots=8\n", "hosts:2: 'a' is there twice; leave one of the two out"),
        ("\n", "hosts: has no host; write node-1 slots=8"),
    ],
)
def test_what_is_wrong_in_a_hostfile(text: str, said: str, read: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(OptionError) as error:
        read("deepspeed --hostfile hosts train.py --deepspeed_config ds.json")
    assert str(error.value) == f"{tmp_path}/{said}"


def test_arguments_of_torchtitan_replace_keys_of_its_file(read: Any) -> None:
    titan = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file job.toml --training.steps 5"
    assert read(titan)["stack"] == "compiled"
    found = read(
        f'{titan} --compile.no-enable --training.local_batch_size=4 --model.converters="quantize.linear.float8"'
    )
    assert (found["stack"], found["micro_batch_size"], found["products"]) == ("eager", 4, "fp8")
