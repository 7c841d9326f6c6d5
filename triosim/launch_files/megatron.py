"""Megatron-LM's arguments, as ``pretrain_gpt.py`` takes them (Megatron-Core 0.16): in a shell script, or a file of its own.

The meaning of the arguments is that of ``megatron/training/arguments.py``. Layers are divided in pairs and stages have as many
layers each; the distributed optimizer that overlaps both its collectives is ``fsdp`` that keeps what it gathered, once a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triosim.config import Option
from triosim.launch_files.correspondence import Correspondence, Framework, Given, Settings, same
from triosim.launch_files.job import Job
from triosim.launch_files.megatron_model import MODEL_TABLE, UNMODELLED, WITHOUT_EFFECT

_TP = Option("tensor-model-parallel-size", "whole", 1)
_PP = Option("pipeline-model-parallel-size", "whole", 1)
_CP = Option("context-parallel-size", "whole", 1)
_CP_TYPE = Option("cp-comm-type", "text", "p2p")
_EP = Option("expert-model-parallel-size", "whole", 1)
_SEQUENCE = Option("sequence-parallel", "flag", False)
_OVERLAP = Option("tp-comm-overlap", "flag", False)
_AFTER = Option("no-async-tensor-model-parallel-allreduce", "flag", False)
_STAGES = Option("num-virtual-stages-per-pipeline-rank", "whole")
_CHUNK = Option("num-layers-per-virtual-pipeline-stage", "whole")
_OPTIMIZER_SHARDED = Option("use-distributed-optimizer", "flag", False)
_REDUCES = Option("overlap-grad-reduce", "flag", False)
_GATHERS = Option("overlap-param-gather", "flag", False)
_FSDP = Option("use-megatron-fsdp", "flag", False)
_STRATEGY = Option(
    "data-parallel-sharding-strategy",
    "choice",
    "no_shard",
    choices=("no_shard", "optim", "optim_grads", "optim_grads_params"),
)
_TORCH_FSDP = Option("use-torch-fsdp2", "flag", False)
_BUCKET = Option("ddp-bucket-size", "whole")
_MICRO = Option("micro-batch-size", "whole", 1)
_GLOBAL = Option("global-batch-size", "whole")
_POSITIONS = Option("max-position-embeddings", "whole")
_GRANULARITY = Option("recompute-granularity", "choice", choices=("full", "selective"))
_METHOD = Option("recompute-method", "choice", choices=("uniform", "block"))
_LAYERS = Option("recompute-num-layers", "whole")
_MODULES = Option("recompute-modules", "object", ["core_attn"])
_ACTIVATIONS = Option("recompute-activations", "flag", False)
_BF16, _FP16 = Option("bf16", "flag", False), Option("fp16", "flag", False)
_FP32_SUMS = Option("accumulate-allreduce-grads-in-fp32", "flag", False)
_BF16_SUMS = Option("grad-reduce-in-bf16", "flag", False)
_FP8 = Option("fp8-format", "choice", choices=("e4m3", "hybrid"))
_FP8_RECIPE = Option("fp8-recipe", "text", "delayed")
_FP8_GATHER = Option("fp8-param-gather", "flag", False)
_FP4 = Option("fp4-format", "choice", choices=("e2m1",))
_OPTIMIZER = Option("optimizer", "text", "adam")
_OFFLOAD = Option("optimizer-cpu-offload", "flag", False)
_FRACTION = Option("optimizer-offload-fraction", "number", 1.0)
_ATTENTION = Option("attention-backend", "choice", "auto", choices=("auto", "flash", "fused", "unfused"))
_FLASH = Option("use-flash-attn", "flag", False)
_DISPATCHER = Option("moe-token-dispatcher-type", "choice", "allgather", choices=("allgather", "alltoall", "flex"))
_FLEX = Option("moe-flex-dispatcher-backend", "choice", "deepep", choices=("deepep", "hybridep"))
_DEEPEP = Option("moe-enable-deepep", "flag", False)
_EP_OVERLAP = Option("overlap-moe-expert-parallel-comm", "flag", False)
_BALANCED = Option("moe-router-force-load-balancing", "flag", False)
_CAPACITY = Option("moe-expert-capacity-factor", "number")

#: The elements of a bucket where nobody says so, but for many ranks, and the bytes of one that is reduced in fp32.
_BUCKET_ELEMENTS, _FP32 = 40_000_000, 4
_RECIPES = {"delayed": "fp8-delayed", "tensorwise": "fp8-current", "blockwise": "fp8-block", "mxfp8": "mxfp8"}
_STRATEGIES = {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"}
_ATTENTIONS = {"auto": None, "flash": "flash", "fused": "cudnn", "unfused": "math"}


def _read_data(given: Given) -> Settings:
    name, own = _data(given)
    found: dict[str, Any] = {name: None, **own}
    if given[_FP8_GATHER.name] and name in ("zero1", "zero2"):
        fix = "give --overlap-param-gather too, or leave it out"
        raise given.refused(_FP8_GATHER.name, f"gathers of {name} in eight bits are not simulated", fix)
    if given[_FP8_GATHER.name] and name == "fsdp":
        found["options.parameter_dtype"] = "float8_e4m3fn"
    if name in ("ddp", "zero1", "zero2"):
        width = 2 if given[_BF16_SUMS.name] else _FP32
        bucket = (given[_BUCKET.name] or _BUCKET_ELEMENTS) * width
        found |= {"bucket_size": bucket, "first_bucket_size": bucket}
    return found


def _data(given: Given) -> tuple[str, Settings]:
    """Return the parallelism of the replicas, and its options."""
    if given[_TORCH_FSDP.name]:
        return "fsdp", {}
    if given[_FSDP.name]:
        return _STRATEGIES[given[_STRATEGY.name]], {}
    if not given[_OPTIMIZER_SHARDED.name]:
        return ("ddp" if given[_REDUCES.name] else "dp"), {}
    if not given[_GATHERS.name]:
        return "zero1", {}
    if not given[_REDUCES.name]:
        raise given.refused(_GATHERS.name, "needs --overlap-grad-reduce", "give both")
    return "fsdp", {} if given[_PP.name] > 1 else {"options.reshard": "no", "options.reduce": "last"}


def _write_data(job: Job) -> Settings:
    name = next((one for one in ("fsdp", "zero2", "zero1", "ddp", "dp") if one in job.settings), "dp")
    bucket = job.get("bucket_size") if name in ("ddp", "zero1", "zero2") else None
    width = 2 if job.settings.get("gradient_dtype") == "bfloat16" else _FP32
    found: dict[str, Any] = {_BUCKET.name: None if bucket is None else max(int(bucket) // width, 1)}
    kept = job.get("options.reshard") == "no" or (job.size("pp") > 1 and job.get("options.reshard") is None)
    if name == "zero2" or (name == "fsdp" and not kept):
        strategy = next(theirs for theirs, ours in _STRATEGIES.items() if ours == name)
        return found | {_FSDP.name: True, _STRATEGY.name: strategy, _OPTIMIZER_SHARDED.name: True}
    if name == "fsdp" and str(job.get("options.parameter_dtype") or "").startswith("float8"):
        found[_FP8_GATHER.name] = True
    if name in ("zero1", "fsdp"):
        gathers = True if name == "fsdp" else None
        return found | {_OPTIMIZER_SHARDED.name: True, _REDUCES.name: True, _GATHERS.name: gathers}
    return found | {_REDUCES.name: True if name == "ddp" else None}


def _read_tensor(given: Given) -> Settings:
    if given[_TP.name] == 1:
        return {}
    found = {"tp": given[_TP.name], "sequence_parallel": given[_SEQUENCE.name]}
    found |= {"options.async_allreduce": "no"} if given[_AFTER.name] else {}
    return found | ({"options.overlap": "ring"} if given[_OVERLAP.name] else {})


def _write_tensor(job: Job) -> Settings:
    overlapped = job.get("options.overlap") == "ring"
    found = {_TP.name: job.size("tp"), _SEQUENCE.name: True if job.get("sequence_parallel") else None}
    after = True if job.get("options.async_allreduce") == "no" else None
    return {**found, _OVERLAP.name: True if overlapped else None, _AFTER.name: after}


def _read_pipeline(given: Given) -> Settings:
    stages, layers = given[_PP.name], given.model.size("layers")
    if stages == 1:
        return {}
    virtual, chunk = given[_STAGES.name], given[_CHUNK.name]
    if chunk is not None:
        if layers is None or layers % (stages * chunk):
            what = f"{chunk} layers do not divide those of {stages} ranks"
            raise given.refused(_CHUNK.name, what, f"give --{_STAGES.name}")
        virtual = layers // (stages * chunk)
    found: dict[str, Any] = {"pp": stages, "schedule": "1f1b"}
    if (virtual or 1) > 1:
        found |= {"schedule": "interleaved", "virtual_stages": virtual}
    if layers is not None and layers % (stages * (virtual or 1)) == 0:
        found["options.stages"] = "equal"
    parts = given[_TP.name] > 1 and not given[_SEQUENCE.name]  # by its default, --scatter-gather-tensors-in-pipeline
    return found | ({"options.sends": "parts"} if parts else {})


def _write_pipeline(job: Job) -> Settings:
    several = job.size("pp") > 1 and job.get("schedule") == "interleaved"
    return {_PP.name: job.size("pp"), _STAGES.name: job.get("virtual_stages") if several else None}


def _read_context(given: Given) -> Settings:
    ranks, way = given[_CP.name], given[_CP_TYPE.name]
    if ranks == 1:
        return {}
    if way not in ("p2p", "all_gather"):
        raise given.refused(_CP_TYPE.name, f"'{way}' is not simulated", "known: p2p, all_gather")
    return {"cp": ranks, **({"options.cp": "all-gather"} if way == "all_gather" else {})}


def _write_context(job: Job) -> Settings:
    gathered = job.get("options.cp") == "all-gather"
    return {_CP.name: job.size("cp"), _CP_TYPE.name: "all_gather" if gathered else None}


def _read_experts(given: Given) -> Settings:
    if given[_EP.name] == 1:
        return {}
    if not given[_DEEPEP.name] and given[_DISPATCHER.name] == "allgather":
        fix = "give --moe-token-dispatcher-type alltoall or flex"
        raise given.refused(_DISPATCHER.name, "'allgather', its default, is not simulated", fix)
    flexible = given[_DEEPEP.name] or given[_DISPATCHER.name] == "flex"
    found: dict[str, Any] = {"ep": given[_EP.name]}
    if flexible:
        found["ep_transport"] = "deepep" if given[_DEEPEP.name] else given[_FLEX.name]
    if given[_EP_OVERLAP.name]:
        found["ep_overlap"] = True
    if given[_BALANCED.name]:
        found["options.load"] = "balanced"
    return found | ({} if given[_CAPACITY.name] is None else {"options.capacity": given[_CAPACITY.name]})


def _write_experts(job: Job) -> Settings:
    if job.size("ep") == 1:
        return {_EP.name: 1}
    transport = job.get("ep_transport")
    return {
        _EP.name: job.size("ep"),
        _DISPATCHER.name: "alltoall" if transport == "nccl" else "flex",
        _FLEX.name: None if transport == "nccl" else transport,
        _EP_OVERLAP.name: True if job.get("ep_overlap") else None,
        _BALANCED.name: True if job.get("options.load") == "balanced" else None,
        _CAPACITY.name: job.get("options.capacity"),
    }


def _read_batch(given: Given) -> Settings:
    whole = given[_GLOBAL.name]
    return {
        "micro_batch_size": given[_MICRO.name],
        **({"micro_batches": 1} if whole is None else {"global_batch_size": whole}),
    }


def _read_recompute(given: Given) -> Settings:
    granularity = given[_GRANULARITY.name] or ("selective" if given[_ACTIVATIONS.name] else None)
    if granularity is None:
        return {}
    if granularity == "selective":
        modules = given[_MODULES.name]
        if (modules if isinstance(modules, list) else [modules]) != ["core_attn"]:
            fix = "give core_attn alone, or --ignore-unknown and --recompute discard=NAME"
            raise given.refused(_MODULES.name, f"'{modules}' is not simulated", fix)
        return {"recompute": "selective"}
    per_unit = given[_LAYERS.name] or 1
    if given[_METHOD.name] == "block" or per_unit != 1:
        key = _METHOD if given[_METHOD.name] == "block" else _LAYERS
        what = "recomputing some layers, or several at once, is not simulated"
        raise given.refused(key.name, what, "give --recompute-method uniform --recompute-num-layers 1")
    return {"recompute": "full"}


def _write_recompute(job: Job) -> Settings:
    policy = job.get("recompute")
    if policy in ("full", "checkpoint"):
        return {_GRANULARITY.name: "full", _METHOD.name: "uniform", _LAYERS.name: 1}
    return {_GRANULARITY.name: "selective" if policy == "selective" else None}


def _read_dtypes(given: Given) -> Settings:
    if given[_BF16.name] and given[_FP16.name]:
        raise given.refused(_FP16.name, f"is given together with {_BF16.name}", "give one of the two")
    if given[_BF16.name]:
        return {"dtype": "bfloat16", "gradient_dtype": "bfloat16" if given[_BF16_SUMS.name] else "float32"}
    if given[_FP16.name]:
        return {"dtype": "float16", "gradient_dtype": "float32" if given[_FP32_SUMS.name] else "float16"}
    return {"dtype": "float32"}


def _write_dtypes(job: Job) -> Settings:
    dtype, summed = job.settings.get("dtype"), job.settings.get("gradient_dtype")
    return {
        _BF16.name: True if dtype == "bfloat16" else None,
        _FP16.name: True if dtype == "float16" else None,
        _FP32_SUMS.name: True if dtype == "float16" and summed == "float32" else None,
        _BF16_SUMS.name: True if dtype == "bfloat16" and summed == "bfloat16" else None,
    }


def _read_stack(given: Given) -> Settings:
    if not given.model.described:
        return {}
    found: dict[str, Any] = {"stack": "megatron"}
    if given[_FP4.name] is not None:
        found = {"stack": "te-fp8", "products": "nvfp4"}
    elif given[_FP8.name] is not None:
        recipe = given[_FP8_RECIPE.name]
        if recipe not in _RECIPES:
            raise given.refused(_FP8_RECIPE.name, f"'{recipe}' is not simulated", f"known: {', '.join(_RECIPES)}")
        found = {"stack": "te-fp8", "products": _RECIPES[recipe]}
    name = given[_OPTIMIZER.name]
    if name not in ("adam", "sgd"):
        raise given.refused(_OPTIMIZER.name, f"'{name}' is not simulated", "known: adam, sgd")
    half = given[_BF16.name] or given[_FP16.name]
    found["optimizer"] = "sgd" if name == "sgd" else "master-adamw" if half else "fused-adamw"
    attention = "flash" if given[_FLASH.name] else _ATTENTIONS[given[_ATTENTION.name]]
    return found | ({} if attention is None else {"attention": attention})


def _write_stack(job: Job) -> Settings:
    if not job.model.described:
        return {}
    attention = next((theirs for theirs, ours in _ATTENTIONS.items() if ours == job.settings.get("attention")), "auto")
    products = job.settings.get("products") or ("fp8-delayed" if job.get("stack") == "te-fp8" else None)
    recipe = next((theirs for theirs, ours in _RECIPES.items() if ours == products), None)
    return {
        _FP8.name: None if recipe is None else "hybrid",
        _FP8_RECIPE.name: recipe,
        _FP4.name: "e2m1" if products == "nvfp4" else None,
        _OPTIMIZER.name: "sgd" if job.settings.get("optimizer") == "sgd" else "adam",
        _ATTENTION.name: attention,
    }


def _read_offload(given: Given) -> Settings:
    if given[_OFFLOAD.name] and given[_FRACTION.name] != 1.0:
        raise given.refused(_FRACTION.name, "a part of the optimizer on the CPU is not simulated", "write 1.0")
    return {"offload": "optimizer=host"} if given[_OFFLOAD.name] else {}


def _write_offload(job: Job) -> Settings:
    offloaded = job.settings.get("offload") == "optimizer=host"
    return {_OFFLOAD.name: True, _FRACTION.name: 1.0} if offloaded else {}


def _read_dropout(given: Given) -> Settings:
    stated = {key: given[key] for key in ("hidden-dropout", "attention-dropout") if key in given.entries}
    own = given.model.sizes.get("dropout")
    if not stated:
        return {}
    if len({*stated.values()}) > 1:
        raise given.refused(
            "attention-dropout", "is not --hidden-dropout; one probability is simulated", "give both the same"
        )
    key, value = next(iter(stated.items()))
    if own is None and value:
        raise given.refused(key, f"{given.model.name or 'the model'} has no dropout", "give 0, or leave it out")
    return {"dropout": value} if own is not None and value != own else {}


def _write_dropout(job: Job) -> Settings:
    own = job.model.sizes.get("dropout", 0.0)
    value = own if job.settings.get("dropout") is None else job.settings["dropout"]
    return {"hidden-dropout": value, "attention-dropout": value} if job.model.described else {}


TABLE = (
    *MODEL_TABLE,
    Correspondence(
        "`fsdp`, `zero1`, `zero2`, `ddp`, `dp`, `bucket_size`",
        (_OPTIMIZER_SHARDED, _REDUCES, _GATHERS, _FSDP, _STRATEGY, _TORCH_FSDP, _BUCKET, _FP8_GATHER),
        _read_data,
        _write_data,
    ),
    Correspondence("`tp`, `sequence_parallel`", (_TP, _SEQUENCE, _OVERLAP, _AFTER), _read_tensor, _write_tensor),
    Correspondence("`pp`, `virtual_stages`", (_PP, _STAGES, _CHUNK), _read_pipeline, _write_pipeline),
    Correspondence("`cp`", (_CP, _CP_TYPE), _read_context, _write_context),
    Correspondence(
        "`ep`, `ep_transport`, `ep_overlap`",
        (_EP, _DISPATCHER, _FLEX, _DEEPEP, _EP_OVERLAP, _BALANCED, _CAPACITY),
        _read_experts,
        _write_experts,
    ),
    same("seq", Option("seq-length", "whole")),
    Correspondence("`seq`", (_POSITIONS,), lambda given: {}, lambda job: {_POSITIONS.name: job.settings.get("seq")}),
    Correspondence(
        "`micro_batch_size`, `global_batch_size`",
        (_MICRO, _GLOBAL),
        _read_batch,
        lambda job: {_MICRO.name: job.micro_batch_size, _GLOBAL.name: job.global_batch_size},
    ),
    Correspondence("`dtype`, `gradient_dtype`", (_BF16, _FP16, _FP32_SUMS, _BF16_SUMS), _read_dtypes, _write_dtypes),
    Correspondence(
        "`recompute`", (_GRANULARITY, _METHOD, _LAYERS, _MODULES, _ACTIVATIONS), _read_recompute, _write_recompute
    ),
    Correspondence(
        "`stack`, `products`, `optimizer`, `attention`",
        (_FP8, _FP8_RECIPE, _FP4, _OPTIMIZER, _ATTENTION, _FLASH),
        _read_stack,
        _write_stack,
    ),
    Correspondence("`offload`", (_OFFLOAD, _FRACTION), _read_offload, _write_offload),
    Correspondence(
        "`dropout`",
        (Option("hidden-dropout", "probability"), Option("attention-dropout", "probability")),
        _read_dropout,
        _write_dropout,
    ),
)

MEGATRON = Framework(
    *("megatron", "Megatron-LM with Megatron-Core 0.16", TABLE, UNMODELLED, WITHOUT_EFFECT),
    arguments=True,
    architectures=frozenset({"GPT", "Llama", "DeepSeek", "Gemma"}),
)


def as_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return arguments, a line each; those that are True have no value."""
    return [
        f"--{name}" if value is True else f"--{name} {value}" for name, value in values.items() if value is not False
    ]
