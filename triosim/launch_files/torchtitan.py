"""torchtitan's job configuration: a TOML file of sections, as torchtitan 0.2 reads it (0.3 has Python files instead).

The meaning of its keys is that of ``torchtitan/config/job_config.py``. Its tensor parallelism divides norms by tokens too, FSDP
keeps parameters in ``training.dtype`` and gathers them in ``training.mixed_precision_param``, and without FSDP it computes by
autocast, unless there is a pipeline or tensor parallelism, which then compute in ``training.dtype``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any

from triosim.config import Option
from triosim.config.stacks import STACKS
from triosim.launch_files.correspondence import Correspondence, Framework, Given, Settings, same
from triosim.launch_files.job import Job, ModelSizes

_P, _T = "parallelism.", "training."
_SHARD = Option(f"{_P}data_parallel_shard_degree", "whole", -1, least=-1)
_REPLICATE = Option(f"{_P}data_parallel_replicate_degree", "whole", 1)
_RESHARD = Option(f"{_P}fsdp_reshard_after_forward", "choice", "default", choices=("default", "always", "never"))
_TP = Option(f"{_P}tensor_parallel_degree", "whole", 1)
_ASYNC_TP = Option(f"{_P}enable_async_tensor_parallel", "flag", False)
_PP = Option(f"{_P}pipeline_parallel_degree", "whole", 1)
_SCHEDULE = Option(f"{_P}pipeline_parallel_schedule", "text", "1F1B")
_LAYERS = Option(f"{_P}pipeline_parallel_layers_per_stage", "whole")
_FIRST = Option(f"{_P}pipeline_parallel_first_stage_less_layers", "whole", 1, least=0)
_LAST = Option(f"{_P}pipeline_parallel_last_stage_less_layers", "whole", 1, least=0)
_MICRO = Option(f"{_P}pipeline_parallel_microbatch_size", "whole", 1)
_CP = Option(f"{_P}context_parallel_degree", "whole", 1)
_ROTATE = Option(f"{_P}context_parallel_rotate_method", "choice", "allgather", choices=("allgather", "alltoall"))
_EP = Option(f"{_P}expert_parallel_degree", "whole", 1)
_EP_BACKEND = Option(f"{_P}expert_parallel_comm_backend", "choice", "standard", choices=("standard", "deepep"))
_BALANCED = Option("debug.moe_force_load_balance", "flag", False)
_LOCAL = Option(f"{_T}local_batch_size", "whole", 8)
_GLOBAL = Option(f"{_T}global_batch_size", "whole", -1, least=-1)
_OFFLOAD = Option(f"{_T}enable_cpu_offload", "flag", False)
_DTYPE = Option(f"{_T}dtype", "choice", "float32", choices=("float32", "bfloat16"))
_PARAM = Option(f"{_T}mixed_precision_param", "choice", "bfloat16", choices=("float32", "bfloat16"))
_REDUCE = Option(f"{_T}mixed_precision_reduce", "choice", "float32", choices=("float32",))
_MODE = Option(
    "activation_checkpoint.mode", "choice", "selective", choices=("none", "full", "selective", "memory_budget")
)
_EVERY = Option("activation_checkpoint.selective_ac_option", "text", "2")
_EARLY = Option("activation_checkpoint.early_stop", "flag", False)
_COMPILE = Option("compile.enable", "flag", False)
_COMPONENTS = Option("compile.components", "object", ["model", "loss"])
_OPTIMIZER = Option("optimizer.name", "text", "AdamW")
_IMPLEMENTATION = Option("optimizer.implementation", "choice", "fused", choices=("for-loop", "foreach", "fused"))
_CONVERTERS = Option("model.converters", "object", [])
_FLOAT8 = "quantize.linear.float8"
_RECIPE = Option(f"{_FLOAT8}.recipe_name", "text")
_GATHER8 = Option(f"{_FLOAT8}.enable_fsdp_float8_all_gather", "flag", False)
_MODEL = Option("model.name", "text")
_FLAVOR = Option("model.flavor", "text")

#: What FSDP's policy keeps in host memory.
_OFFLOADED = "optimizer=host,parameters=host"
#: The bytes of a bucket of gradients without FSDP.
_BUCKET = "100 MiB"
#: Models that torchtitan has, by our names: its model and flavor.
_MODELS: Mapping[str, tuple[str, str]] = {
    **{
        f"llama{version}-{size}": ("llama3", size.upper()) for version in ("3", "3.1") for size in ("8b", "70b", "405b")
    },
    **{f"qwen3-{size}": ("qwen3", size.upper()) for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")},
    **{f"qwen3-{size}": ("qwen3", size.upper()) for size in ("30b-a3b", "235b-a22b")},
    "deepseek-v3": ("deepseek_v3", "671B"),
}
_SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
_KEPT, _KEPT_8 = "save=mm/2,attention", "save=scaled_mm/2,attention"


def _sharded(given: Given) -> bool:
    return bool(given[_SHARD.name] != 1 or given[_CP.name] > 1)


def _read_data(given: Given) -> Settings:
    shard, replicate = given[_SHARD.name], given[_REPLICATE.name]
    if shard == 0:
        raise given.refused(_SHARD.name, "0 GPUs", "give -1 for all that are left, or 1 or more")
    found: dict[str, Any] = {"fsdp": None if shard == -1 else shard} if _sharded(given) else {}
    if replicate > 1:
        found["ddp"] = replicate
        found |= {} if "fsdp" in found else {"bucket_size": _BUCKET}
    reshard = {"default": None, "always": "yes", "never": "no"}[given[_RESHARD.name]]
    return found | ({"options.reshard": reshard} if found.keys() & {"fsdp"} and reshard else {})


def _write_data(job: Job) -> Settings:
    kept = job.size("zero1", "zero2") > 1
    reshard = "never" if kept else {"yes": "always", "no": "never"}.get(job.get("options.reshard"), "default")
    shard, replicate = job.size("fsdp", "zero1", "zero2"), job.size("ddp", "dp")
    if shard * job.size("cp", "tp") % job.size("ep"):  # experts are on the ranks that share parameters
        shard, replicate = shard * replicate, 1
    return {_SHARD.name: shard, _REPLICATE.name: replicate, _RESHARD.name: reshard}


def _read_tensor(given: Given) -> Settings:
    if given[_TP.name] == 1:
        return {}
    found = {"tp": given[_TP.name], "sequence_parallel": True, "options.embedding_gradient": "whole"}
    return found | ({"options.overlap": "ring"} if given[_ASYNC_TP.name] else {})


def _write_tensor(job: Job) -> Settings:
    overlapped = job.get("options.overlap") == "ring"
    return {_TP.name: job.size("tp"), _ASYNC_TP.name: True if overlapped else None}


def _read_pipeline(given: Given) -> Settings:
    stages = given[_PP.name]
    if stages == 1:
        return {}
    word = given[_SCHEDULE.name]
    if word not in _SCHEDULES:
        raise given.refused(_SCHEDULE.name, f"'{word}' is not simulated", f"known: {', '.join(_SCHEDULES)}")
    schedule, per_stage = _SCHEDULES[word], given[_LAYERS.name]
    found = {"pp": stages, "schedule": schedule}
    if schedule != "interleaved":
        return found
    return found | {"virtual_stages": 2 if per_stage is None else _virtual_stages(given, stages, per_stage)}


def _virtual_stages(given: Given, stages: int, per_stage: int) -> int:
    layers = given.model.size("layers")
    if layers is None:
        raise given.refused(_LAYERS.name, "says nothing without the layers of a described model", "leave it out")
    count = math.ceil((layers + given[_FIRST.name] + given[_LAST.name]) / per_stage)
    if count % stages or count < 2 * stages:
        fix = f"give a number that makes {2 * stages} stages, or another multiple of {stages}"
        raise given.refused(_LAYERS.name, f"makes {count} stages of {layers} layers, for {stages} ranks", fix)
    return int(count // stages)


def _write_pipeline(job: Job) -> Settings:
    stages = job.size("pp")
    if stages == 1:
        return {_PP.name: 1}
    names = {ours: theirs for theirs, ours in _SCHEDULES.items()}
    found: dict[str, Any] = {_PP.name: stages, _SCHEDULE.name: names.get(job.get("schedule"), "1F1B")}
    virtual, layers = job.get("virtual_stages"), job.model.size("layers")
    if job.get("schedule") == "interleaved" and virtual != 2 and layers is not None:
        found[_LAYERS.name] = math.ceil((layers + 2) / (stages * virtual))
    return found


def _read_context(given: Given) -> Settings:
    ranks = given[_CP.name]
    gathered = given[_ROTATE.name] == "allgather"
    return {"cp": ranks, **({"options.cp": "all-gather"} if gathered else {})} if ranks > 1 else {}


def _write_context(job: Job) -> Settings:
    ranks = job.size("cp")
    ring = job.get("options.cp") != "all-gather"
    return {_CP.name: ranks, _ROTATE.name: ("alltoall" if ring else "allgather") if ranks > 1 else None}


def _read_experts(given: Given) -> Settings:
    ranks = given[_EP.name]
    if ranks == 1:
        return {}
    found: dict[str, Any] = {"ep": ranks}
    if given[_EP_BACKEND.name] == "deepep":
        found["ep_transport"] = "deepep"
    return found | ({"options.load": "balanced"} if given[_BALANCED.name] else {})


def _write_experts(job: Job) -> Settings:
    if job.size("ep") == 1:
        return {_EP.name: 1}
    backend = "deepep" if job.get("ep_transport") == "deepep" else "standard"
    balanced = True if job.get("options.load") == "balanced" else None
    return {_EP.name: job.size("ep"), _EP_BACKEND.name: backend, _BALANCED.name: balanced}


def _read_batch(given: Given) -> Settings:
    local, whole, piped = given[_LOCAL.name], given[_GLOBAL.name], given[_PP.name] > 1
    micro = given[_MICRO.name] if piped else local
    if local % micro:
        raise given.refused(_LOCAL.name, f"{local} samples do not divide into micro-batches of {micro}")
    if whole == -1:
        return {"micro_batch_size": micro, "micro_batches": local // micro}
    if piped:
        return {"micro_batch_size": micro, "micro_batches": local // micro, "global_batch_size": whole}
    return {"micro_batch_size": micro, "global_batch_size": whole}


def _write_batch(job: Job) -> Settings:
    if job.size("pp") == 1:
        return {_LOCAL.name: job.micro_batch_size, _GLOBAL.name: job.global_batch_size}
    local = job.micro_batch_size * job.micro_batches
    return {_LOCAL.name: local, _GLOBAL.name: job.global_batch_size, _MICRO.name: job.micro_batch_size}


def _read_dtypes(given: Given) -> Settings:
    kept, computed = given[_DTYPE.name], given[_PARAM.name]
    if _sharded(given):
        found = {"dtype": computed, "gradient_dtype": given[_REDUCE.name]}
        return found | ({"options.shard_dtype": kept} if kept != computed else {})
    if given[_TP.name] > 1 or given[_PP.name] > 1 or kept == computed:
        return {"dtype": kept}
    return {"dtype": computed, "precision": "mixed"} if kept == "float32" else {"dtype": kept}


def _write_dtypes(job: Job) -> Settings:
    if "dtype" not in job.settings:
        return {}
    computed = job.get("dtype")
    whole = computed == "float32" or job.get("options.shard_dtype") == "float32" or job.get("precision") == "mixed"
    return {
        _DTYPE.name: "float32" if whole else "bfloat16",
        _PARAM.name: "float32" if computed == "float32" else "bfloat16",
        _REDUCE.name: "float32",
    }


def _read_recompute(given: Given) -> Settings:
    mode, every = given[_MODE.name], given[_EVERY.name]
    if mode == "none":
        return {}
    whole = "checkpoint" if given[_EARLY.name] else "full"
    if mode == "full":
        return {"recompute": whole}
    if mode != "selective":
        raise given.refused(_MODE.name, f"'{mode}' is not simulated", "write none, full or selective")
    if every == "op":
        return {"recompute": _KEPT_8 if _FLOAT8 in given[_CONVERTERS.name] else _KEPT}
    if not (every.isascii() and every.isdigit()):
        raise given.refused(_EVERY.name, f"'{every}' is neither 'op' nor a number of layers", "write 'op', or 2")
    return {"recompute": f"{whole}/{int(every)}" if int(every) > 1 else whole}


def _write_recompute(job: Job) -> Settings:
    policy = str(job.get("recompute"))
    whole, _, every = policy.partition("/")
    if whole in ("full", "checkpoint"):
        mode = {_MODE.name: "selective", _EVERY.name: every} if every else {_MODE.name: "full"}
        return {**mode, _EARLY.name: whole == "checkpoint"}
    if policy in (_KEPT, _KEPT_8):
        return {_MODE.name: "selective", _EVERY.name: "op"}
    return {_MODE.name: "none"}


def _listed(given: Given, key: Option, example: str) -> list[Any]:
    """Return the value of a list; on the command line its words are divided by commas."""
    value = given[key.name]
    if isinstance(value, str) and given.entries[key.name].where.rpartition(": ")[2].startswith("--"):
        return value.split(",")
    if not isinstance(value, list):
        raise given.refused(key.name, "is not a list", f"write {example}")
    return value


def _read_stack(given: Given) -> Settings:
    components = _listed(given, _COMPONENTS, '["model", "loss"]')
    compiled = given[_COMPILE.name] and "model" in components
    if given[_OPTIMIZER.name] not in ("Adam", "AdamW"):
        raise given.refused(_OPTIMIZER.name, f"'{given[_OPTIMIZER.name]}' is not simulated", "known: Adam, AdamW")
    if given[_IMPLEMENTATION.name] == "for-loop":
        raise given.refused(_IMPLEMENTATION.name, "'for-loop' is not simulated", "known: foreach, fused")
    optimizer = "fused-adamw" if given[_IMPLEMENTATION.name] == "fused" else "adamw"
    return {"stack": "compiled" if compiled else "eager", "optimizer": optimizer} if given.model.described else {}


def _write_stack(job: Job) -> Settings:
    if not job.model.described:
        return {}
    stack = STACKS[job.get("stack")]
    optimizer = job.get("optimizer") or stack.optimizer
    implementation = "foreach" if optimizer == "adamw" else "fused"
    return {_COMPILE.name: stack.name == "compiled", _OPTIMIZER.name: "AdamW", _IMPLEMENTATION.name: implementation}


def _read_products(given: Given) -> Settings:
    converters = _listed(given, _CONVERTERS, f'["{_FLOAT8}"]')
    for name in converters:
        if name != _FLOAT8:
            raise given.refused(_CONVERTERS.name, f"'{name}' is not simulated", f"known: {_FLOAT8}")
    if not converters:
        return {}
    if given[_RECIPE.name] not in (None, "tensorwise"):
        raise given.refused(_RECIPE.name, f"'{given[_RECIPE.name]}' is not simulated", "known: tensorwise")
    gathered = given[_GATHER8.name] and given[_SHARD.name] != 1
    return {"products": "fp8", **({"options.parameter_dtype": "float8_e4m3fn"} if gathered else {})}


def _write_products(job: Job) -> Settings:
    if job.get("products") != "fp8":
        return {}
    gathered = str(job.get("options.parameter_dtype") or "").startswith("float8")
    return {_CONVERTERS.name: [_FLOAT8], _GATHER8.name: True if gathered else None}


def _read_model(given: Given) -> Settings:
    theirs, ours = (given[_MODEL.name], given[_FLAVOR.name]), _MODELS.get(given.model.base)
    for key, named, own in zip((_MODEL, _FLAVOR), theirs, ours or theirs, strict=True):
        if named is not None and named != own:
            raise given.refused(
                key.name, f"'{named}' is not {given.model.name}, which is '{own}'", "name the file's model"
            )
    return {}


def _write_model(job: Job) -> Settings:
    name, flavor = _MODELS.get(job.model.base, (None, None))
    return {_MODEL.name: name, _FLAVOR.name: flavor}


def _trained(model: ModelSizes) -> Iterator[str]:
    """Yield in which sizes torchtitan's model is another than the one that was simulated."""
    if not model.described:
        yield "the model: the file names none, and torchtitan trains its llama3 debugmodel; name yours in [model]"
    elif model.base not in _MODELS:
        fix = "add a flavor, and name it in [model]"
        yield f"the model: torchtitan has no {model.name}, and trains its llama3 debugmodel; {fix}"
    elif model.changed:
        name, flavor = _MODELS[model.base]
        said = ", ".join(f"{key} {model.sizes.get(key)}, this has {value}" for key, value in model.changed.items())
        yield f"the model: simulated was {said} (torchtitan's {name} {flavor}); add a flavor, and name it in [model]"


