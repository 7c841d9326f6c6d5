"""DeepSpeed's configuration, a JSON file: batch, ZeRO stage, buckets, dtypes and automatic tensor parallelism.

The meaning of its keys is that of ``deepspeed/runtime/config.py`` and ``zero/config.py``. Without ZeRO, gradients are reduced
after the backward pass. "auto" is what the Trainer of transformers fills in, and is read as if it were not there. What a script
does by itself (activation checkpoints, the length of samples) is not in the file. A script builds the pipeline too, of as many
stages as ``pipeline.stages`` says; DeepSpeed takes that key and leaves it to the script. ``train_batch_size`` is the batch of
all data-parallel ranks, which DeepSpeed asserts; it knows them by its pipeline, and where tensors are divided by the script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from triosim.config import Option
from triosim.config.offload import Offload
from triosim.launch_files.correspondence import Correspondence, Framework, Given, Settings, switches
from triosim.launch_files.job import Job, offload_text

_Z = "zero_optimization."
_WHOLE = Option("train_batch_size", "whole")
_MICRO = Option("train_micro_batch_size_per_gpu", "whole")
_STEPS = Option("gradient_accumulation_steps", "whole")
_STAGE = Option(f"{_Z}stage", "whole", 0, least=0, most=3)
_BUCKET = Option(f"{_Z}reduce_bucket_size", "number", 5e8)
_OVERLAP = Option(f"{_Z}overlap_comm", "flag")
_TIERS: Mapping[str, Literal["host", "nvme"] | None] = {"none": None, "cpu": "host", "nvme": "nvme"}
_OPTIMIZER_AT = Option(f"{_Z}offload_optimizer.device", "choice", "none", choices=tuple(_TIERS))
_PARAMETERS_AT = Option(f"{_Z}offload_param.device", "choice", "none", choices=tuple(_TIERS))
_BF16, _FP16 = Option("bf16.enabled", "flag", False), Option("fp16.enabled", "flag", False)
_SUMMED = Option("communication_data_type", "dtype")
_TP = Option("tensor_parallel.autotp_size", "whole", 1, least=0)
_PP = Option("pipeline.stages", "whole", 1)
_OPTIMIZER = Option("optimizer.type", "text")
_TORCH_ADAM = Option("optimizer.params.torch_adam", "flag", False)

_STAGES = ("dp", "zero1", "zero2", "fsdp")
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def dtype_of(given: Given) -> str:
    """Return the dtype that a step computes in. Raises ``OptionError`` where it has two."""
    if given[_BF16.name] and given[_FP16.name]:
        raise given.refused(_FP16.name, f"is given together with {_BF16.name}", "give one of the two")
    return "bfloat16" if given[_BF16.name] else "float16" if given[_FP16.name] else "float32"


def _read_data(given: Given) -> Settings:
    name = _STAGES[given[_STAGE.name]]
    if given[_PP.name] > 1 and given[_STAGE.name] > 1:
        raise given.refused(_STAGE.name, "DeepSpeed has no ZeRO-2 and 3 with a pipeline", "write 0 or 1")
    whole, micro, steps = given[_WHOLE.name], given[_MICRO.name], given[_STEPS.name]
    found: dict[str, Any] = {name: None}
    if whole is not None and micro is not None:
        parts = micro * (steps or 1)
        if steps is not None and whole % parts:
            raise given.refused(_WHOLE.name, f"{whole} samples do not divide into micro-batches of {micro} x {steps}")
        found |= {name: whole // parts} if steps is not None else {}
    if name in ("zero1", "zero2"):
        bucket = given[_BUCKET.name] * (4 if dtype_of(given) == "float32" else 2)
        found |= {"bucket_size": bucket, "first_bucket_size": bucket}
    return found


def _write_data(job: Job) -> Settings:
    name = next((one for one in ("fsdp", "zero2", "zero1", "dp") if one in job.settings), "dp")
    sharded = name in ("zero1", "zero2")
    width = 4 if job.settings.get("dtype") == "float32" else 2
    return {
        _STAGE.name: min(_STAGES.index(name), 1 if job.size("pp") > 1 else 3),
        _BUCKET.name: max(int(job.get("bucket_size")) // width, 1) if sharded else None,
        _OVERLAP.name: True if name != "dp" else None,
    }


def _read_overlap(given: Given) -> Settings:
    if given[_STAGE.name] in (1, 2) and not given[_OVERLAP.name]:
        what = "reductions that the backward pass waits for (overlap_comm: false, its default here) are not simulated"
        raise given.refused(_OVERLAP.name, what, "write true, or give --ignore-unknown")
    return {}


def read_offload(given: Given, optimizer: Option, parameters: Option) -> Settings:
    """Return what two keys keep in other memories; with parameters there, the CPU updates them, and has the optimizer too."""
    tiers = _TIERS[given[optimizer.name]], _TIERS[given[parameters.name]]
    if tiers[1] is not None and tiers[0] is None:
        what = "parameters that the CPU updates, with the optimizer on the GPU, are not simulated"
        raise given.refused(parameters.name, what, "offload the optimizer too")
    text = offload_text(Offload(optimizer=tiers[0], parameters=tiers[1]))
    return {} if text is None else {"offload": text}


def write_offload(job: Job, optimizer: Option, parameters: Option) -> Settings:
    """Return the devices of two keys; None where nothing is offloaded."""
    offload = Offload.of(str(job.get("offload")))
    names = {str(tier): device for device, tier in _TIERS.items() if tier is not None}
    return {optimizer.name: names.get(str(offload.optimizer)), parameters.name: names.get(str(offload.parameters))}


def _read_batch(given: Given) -> Settings:
    whole, micro, steps = given[_WHOLE.name], given[_MICRO.name], given[_STEPS.name]
    found = {"micro_batch_size": micro, "micro_batches": steps, "global_batch_size": whole}
    if micro is not None and (steps is not None or whole is None):
        found |= {"micro_batches": steps or 1, "global_batch_size": None}
    return {name: value for name, value in found.items() if value is not None}


def _write_batch(job: Job) -> Settings:
    """Return the batch of data-parallel ranks, which are more than were simulated where DeepSpeed has no such parallelism.

    With tensor parallelism DeepSpeed may count all ranks: it finds ``train_batch_size`` itself from the other two.
    """
    ranks = data_parallel_ranks(job)
    divides = job.global_batch_size % ranks == 0
    own = job.global_batch_size // ranks if divides else job.micro_batch_size * job.micro_batches
    micro = math.gcd(own, job.micro_batch_size)
    whole = own * ranks if job.size("tp") == 1 else None
    return {_WHOLE.name: whole, _MICRO.name: micro, _STEPS.name: own // micro}


def data_parallel_ranks(job: Job) -> int:
    """Return the ranks that have other samples in DeepSpeed."""
    return job.gpus // job.size("tp", "pp")


def _read_dtypes(given: Given) -> Settings:
    dtype = dtype_of(given)
    return {"dtype": dtype, "gradient_dtype": given[_SUMMED.name] or dtype} if given.model.described else {}


def _write_dtypes(job: Job) -> Settings:
    dtype, summed = job.settings.get("dtype"), job.settings.get("gradient_dtype")
    return {
        _BF16.name: True if dtype == "bfloat16" else None,
        _FP16.name: True if dtype == "float16" else None,
        _SUMMED.name: _SHORT.get(str(summed)) if summed != dtype else None,
    }


def _read_optimizer(given: Given) -> Settings:
    name = given[_OPTIMIZER.name]
    if name is not None and name.lower() not in ("adam", "adamw"):
        raise given.refused(_OPTIMIZER.name, f"'{name}' is not simulated", "known: Adam, AdamW")
    if not given.model.described:
        return {}
    plain = "adamw" if given[_TORCH_ADAM.name] else "fused-adamw"
    return {"stack": "eager", "optimizer": plain if dtype_of(given) == "float32" else "master-adamw"}


def _write_optimizer(job: Job) -> Settings:
    whole = job.settings.get("dtype") == "float32" and job.settings.get("optimizer") != "fused-adamw"
    return {_OPTIMIZER.name: "AdamW", _TORCH_ADAM.name: True if whole else None} if job.model.described else {}


def _read_tensor(given: Given) -> Settings:
    return {"tp": given[_TP.name]} if given[_TP.name] > 1 else {}


def _read_pipeline(given: Given) -> Settings:
    return {"pp": given[_PP.name], "schedule": "1f1b"} if given[_PP.name] > 1 else {}


TABLE = (
    Correspondence("`micro_batch_size`, `micro_batches`", (_WHOLE, _MICRO, _STEPS), _read_batch, _write_batch),
    Correspondence("`dp`, `zero1`, `zero2`, `fsdp`, `bucket_size`", (_STAGE, _BUCKET), _read_data, _write_data),
    Correspondence(
        "`offload`",
        (_OPTIMIZER_AT, _PARAMETERS_AT),
        lambda given: read_offload(given, _OPTIMIZER_AT, _PARAMETERS_AT),
        lambda job: write_offload(job, _OPTIMIZER_AT, _PARAMETERS_AT),
    ),
    Correspondence("overlap", (_OVERLAP,), _read_overlap, lambda job: {}),
    Correspondence(
        "`tp`", (_TP,), _read_tensor, lambda job: {_TP.name: job.size("tp") if job.size("tp") > 1 else None}
    ),
    Correspondence(
        "`pp`", (_PP,), _read_pipeline, lambda job: {_PP.name: job.size("pp") if job.size("pp") > 1 else None}
    ),
    Correspondence("`dtype`, `gradient_dtype`", (_BF16, _FP16, _SUMMED), _read_dtypes, _write_dtypes),
    Correspondence("`optimizer`", (_OPTIMIZER, _TORCH_ADAM), _read_optimizer, _write_optimizer),
)
UNMODELLED = (
    Option(f"{_Z}cpu_offload", "flag", False),
    Option(f"{_Z}zero_hpz_partition_size", "object", 1),
    Option(f"{_Z}zero_quantized_weights", "flag", False),
    Option(f"{_Z}zero_quantized_gradients", "flag", False),
    Option(f"{_Z}mics_shard_size", "object", -1),
    Option(f"{_Z}reduce_scatter", "flag", True),
    *switches("activation_checkpointing.partition_activations", "activation_checkpointing.cpu_checkpointing"),
    *switches("expert_parallel.enabled", "torch_autocast.enabled", "sparse_gradients", "eigenvalue.enabled"),
    *switches("progressive_layer_drop.enabled", "curriculum_learning.enabled", "data_efficiency.enabled"),
    *switches("elasticity.enabled", "compile.deepcompile"),
    Option("sequence_parallel_size", "object", 1),
    Option("data_types.grad_accum_dtype", "object"),
    Option("compression_training", "object"),
)
WITHOUT_EFFECT = frozenset(
    (
        *(
            "scheduler.",
            "optimizer.params.",
            "tensorboard.",
            "wandb.",
            "csv_monitor.",
            "comet.",
            "flops_profiler.",
            "aio.",
        ),
        *("checkpoint.", "autotuning.", "comms_logger.", "elasticity.", "activation_checkpointing.", "monitor_config."),
        *("fp16.", "bf16.", "data_efficiency.", "nebula.", "pipeline.", "offload_param.", "eigenvalue."),
        *(f"{_Z}offload_param.", f"{_Z}offload_optimizer.", f"{_Z}stage3_", f"{_Z}sub_group_size"),
        *(f"{_Z}{name}" for name in ("contiguous_gradients", "allgather_partitions", "allgather_bucket_size")),
        *(f"{_Z}{name}" for name in ("round_robin_gradients", "load_from_fp32_weights", "elastic_checkpoint")),
        *(f"{_Z}{name}" for name in ("ignore_unused_parameters", "legacy_stage1", "param_persistence_threshold")),
        *("gradient_clipping", "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state"),
        *(
            "prescale_gradients",
            "gradient_predivide_factor",
            "zero_allow_untested_optimizer",
            "zero_force_ds_cpu_optimizer",
        ),
        *("seed", "dataloader_drop_last", "use_data_before_expert_parallelism", "disable_python_gc", "log_level"),
        *("tensor_parallel.tp.", "scheduler", "train_steps"),
    )
)
DEEPSPEED = Framework(
    "deepspeed", "DeepSpeed 0.19", TABLE, UNMODELLED, WITHOUT_EFFECT, of_script=frozenset({"seq", "recompute"})
)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted keys as mappings within mappings."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        *outer, last = key.split(".")
        place = found
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return found


def as_json(values: Mapping[str, Any]) -> str:
    """Return values by dotted keys as JSON."""
    return json.dumps(nested(values), indent=2) + "\n"
