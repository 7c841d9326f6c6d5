"""What is written for a framework and read back is the same job, for every option of a search's default space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.search_spaces import LLAMA, MIXTURE
from triosim.config import RunConfig
from triosim.configuration_search.spaces.declaration import Declaration, default_axes
from triosim.configuration_search.spaces.layout import DATA_PARALLEL, SIZES
from triosim.configuration_search.spaces.subject import subject_of
from triosim.launch_files.job import Job, ModelSizes, job_of
from triosim.launch_files.reading import read_launch_file
from triosim.launch_files.writing import WRITERS, Exported, write_launch_files
from triosim.simulation import simulate_config

#: What a framework has no key for: an option and its values.
CANNOT: dict[str, dict[str, set[Any]]] = {
    "torchtitan": {"recompute": {"selective"}, DATA_PARALLEL: {"zero1"}, "sequence_parallel": {False}},
    "megatron": {},
    "deepspeed": {
        **{"cp": {2, 4, 8}, "ep": {2, 4, 8}, "virtual_stages": {2}},
        **{DATA_PARALLEL: {"ddp"}, "sequence_parallel": {True}},
    },
    "accelerate": {"ep": {2, 4, 8}, "virtual_stages": {2}, "sequence_parallel": {True}},
}
MAIN = {"torchtitan": "torchtitan.toml", "megatron": "megatron.sh"}
MAIN |= {"deepspeed": "deepspeed.json", "accelerate": "accelerate.yaml"}
GPUS = 8


def always(framework: str, sizes: dict[str, int], data: str, *, by_sequence: bool) -> dict[str, Any]:
    """Return the options that a framework's jobs of such sizes have, whatever their files say."""
    if framework == "torchtitan":
        tensor = {"sequence_parallel": True, "options": {"embedding_gradient": "whole"}} if sizes["tp"] > 1 else {}
        sharded = {"gradient_dtype": "fp32"} if (data != "ddp" and sizes[data] > 1) or sizes["cp"] > 1 else {}
        return {"stack": "compiled", "bucket_size": "100 MiB" if data == "ddp" else None, **tensor, **sharded}
    if framework == "deepspeed":
        first = {"first_bucket_size": "25 MiB"} if data in ("ddp", "zero1") else {}
        return {"stack": "eager", "optimizer": "master-adamw", **first}
    if framework == "accelerate":
        return of_accelerate(sizes, data)
    assert framework == "megatron"
    own = {"stages": "equal"} if sizes["pp"] > 1 else {}
    own |= {"sends": "parts"} if sizes["pp"] > 1 and sizes["tp"] > 1 and not by_sequence else {}
    first = {"first_bucket_size": "25 MiB"} if data in ("ddp", "zero1") else {}
    return {"stack": "megatron", "gradient_dtype": "fp32", **first, **({"options": own} if own else {})}


def of_accelerate(sizes: dict[str, int], data: str) -> dict[str, Any]:
    """Return the options of accelerate's jobs: those of Megatron-LM, DeepSpeed, FSDP or DDP, whichever it starts."""
    if sizes["pp"] > 1:
        return {"stack": "megatron", "gradient_dtype": "fp32"}
    if data == "zero1":
        return {"stack": "eager", "optimizer": "master-adamw"}
    if sizes[data] * sizes["cp"] > 1 and data == "fsdp":
        gathered = {"cp": "ring"} if sizes["cp"] > 1 else {}
        return {"stack": "eager", "options": {"shard_dtype": "fp32", **gathered}}
    return {"stack": "eager", "precision": "mixed" if data == "ddp" else "plain"}


def points() -> list[tuple[str, Any, str]]:
    """Return every option of the default spaces of a dense model and of one with experts, and of a long one, with a value."""
    found: dict[tuple[str, Any], str] = {}
    for model, seq in ((LLAMA, 128), (MIXTURE, 128), (LLAMA, 16384)):
        config = RunConfig.of(topology="dgx-h100", global_batch_size=16, seq=seq)
        for name, axis in default_axes(subject_of(model, config), config, Declaration()).items():
            for value in axis.values:
                found.setdefault((name, value), model)
    return [(name, value, model) for (name, value), model in found.items()]


def run_of(framework: str, name: str, value: Any) -> RunConfig:
    """Return a run on eight GPUs with an option of a space as it is said, and otherwise as the framework runs it."""
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | ({name: value} if name in SIZES else {})
    given: dict[str, Any] = {"seq": 128, "topology": "dgx-h100"}
    if name == "virtual_stages":
        sizes["pp"] = 2
        given |= {"schedule": "interleaved", "virtual_stages": value} if value > 1 else {"schedule": "1f1b"}
    elif name == "sequence_parallel":
        sizes["tp"] = 2
    plain = framework in ("accelerate", "deepspeed") and sizes["pp"] > 1
    data = value if name == DATA_PARALLEL else "dp" if plain else "fsdp"
    sizes = {data: GPUS // (sizes["tp"] * sizes["pp"] * sizes["cp"]), **sizes}
    given |= {"micro_batch_size": value if name == "micro_batch_size" else 1}
    given |= {"micro_batches": 4 if sizes["pp"] > 1 else 1}
    by_sequence = name == "sequence_parallel" and bool(value)
    given |= always(framework, sizes, data, by_sequence=by_sequence)
    if name in ("sequence_parallel", "recompute"):
        given[name] = value
    if sizes["cp"] > 1:
        given["seq"] = 1024
    parallel = ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1 or axis == data)
    return RunConfig.of(parallel=parallel, gpus=GPUS, **given)


