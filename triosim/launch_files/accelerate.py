"""accelerate's configuration, a YAML file: data parallelism, FSDP, DeepSpeed or Megatron-LM, and the processes.

The meaning of its keys is that of ``accelerate config`` (accelerate 1.15). With FSDP and mixed precision, parameters are kept
in fp32, and gathered and reduced in the dtype; without it the step computes by autocast. A script says its samples and how long
they are.
"""

from __future__ import annotations

from typing import Any

from triosim.config import Option
from triosim.launch_files.correspondence import Correspondence, Framework, Given, Settings
from triosim.launch_files.deepspeed import read_offload, write_offload
from triosim.launch_files.job import Job

_F, _D, _M = "fsdp_config.fsdp_", "deepspeed_config.", "megatron_lm_config.megatron_lm_"
_P = "parallelism_config.parallelism_config_"
_TYPE = Option("distributed_type", "choice", "NO", choices=("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM"))
_PROCESSES, _MACHINES = Option("num_processes", "whole", -1, least=-1), Option("num_machines", "whole", 1)
_PRECISION = Option("mixed_precision", "text", "no")
_DYNAMO = Option("dynamo_config.dynamo_backend", "text", "NO")
_STRATEGY = Option(f"{_F}sharding_strategy", "text", "FULL_SHARD")
_VERSION = Option(f"{_F}version", "whole", 1, most=2)
_RESHARD = Option(f"{_F}reshard_after_forward", "object", True)
_WRAP = Option(f"{_F}auto_wrap_policy", "text", "TRANSFORMER_BASED_WRAP")
_PREFETCH = Option(f"{_F}backward_prefetch", "text", "BACKWARD_PRE")
_CHECKPOINTS = Option(f"{_F}activation_checkpointing", "flag", False)
_REPLICATE, _SHARD = Option(f"{_P}dp_replicate_size", "whole", 1), Option(f"{_P}dp_shard_size", "whole", 1)
_TP, _CP = Option(f"{_P}tp_size", "whole", 1), Option(f"{_P}cp_size", "whole", 1)
_ROTATE = Option(f"{_P}cp_comm_strategy", "choice", "allgather", choices=("allgather", "alltoall"))
_OFFLOAD = Option(f"{_F}offload_params", "flag", False)
_OPTIMIZER_AT = Option(f"{_D}offload_optimizer_device", "choice", "none", choices=("none", "cpu", "nvme"))
_PARAMETERS_AT = Option(f"{_D}offload_param_device", "choice", "none", choices=("none", "cpu", "nvme"))
_STAGE = Option(f"{_D}zero_stage", "whole", 2, least=0, most=3)
_STEPS = Option(f"{_D}gradient_accumulation_steps", "whole")
_M_TP, _M_PP = Option(f"{_M}tp_degree", "whole", 1), Option(f"{_M}pp_degree", "whole", 1)
#: accelerate 1.15 divides sequences among two ranks where nobody says otherwise (``MegatronLMPlugin``).
_M_CP = Option(f"{_M}context_parallel_size", "whole", 2)
_M_MICRO = Option(f"{_M}num_micro_batches", "whole", 1)
_M_SEQUENCE = Option(f"{_M}sequence_parallelism", "flag", False)
_M_SHARDED = Option(f"{_M}use_distributed_optimizer", "flag", False)
_M_AGAIN = Option(f"{_M}recompute_activations", "flag", False)

#: What FSDP's policy keeps in host memory.
_OFFLOADED = "optimizer=host,parameters=host"
_STAGES = ("dp", "zero1", "zero2", "fsdp")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
#: The key that names a file of DeepSpeed.
_FILE = f"{_D}deepspeed_config_file"
#: What ``fsdp_sharding_strategy`` is called, or its number.
_STRATEGIES = {"FULL_SHARD": None, "1": None, "SHARD_GRAD_OP": "no", "2": "no"}


def _kind(given: Given) -> str:
    return str(given[_TYPE.name])


