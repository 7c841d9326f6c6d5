"""The launch files that are written are read by the frameworks' own parsers, with the values that were meant."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.environments import python_of
from tests.launch_files import mixes
from tests.launch_files.mixes import MIXES
from triosim.config import RunConfig
from triosim.launch_files.job import job_of
from triosim.launch_files.writing import Exported, write_launch_files

pytestmark = pytest.mark.frameworks
MODEL, GPUS = "llama3-8b", 16
#: The runs that are written, by what they are called here.
RUNS: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel": "fsdp=16", "recompute": "checkpoint", "options": {"shard_dtype": "fp32"}},
    "tp": {"parallel": "fsdp=4,tp=4", "sequence_parallel": True, "recompute": "full"},
    "pp": {"parallel": "zero1=4,pp=4", "schedule": "interleaved", "virtual_stages": 2, "micro_batches": 8},
    "cp": {"parallel": "fsdp=4,cp=4", "seq": 32768},
    "zero": {"parallel": "zero2=16", "micro_batches": 4},
    "ddp": {"parallel": "ddp=16", "precision": "mixed", "dtype": "bf16"},
}
TORCHTITAN = """
import json, sys
from torchtitan.config import ConfigManager
found = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
print(json.dumps({name: getattr(getattr(found, section), name) for section, name in (
    ("parallelism", "data_parallel_shard_degree"), ("parallelism", "data_parallel_replicate_degree"),
    ("parallelism", "tensor_parallel_degree"), ("parallelism", "pipeline_parallel_degree"),
    ("parallelism", "context_parallel_degree"), ("training", "seq_len"), ("training", "local_batch_size"))}))
"""
DEEPSPEED = """
import json, sys
from deepspeed.runtime import config
config.dist.get_rank = lambda *_: 0  # of processes that are not there
class Ranks:
    def get_data_parallel_world_size(self): return int(sys.argv[2])
    def get_model_parallel_world_size(self): return 1
    def get_data_parallel_rank(self): return 0
found = config.DeepSpeedConfig(sys.argv[1], mpu=Ranks())
print(json.dumps({"stage": int(found.zero_config.stage), "batch": found.train_batch_size,
    "micro": found.train_micro_batch_size_per_gpu, "bucket": found.zero_config.reduce_bucket_size}))
"""
ACCELERATE = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
parser = launch_command_parser()
args, *_ = _validate_launch_command(parser.parse_args(["--config_file", sys.argv[1], "train.py"]))
found = load_config_from_file(sys.argv[1])
print(json.dumps({"type": str(found.distributed_type.value), "gpus": found.num_processes, "precision": args.mixed_precision,
    "fsdp": args.use_fsdp, "tp": getattr(args, "parallelism_config_tp_size", 1)}))
"""
MEGATRON = """
import dataclasses, json, sys
import torch
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
given = json.loads(sys.argv[1])
known = {one.name for kind in (TransformerConfig, DistributedDataParallelConfig) for one in dataclasses.fields(kind)}
kept = {name: value for name, value in given.items() if name in {one.name for one in dataclasses.fields(ModelParallelConfig)}}
found = ModelParallelConfig(**kept, pipeline_dtype=torch.bfloat16)  # which the parser fills in
print(json.dumps({"unknown": sorted(given.keys() - known), "tp": found.tensor_model_parallel_size,
    "pp": found.pipeline_model_parallel_size, "cp": found.context_parallel_size}))
"""
#: Arguments of Megatron-LM that its parser turns into others, so that no dataclass of Megatron-Core has them.
#: What each framework checks of sizes and batches, for a file and as many ranks.
TORCHTITAN_SIZES = """
import sys
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
found, world = ConfigManager().parse_args(["--job.config_file", sys.argv[1]]), int(sys.argv[2])
of, training = found.parallelism, found.training
sizes = ParallelDims(dp_replicate=of.data_parallel_replicate_degree, dp_shard=of.data_parallel_shard_degree,
    cp=of.context_parallel_degree, tp=of.tensor_parallel_degree, pp=of.pipeline_parallel_degree,
    ep=of.expert_parallel_degree, etp=of.expert_tensor_parallel_degree, world_size=world)
assert sizes.dp_shard * sizes.cp * sizes.tp % (sizes.ep * sizes.etp) == 0
assert training.global_batch_size % (training.local_batch_size * sizes.dp_replicate * sizes.dp_shard) == 0
assert sizes.pp == 1 or training.local_batch_size % of.pipeline_parallel_microbatch_size == 0
print(training.global_batch_size)
"""
ACCELERATE_SIZES = """
import os, sys
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import MegatronLMPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
parser = launch_command_parser()
args, *_ = _validate_launch_command(parser.parse_args(["--config_file", sys.argv[1], "train.py"]))
args.num_machines = 1  # several need an address, which the file leaves to you
os.environ.update(prepare_multi_gpu_env(args))
if args.use_megatron_lm:
    from unittest import mock
    with mock.patch("accelerate.utils.dataclasses.is_megatron_lm_available", lambda: True, create=True):
        plugin = MegatronLMPlugin()
    size = plugin.tp_degree * plugin.pp_degree * plugin.context_parallel_size
    assert args.num_processes % size == 0 and plugin.expert_model_parallel_size == 1
    print(args.num_processes // size * plugin.num_micro_batches)
else:
    if args.use_parallelism_config:
        assert ParallelismConfig().total_size == args.num_processes
    print(0)
"""
OF_PARSER = {
    *(
        "micro_batch_size",
        "global_batch_size",
        "seq_length",
        "max_position_embeddings",
        "group_query_attention",
        "swiglu",
    ),
    *("disable_bias_linear", "position_embedding_type", "untie_embeddings_and_output_weights", "optimizer"),
    *("num_virtual_stages_per_pipeline_rank", "ddp_bucket_size", "fp8_format", "grad_reduce_in_bf16"),
}