TABLE = (
    Correspondence("the model", (_MODEL, _FLAVOR), _read_model, _write_model),
    Correspondence("`fsdp`, `ddp`, `reshard`, `bucket_size`", (_SHARD, _REPLICATE, _RESHARD), _read_data, _write_data),
    Correspondence("`tp`, `sequence_parallel`", (_TP, _ASYNC_TP), _read_tensor, _write_tensor),
    Correspondence(
        "`pp`, `schedule`, `virtual_stages`", (_PP, _SCHEDULE, _LAYERS, _FIRST, _LAST), _read_pipeline, _write_pipeline
    ),
    Correspondence("`cp`", (_CP, _ROTATE), _read_context, _write_context),
    Correspondence("`ep`, `ep_transport`, `load`", (_EP, _EP_BACKEND, _BALANCED), _read_experts, _write_experts),
    same("seq", Option(f"{_T}seq_len", "whole", 2048)),
    Correspondence("`micro_batch_size`, `micro_batches`", (_LOCAL, _GLOBAL, _MICRO), _read_batch, _write_batch),
    Correspondence("`dtype`, `precision`, `gradient_dtype`", (_DTYPE, _PARAM, _REDUCE), _read_dtypes, _write_dtypes),
    Correspondence(
        "`offload`",
        (_OFFLOAD,),
        lambda given: {"offload": _OFFLOADED} if given[_OFFLOAD.name] else {},
        lambda job: {_OFFLOAD.name: True if job.settings.get("offload") == _OFFLOADED else None},
    ),
    Correspondence("`recompute`", (_MODE, _EVERY, _EARLY), _read_recompute, _write_recompute),
    Correspondence(
        "`stack`, `optimizer`", (_COMPILE, _COMPONENTS, _OPTIMIZER, _IMPLEMENTATION), _read_stack, _write_stack
    ),
    Correspondence("`products`", (_CONVERTERS, _RECIPE, _GATHER8), _read_products, _write_products),
)