def _kind_of(job: Job) -> str:
    """Return the type of a job: Megatron-LM has pipelines, DeepSpeed ZeRO, FSDP what else is sharded.

    Beside tensor and context parallelism accelerate has data parallelism by FSDP alone (``ParallelismConfig``).
    """
    if job.size("pp") > 1:
        return "MEGATRON_LM"
    if job.size("tp", "cp") == 1 and job.size("zero1", "zero2") > 1:
        return "DEEPSPEED"
    if job.size("fsdp", "cp") > 1 or (job.size("tp") > 1 and job.replicas > 1):
        return "FSDP"
    return "MULTI_GPU" if job.gpus > 1 else "NO"


def _read_data(given: Given) -> Settings:
    kind = _kind(given)
    if kind == "FSDP":
        return _read_fsdp(given)
    if kind == "DEEPSPEED":
        elsewhere = _FILE in given.entries and _STAGE.name not in given.entries
        return {} if elsewhere else {_STAGES[given[_STAGE.name]]: None}
    if kind == "MEGATRON_LM":
        return {"zero1" if given[_M_SHARDED.name] else "dp": None}
    return {"ddp": None} if kind == "MULTI_GPU" else {}


def _read_fsdp(given: Given) -> Settings:
    reshard: str | None
    if given[_VERSION.name] == 2 or _STRATEGY.name not in given.entries:
        value = given[_RESHARD.name]
        word = str(value).upper()
        if word not in ("TRUE", "FALSE", *_STRATEGIES):
            raise given.refused(_RESHARD.name, f"'{value}' is not simulated", "known: true, false")
        reshard = "no" if word in ("FALSE", "SHARD_GRAD_OP", "2") else None
    else:
        word = given[_STRATEGY.name]
        if word not in _STRATEGIES:
            fix = "known: FULL_SHARD, SHARD_GRAD_OP; write a hybrid as parallelism_config"
            raise given.refused(_STRATEGY.name, f"'{word}' is not simulated", fix)
        reshard = _STRATEGIES[word]
    found: dict[str, Any] = {"fsdp": given[_SHARD.name] if _SHARD.name in given.entries else None}
    if given[_REPLICATE.name] > 1:
        found["ddp"] = given[_REPLICATE.name]
    if reshard is not None:
        found["options.reshard"] = reshard
    if given[_WRAP.name] == "NO_WRAP":
        found["options.unit"] = "model"
    elif given[_WRAP.name] != "TRANSFORMER_BASED_WRAP":
        raise given.refused(
            _WRAP.name, f"'{given[_WRAP.name]}' is not simulated", "known: TRANSFORMER_BASED_WRAP, NO_WRAP"
        )
    if given[_PREFETCH.name] not in ("BACKWARD_PRE", "NO_PREFETCH"):
        raise given.refused(
            _PREFETCH.name, f"'{given[_PREFETCH.name]}' is not simulated", "known: BACKWARD_PRE, NO_PREFETCH"
        )
    if given[_PREFETCH.name] == "NO_PREFETCH":
        found["options.prefetch"] = 0
    return found | ({"recompute": "checkpoint"} if given[_CHECKPOINTS.name] else {})


def _write_data(job: Job) -> Settings:
    kind = _kind_of(job)
    found: dict[str, Any] = {_TYPE.name: kind}
    if kind == "DEEPSPEED":
        return found | {_STAGE.name: 2 if job.size("zero2") > 1 else 1}
    if kind == "MEGATRON_LM":
        return found | {_M_SHARDED.name: job.size("zero1", "zero2", "fsdp") > 1}
    if kind != "FSDP":
        return found
    found |= {
        _VERSION.name: 2,
        _RESHARD.name: job.get("options.reshard") != "no" and job.size("zero1", "zero2") == 1,
        _WRAP.name: "NO_WRAP" if job.get("options.unit") == "model" else "TRANSFORMER_BASED_WRAP",
        _CHECKPOINTS.name: job.get("recompute") == "checkpoint",
    }
    return found | ({_PREFETCH.name: "NO_PREFETCH"} if job.get("options.prefetch") == 0 else {})