def exported(framework: str, job: Job, config: RunConfig, folder: Path) -> list[str]:
    """Write a job; return what is said of it, but that these small models are none that torchtitan has."""
    said = write_launch_files(str(folder), [framework], Exported(job, GPUS, config))
    return [line for line in said if not line.startswith("torchtitan: the model: ")]


def read_back(framework: str, model: str, folder: Path, config: RunConfig) -> RunConfig:
    found = read_launch_file(str(folder / MAIN[framework]), ModelSizes.of(model, config))
    assert not found.ignored
    said = {name: getattr(config, name) for name in WRITERS[framework][0].of_script if config.is_given(name)}
    return RunConfig.of(**{**said, **found.options, "gpus": GPUS, "topology": config.topology})


def has(job: Job, name: str, value: Any) -> bool:
    """Whether a job has an option of a space as it is said: one that ``run_of`` does not set fails here."""
    if name == DATA_PARALLEL:
        return value in job.settings
    return bool((job.size(name) if name in SIZES else job.get(name) or type(value)(name == "virtual_stages")) == value)


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize(("name", "value", "model"), points(), ids=lambda one: str(one).partition("(")[0])
def test_a_job_comes_back(framework: str, name: str, value: Any, model: str, tmp_path: Path) -> None:
    """Or what does not is said, by the option's name."""
    config = run_of(framework, name, value)
    job = job_of(model, config, GPUS)
    assert has(job, name, value)
    different = exported(framework, job, config, tmp_path)
    if value in CANNOT[framework].get(name, ()):
        words = (f" {value}:", f" {name}:", f"{name}=", "pp:", "cp:")
        mine = [one for one in words if any(one in line for line in different)]
        assert mine, different
    else:
        assert different == []
        assert job_of(model, read_back(framework, model, tmp_path, config), GPUS) == job


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize(
    ("name", "value"), [("tp", 4), ("pp", 4), ("virtual_stages", 2), ("cp", 2), ("recompute", "full")]
)
def test_its_step_takes_as_long(framework: str, name: str, value: Any, tmp_path: Path) -> None:
    if value in CANNOT[framework].get(name, ()):
        pytest.skip("the framework has no key for it")
    config = run_of(framework, name, value)
    exported(framework, job_of(LLAMA, config, GPUS), config, tmp_path)
    back = read_back(framework, LLAMA, tmp_path, config)
    assert simulate_config(LLAMA, back).step_time_s == simulate_config(LLAMA, config).step_time_s


@pytest.mark.parametrize(
    ("framework", "parallel", "offload"),
    [
        ("torchtitan", "fsdp=8", "optimizer=host,parameters=host"),
        ("megatron", "zero1=8", "optimizer=host"),
        ("deepspeed", "zero2=8", "optimizer=host"),
        ("deepspeed", "fsdp=8", "parameters=nvme,optimizer=host"),
        ("accelerate", "fsdp=8", "optimizer=host,parameters=host"),
        ("accelerate", "zero1=8", "optimizer=host"),
    ],
)
def test_offload_comes_back(framework: str, parallel: str, offload: str, tmp_path: Path) -> None:
    config = RunConfig.of(parallel=parallel, gpus=GPUS, seq=128, offload=offload)
    job = job_of(LLAMA, config, GPUS)
    assert not [line for line in exported(framework, job, config, tmp_path) if "offload" in line]
    back = job_of(LLAMA, read_back(framework, LLAMA, tmp_path, config), GPUS)
    assert back.settings["offload"] == job.settings["offload"]


@pytest.mark.parametrize("framework", WRITERS)
def test_a_trace_has_no_settings_of_a_described_model(framework: str, tmp_path: Path) -> None:
    trace = str(Path(__file__).parents[2] / "examples" / "traces" / "vgg13_a100_fake.json.gz")
    config = RunConfig.of(parallel="fsdp=4", gpus=4)
    job = job_of(trace, config, 4, 128)
    assert job.global_batch_size == 512
    assert not [line for line in exported(framework, job, config, tmp_path) if " seq:" in line or " dtype:" in line]
    found = read_launch_file(str(tmp_path / MAIN[framework]), ModelSizes.of(trace, config))
    assert not found.options.keys() & {"seq", "dtype", "precision", "stack", "optimizer"}
