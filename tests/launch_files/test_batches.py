"""The sizes and batches of written files agree by each framework's own arithmetic, whatever the job is divided by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch_files.mixes import GPUS, MIXES, job_of_mix, written
from triosim.input_files import toml_lines
from triosim.launch_files.megatron import MEGATRON

SAMPLES = 32


def values_of(framework: str, mix: str, folder: Path) -> dict[str, Any]:
    """Return the keys' values in the file of a mix, by dotted names."""
    written(framework, mix, folder)
    if framework == "torchtitan":
        path = folder / "torchtitan.toml"
        return toml_lines.parse(path.read_text(encoding="utf-8"), str(path))[0]
    if framework == "megatron":
        lines = (folder / "megatron.sh").read_text(encoding="utf-8").splitlines()
        words = dict(line.split()[:2] for line in lines if line.startswith("    --") and " " in line.strip())
        return {
            key.name: key.parse(words[f"--{key.name}"], "")
            for key in MEGATRON.keys.values()
            if f"--{key.name}" in words
        }
    text = (folder / {"deepspeed": "deepspeed.json", "accelerate": "accelerate.yaml"}[framework]).read_text("utf-8")
    return dict(toml_lines.dotted(json.loads(text) if framework == "deepspeed" else yaml.safe_load(text)))


@pytest.mark.parametrize("mix", MIXES)
def test_torchtitan(mix: str, tmp_path: Path) -> None:
    """``ParallelDims`` and ``Trainer`` of torchtitan 0.2.2."""
    found = values_of("torchtitan", mix, tmp_path)
    size = {name: found[f"parallelism.{name}_parallel_degree"] for name in ("tensor", "pipeline", "context", "expert")}
    shard = found["parallelism.data_parallel_shard_degree"]
    replicas = shard * found["parallelism.data_parallel_replicate_degree"]
    assert replicas * size["tensor"] * size["pipeline"] * size["context"] == GPUS
    assert shard * size["context"] * size["tensor"] % size["expert"] == 0
    assert found["training.global_batch_size"] == SAMPLES
    assert SAMPLES % (found["training.local_batch_size"] * replicas) == 0


@pytest.mark.parametrize("mix", MIXES)
def test_megatron(mix: str, tmp_path: Path) -> None:
    """``validate_args`` of Megatron-LM."""
    found = values_of("megatron", mix, tmp_path)
    names = ("tensor-model", "pipeline-model", "context")
    tensor, pipeline, context = (found[f"{name}-parallel-size"] for name in names)
    replicas = GPUS // (tensor * pipeline * context)
    assert found["global-batch-size"] == SAMPLES
    assert SAMPLES % (found["micro-batch-size"] * replicas) == 0
    assert GPUS % (found["expert-model-parallel-size"] * pipeline) == 0


@pytest.mark.parametrize("mix", MIXES)
def test_deepspeed(mix: str, tmp_path: Path) -> None:
    """``DeepSpeedConfig._batch_assertion``, and that of ``PipelineEngine`` on ZeRO's stage."""
    found = values_of("deepspeed", mix, tmp_path)
    stages, tensor = (found.get(name, 1) for name in ("pipeline.stages", "tensor_parallel.autotp_size"))
    replicas = GPUS // (stages * tensor)
    per_rank = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"]
    assert per_rank * replicas == SAMPLES
    assert found.get("train_batch_size", SAMPLES) == SAMPLES
    assert ("train_batch_size" in found) is (tensor == 1)
    assert stages == 1 or found["zero_optimization.stage"] <= 1


@pytest.mark.parametrize("mix", MIXES)
def test_accelerate(mix: str, tmp_path: Path) -> None:
    """``ParallelismConfig`` of accelerate 1.15, and Megatron-LM's sizes."""
    found = values_of("accelerate", mix, tmp_path)
    assert found["num_processes"] == GPUS
    sizes = {
        name: found.get(f"parallelism_config.parallelism_config_{name}_size", 1)
        for name in ("dp_replicate", "dp_shard", "tp", "cp")
    }
    kind = found["distributed_type"]
    if kind == "MEGATRON_LM":
        degrees = [found[f"megatron_lm_config.megatron_lm_{name}"] for name in ("tp_degree", "pp_degree")]
        samples = found["megatron_lm_config.megatron_lm_num_micro_batches"] * job_of_mix(mix).micro_batch_size
        context = found["megatron_lm_config.megatron_lm_context_parallel_size"]
        assert samples * GPUS // (degrees[0] * degrees[1] * context) == SAMPLES
    elif any(key.startswith("parallelism_config") for key in found):
        assert sizes["dp_replicate"] * sizes["dp_shard"] * sizes["tp"] * sizes["cp"] == GPUS
        assert not (sizes["tp"] * sizes["cp"] > 1 and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1)
        assert kind == "FSDP" or sizes["dp_shard"] == 1