def _read_sizes(given: Given) -> Settings:
    if _kind(given) == "MEGATRON_LM":
        sizes = {"tp": given[_M_TP.name], "pp": given[_M_PP.name], "cp": given[_M_CP.name]}
        found: dict[str, Any] = {name: ranks for name, ranks in sizes.items() if ranks > 1}
        found |= {"sequence_parallel": True} if given[_M_SEQUENCE.name] and "tp" in found else {}
        found |= {"schedule": "1f1b", "micro_batches": given[_M_MICRO.name]} if "pp" in found else {}
        return found | ({"recompute": "selective"} if given[_M_AGAIN.name] else {})
    found = {name: given[key.name] for name, key in (("tp", _TP), ("cp", _CP)) if given[key.name] > 1}
    return found | ({"options.cp": "all-gather"} if "cp" in found and given[_ROTATE.name] == "allgather" else {})


def _write_sizes(job: Job) -> Settings:
    if _kind_of(job) == "MEGATRON_LM":
        return {
            _M_TP.name: job.size("tp"),
            _M_PP.name: job.size("pp"),
            _M_CP.name: job.size("cp"),
            _M_MICRO.name: job.micro_batches,
            _M_SEQUENCE.name: bool(job.get("sequence_parallel")),
            _M_AGAIN.name: job.get("recompute") == "selective",
        }
    replicated, sharded = job.size("ddp", "dp"), job.size("fsdp", "zero1", "zero2")
    if sharded == 1 and job.size("tp", "cp") > 1:
        replicated, sharded = 1, replicated
    sizes = {_REPLICATE.name: replicated, _TP.name: job.size("tp"), _CP.name: job.size("cp")}
    several: dict[str, Any] = {key: ranks for key, ranks in sizes.items() if ranks > 1}
    if not several or (several.keys() == {_REPLICATE.name} and sharded == 1):
        return {}
    if job.size("cp") > 1:
        several[_ROTATE.name] = "allgather" if job.get("options.cp") == "all-gather" else "alltoall"
    return {**several, _SHARD.name: sharded}


def _read_offload(given: Given) -> Settings:
    if _kind(given) == "DEEPSPEED":
        return read_offload(given, _OPTIMIZER_AT, _PARAMETERS_AT)
    return {"offload": _OFFLOADED} if given[_OFFLOAD.name] and _kind(given) == "FSDP" else {}


def _write_offload(job: Job) -> Settings:
    if _kind_of(job) == "DEEPSPEED":
        return write_offload(job, _OPTIMIZER_AT, _PARAMETERS_AT)
    offloaded = _kind_of(job) == "FSDP" and job.settings.get("offload") == _OFFLOADED
    return {_OFFLOAD.name: True if offloaded else None}


def _read_processes(given: Given) -> Settings:
    return {"gpus": given[_PROCESSES.name]} if given[_PROCESSES.name] > 0 else {}


def _read_batch(given: Given) -> Settings:
    steps = given[_STEPS.name] if _kind(given) == "DEEPSPEED" else None
    return {} if steps is None else {"micro_batches": steps}


def _read_dtypes(given: Given) -> Settings:
    word = given[_PRECISION.name]
    if word == "no":
        return {}
    if word not in _DTYPES:
        raise given.refused(_PRECISION.name, f"'{word}' is not simulated", "known: no, bf16, fp16")
    kind, dtype = _kind(given), _DTYPES[word]
    if not given.model.described:
        return {}
    if kind == "FSDP":
        return {"dtype": dtype, "gradient_dtype": dtype, "options.shard_dtype": "float32"}
    if kind in ("DEEPSPEED", "MEGATRON_LM"):
        return {"dtype": dtype, "gradient_dtype": dtype if kind == "DEEPSPEED" else "float32"}
    return {"dtype": dtype, "precision": "mixed"}


def _write_dtypes(job: Job) -> Settings:
    short = {ours: theirs for theirs, ours in _DTYPES.items()}
    kind, dtype = _kind_of(job), short.get(str(job.settings.get("dtype")), "no")
    kept = kind == "FSDP" and job.get("options.shard_dtype") != "float32"
    plain = kind in ("NO", "MULTI_GPU") and job.get("precision") != "mixed"
    return {_PRECISION.name: "no" if kept or plain else dtype} if job.model.described else {}


def _read_stack(given: Given) -> Settings:
    if not given.model.described:
        return {}
    kind = _kind(given)
    if kind == "MEGATRON_LM":
        return {"stack": "megatron"}
    compiled = str(given[_DYNAMO.name]).upper() == "INDUCTOR"
    found = {"stack": "compiled" if compiled else "eager"}
    return found | ({"optimizer": "master-adamw"} if kind == "DEEPSPEED" and given[_PRECISION.name] != "no" else {})