_UNMODELLED = (
    Option(f"{_P}disable_loss_parallel", "flag", False),
    Option(f"{_P}module_fqns_per_model_part", "object"),
    Option(f"{_P}pipeline_parallel_schedule_csv", "text", "", help="give --schedule FILE"),
    Option(f"{_P}expert_tensor_parallel_degree", "object", 1),
    Option("optimizer.early_step_in_backward", "flag", False),
    Option("compile.backend", "text", "inductor"),
    Option("fault_tolerance.enable", "flag", False),
    Option("quantize.grouped_mm.float8.fqns", "object", []),
    Option("quantize.grouped_mm.mx.fqns", "object", []),
    Option("debug.deterministic", "flag", False),
)
_WITHOUT_EFFECT = frozenset(
    (
        *(
            "job.",
            "profiling.",
            "metrics.",
            "lr_scheduler.",
            "checkpoint.",
            "comm.",
            "memory_estimation.",
            "validation.",
        ),
        *("experimental.", "fault_tolerance.", "training.dataloader.", "quantize.linear.mx."),
        *(f"model.{name}" for name in ("hf_assets_path", "tokenizer_path", "print_after_conversion")),
        *(f"optimizer.{name}" for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        *(
            f"training.{name}"
            for name in ("dataset", "dataset_path", "max_norm", "steps", "gc_freq", "gc_debug", "seed")
        ),
        *(f"debug.{name}" for name in ("seed", "deterministic_warn_only")),
        *(f"{_P}{name}" for name in ("context_parallel_load_balancer", "pipeline_parallel_expert_parallel_overlap")),
        *(f"{_FLOAT8}.{name}" for name in ("filter_fqns", "precompute_float8_dynamic_scale_for_fsdp", "emulate")),
        *(f"activation_checkpoint.{name}" for name in ("preserve_rng_state", "determinism_check", "debug")),
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
        *(f"activation_checkpoint.{name}" for name in ("memory_budget", "visualize_memory_budget_pareto")),
    )
)

TORCHTITAN = Framework(
    *("torchtitan", "torchtitan 0.2.2", TABLE, _UNMODELLED, _WITHOUT_EFFECT),
    architectures=frozenset({"Llama", "DeepSeek"}),
    of_model=_trained,
)


def torchtitan_text(values: Mapping[str, Any], comments: list[str], at: Mapping[str, list[str]]) -> str:
    """Return the text of a job configuration, with lines of comments ahead, and ``at`` sections by their names."""
    return "".join(f"# {line}\n" for line in comments) + "\n" + as_toml(values, at)


def as_toml(values: Mapping[str, Any], at: Mapping[str, list[str]] = MappingProxyType({})) -> str:
    """Return dotted keys and their values as TOML, a section for each table; lines of comments ``at`` sections come first."""
    sections = sorted(values, key=lambda key: _first_of(values, key))
    parts = []
    for section, keys in groupby(sections, key=lambda key: key.rpartition(".")[0]):
        lines = [f"{key.rpartition('.')[2]} = {json.dumps(values[key])}" for key in keys]
        parts.append("\n".join((*(f"# {line}" for line in at.get(section, ())), f"[{section}]", *lines)))
    return "\n\n".join(parts) + "\n"


def _first_of(values: Mapping[str, Any], key: str) -> int:
    """Return the index of the first key of a key's section."""
    section = key.rpartition(".")[0]
    return next(index for index, one in enumerate(values) if one.rpartition(".")[0] == section)