def written(name: str, framework: str, folder: Path) -> RunConfig:
    config = RunConfig.of(**{"micro_batch_size": 2, "seq": 4096, "gpus": GPUS, **RUNS[name]})
    write_launch_files(str(folder), [framework], Exported(job_of(MODEL, config, GPUS), 8, config))
    return config


def parsed(framework: str, program: str, *words: str) -> Any:
    """Return what a framework's parser says in an environment of the framework."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    command = [str(python_of(framework)), "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", RUNS)
def test_torchtitan_reads_its_job(name: str, tmp_path: Path) -> None:
    written(name, "torchtitan", tmp_path)
    found = parsed("torchtitan", TORCHTITAN, str(tmp_path / "torchtitan.toml"))
    sizes = [found[f"{kind}_parallel_degree"] for kind in ("tensor", "pipeline", "context")]
    shard, replicate = found["data_parallel_shard_degree"], found["data_parallel_replicate_degree"]
    assert shard * replicate * sizes[0] * sizes[1] * sizes[2] == GPUS
    assert found["seq_len"] == RUNS[name].get("seq", 4096)
    assert found["local_batch_size"] == 2 * (8 if name == "pp" else 1)


@pytest.mark.parametrize("name", ["fsdp", "zero", "ddp", "tp"])
def test_deepspeed_reads_its_configuration(name: str, tmp_path: Path) -> None:
    written(name, "deepspeed", tmp_path)
    replicas = 4 if name == "tp" else GPUS
    found = parsed("deepspeed", DEEPSPEED, str(tmp_path / "deepspeed.json"), str(replicas))
    assert found["stage"] == {"fsdp": 3, "tp": 3, "zero": 2, "ddp": 0}[name]
    assert found["batch"] == 2 * replicas * (4 if name == "zero" else 1)
    if name == "zero":
        assert found["bucket"] * 2 == 25 * 2**20


@pytest.mark.parametrize("name", RUNS)
def test_accelerate_reads_its_configuration(name: str, tmp_path: Path) -> None:
    written(name, "accelerate", tmp_path)
    found = parsed("transformers", ACCELERATE, str(tmp_path / "accelerate.yaml"))
    kind = {"pp": "MEGATRON_LM", "zero": "DEEPSPEED", "ddp": "MULTI_GPU"}.get(name, "FSDP")
    assert (found["type"], found["gpus"]) == (kind, GPUS)
    if name in ("fsdp", "zero", "ddp"):
        assert found["precision"] == "bf16"


@pytest.mark.parametrize("name", RUNS)
def test_megatron_core_knows_the_arguments(name: str, tmp_path: Path) -> None:
    written(name, "megatron", tmp_path)
    text = (tmp_path / "megatron.sh").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line.startswith("    --")]
    given = {
        line[0][2:].replace("-", "_"): json.loads(line[1]) if line[1:] and line[1][0].isdigit() else True
        for line in lines
    }
    found = parsed("megatron", MEGATRON, json.dumps(given))
    assert set(found["unknown"]) <= OF_PARSER
    sizes = dict(part.split("=") for part in RUNS[name]["parallel"].split(","))
    assert {axis: found[axis] for axis in ("tp", "pp", "cp")} == {a: int(sizes.get(a, 1)) for a in ("tp", "pp", "cp")}


@pytest.mark.parametrize("mix", MIXES)
def test_torchtitan_takes_sizes_and_batches(mix: str, tmp_path: Path) -> None:
    mixes.written("torchtitan", mix, tmp_path)
    assert parsed("torchtitan", TORCHTITAN_SIZES, str(tmp_path / "torchtitan.toml"), str(mixes.GPUS)) == 32


@pytest.mark.parametrize("mix", MIXES)
def test_deepspeed_takes_sizes_and_batches(mix: str, tmp_path: Path) -> None:
    """As many ranks are data-parallel as its pipeline, or a script's mpu, says."""
    mixes.written("deepspeed", mix, tmp_path)
    job = mixes.job_of_mix(mix)
    replicas = mixes.GPUS // job.size("tp", "pp")
    found = parsed("deepspeed", DEEPSPEED, str(tmp_path / "deepspeed.json"), str(replicas))
    assert found["batch"] == 32
    assert job.size("pp") == 1 or found["stage"] <= 1


@pytest.mark.parametrize("mix", MIXES)
def test_accelerate_takes_sizes(mix: str, tmp_path: Path) -> None:
    mixes.written("accelerate", mix, tmp_path)
    job = mixes.job_of_mix(mix)
    found = parsed("transformers", ACCELERATE_SIZES, str(tmp_path / "accelerate.yaml"))
    assert int(found) * job.micro_batch_size == (32 if job.size("pp") > 1 else 0)