def _write_stack(job: Job) -> Settings:
    return {_DYNAMO.name: "INDUCTOR" if job.settings.get("stack") == "compiled" else None}


TABLE = (
    Correspondence("`gpus`", (_PROCESSES, _MACHINES), _read_processes, lambda job: {_PROCESSES.name: job.gpus}),
    Correspondence(
        "`ddp`, `fsdp`, `zero1`, `zero2`, `reshard`, `unit`, `prefetch`, `recompute`",
        (_TYPE, _VERSION, _STRATEGY, _RESHARD, _WRAP, _PREFETCH, _CHECKPOINTS, _STAGE, _M_SHARDED),
        _read_data,
        _write_data,
    ),
    Correspondence(
        "`tp`, `cp`, `pp`, `sequence_parallel`, `micro_batches`, `recompute`",
        (_REPLICATE, _SHARD, _TP, _CP, _ROTATE, _M_TP, _M_PP, _M_CP, _M_MICRO, _M_SEQUENCE, _M_AGAIN),
        _read_sizes,
        _write_sizes,
    ),
    Correspondence(
        "`micro_batches`",
        (_STEPS,),
        _read_batch,
        lambda job: {_STEPS.name: job.micro_batches if _kind_of(job) == "DEEPSPEED" else None},
    ),
    Correspondence("`dtype`, `precision`, `gradient_dtype`, `shard_dtype`", (_PRECISION,), _read_dtypes, _write_dtypes),
    Correspondence("`offload`", (_OFFLOAD, _OPTIMIZER_AT, _PARAMETERS_AT), _read_offload, _write_offload),
    Correspondence("`stack`", (_DYNAMO,), _read_stack, _write_stack),
)
UNMODELLED = (
    Option(f"{_F}activation_checkpointing_offload", "flag", False),
    Option(f"{_P}sp_size", "object", 1),
    Option(f"{_M}expert_model_parallel_size", "object", 1),
    Option(f"{_M}optimizer_cpu_offload", "flag", False),
    Option(f"{_M}recompute_granularity", "object"),
    Option("use_cpu", "flag", False),
    Option("tpu_use_cluster", "flag", False),
    Option("fp8_config", "object"),
)
WITHOUT_EFFECT = frozenset(
    (
        *(
            "compute_environment",
            "debug",
            "machine_rank",
            "main_process_ip",
            "main_process_port",
            "main_training_function",
        ),
        *("rdzv_backend", "same_network", "gpu_ids", "enable_cpu_affinity", "downcast_bf16", "tpu_env", "tpu_use_sudo"),
        *("mpirun_config", "mpirun_config.", "dynamo_config", "dynamo_config.", "fsdp_config", "deepspeed_config"),
        *("megatron_lm_config", "parallelism_config", "commands", "command_file", "tpu_name", "tpu_zone", "tpu_vm"),
        *(
            f"{_F}{name}"
            for name in ("cpu_ram_efficient_loading", "sync_module_states", "state_dict_type", "use_orig_params")
        ),
        *(
            f"{_F}{name}"
            for name in ("transformer_layer_cls_to_wrap", "forward_prefetch", "min_num_params", "ignored_modules")
        ),
        *(
            f"{_D}{name}"
            for name in ("gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile")
        ),
        *(
            f"{_D}{name}"
            for name in ("deepspeed_multinode_launcher", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter")
        ),
        *(
            f"{_D}{name}"
            for name in ("offload_optimizer_nvme_path", "offload_param_nvme_path", "deepspeed_moe_layer_cls_names")
        ),
        f"{_D}deepspeed_config_file",
        f"{_M}gradient_clipping",
        *("multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "use_parallelism_config", "module", "quiet"),
    )
)
ACCELERATE = Framework(
    "accelerate",
    "accelerate 1.15",
    TABLE,
    UNMODELLED,
    WITHOUT_EFFECT,
    of_script=frozenset({"seq", "micro_batch_size", "micro_batches", "optimizer", "recompute"}),
)
