"""The arguments of transformers' Trainer (``TrainingArguments``, transformers 5), as JSON or on a script's command line.

Without FSDP and DeepSpeed, bf16 and fp16 are autocast; with FSDP parameters are kept in fp32, and gathered and reduced in the
dtype. They are read; nothing is written for them.
"""

from __future__ import annotations

from typing import Any

from triosim.config import Option
from triosim.config.stacks import STACKS
from triosim.launch_files.correspondence import Correspondence, Framework, Given, Settings, switches
from triosim.launch_files.job import Job

_MICRO = Option("per_device_train_batch_size", "whole", 8)
_STEPS = Option("gradient_accumulation_steps", "whole", 1)
_AGAIN, _AGAIN_TOO = Option("gradient_checkpointing", "flag", False), Option("activation_checkpointing", "flag", False)
_BF16, _FP16 = Option("bf16", "flag", False), Option("fp16", "flag", False)
_TF32 = Option("tf32", "flag", False)
_COMPILE = Option("torch_compile", "flag", False)
_OPTIMIZER = Option("optim", "text", "adamw_torch_fused")
_BUCKET = Option("ddp_bucket_cap_mb", "number")
_FSDP = Option("fsdp", "object")
_UNIT_AGAIN = Option("fsdp_config.activation_checkpointing", "flag", False)
_RESHARD = Option("fsdp_config.reshard_after_forward", "object")

_OPTIMIZERS = {
    "adamw_torch_fused": "fused-adamw",
    "adamw_torch": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "fused-adamw",
    "sgd": "sgd",
}
#: The words of ``fsdp`` and what parameters do after the forward pass; None are those that change no step.
_WORDS: dict[str, str | None] = {"full_shard": "", "shard_grad_op": "no", "auto_wrap": None}


def _is_sharded(given: Given) -> bool:
    """Whether parameters are FSDP's, by the Trainer's own arguments, or else by accelerate's configuration."""
    own = given[_FSDP.name]
    return "fsdp" in given.launched.settings if own is None else _is_asked(own)


def _is_asked(fsdp: Any) -> bool:
    return fsdp not in (None, "", [], False, "False", "false")


def _is_of_deepspeed(given: Given) -> bool:
    return given.launched.by_deepspeed or ("deepspeed" in given.entries and bool(given.entries["deepspeed"].value))


def _read_batch(given: Given) -> Settings:
    found = {"micro_batch_size": given[_MICRO.name], "micro_batches": given[_STEPS.name]}
    launched = given.launched.settings.get("micro_batches")
    return found if launched is None or _STEPS.name in given.entries else {**found, "micro_batches": launched}


def _read_data(given: Given) -> Settings:
    again = {"recompute": "checkpoint"} if given[_UNIT_AGAIN.name] else {}
    if _is_of_deepspeed(given) and _is_asked(given[_FSDP.name]):
        raise given.refused(_FSDP.name, "is given together with deepspeed", "give one, as the Trainer asks")
    if _is_of_deepspeed(given) or (_is_sharded(given) and given[_FSDP.name] is None):
        return {}
    if not _is_sharded(given):
        bucket = given[_BUCKET.name]
        return {"ddp": None, **({} if bucket is None else {"bucket_size": bucket * 2**20})}
    found: dict[str, Any] = {"fsdp": None}
    for word in _words(given[_FSDP.name]):
        if word not in _WORDS:
            raise given.refused(_FSDP.name, f"'{word}' is not simulated", f"known: {', '.join(_WORDS)}")
        if _WORDS[word]:
            found["options.reshard"] = _WORDS[word]
    if str(given[_RESHARD.name]).lower() == "false":
        found["options.reshard"] = "no"
    return {**found, **again}


def _words(value: Any) -> list[str]:
    """Return the words of ``fsdp``; true is none of them."""
    if isinstance(value, list):
        return list(map(str, value))
    return [] if value in (True, "True", "true") else str(value).split()


def _dtype(given: Given) -> str | None:
    return "bfloat16" if given[_BF16.name] else "float16" if given[_FP16.name] else None


def _read_dtypes(given: Given) -> Settings:
    """Return the dtypes; a configuration of accelerate has those that the Trainer's arguments do not say."""
    if given[_BF16.name] and given[_FP16.name]:
        raise given.refused(_FP16.name, f"is given together with {_BF16.name}", "give one of the two")
    dtype = _dtype(given)
    if not given.model.described or (dtype is None and "dtype" in given.launched.settings):
        return {}
    if _is_of_deepspeed(given):  # its file says so itself; of accelerate's keys the Trainer's dtype comes first
        return {} if dtype is None or "deepspeed" in given.entries else {"dtype": dtype, "gradient_dtype": dtype}
    if dtype is None:
        return {"dtype": "float32"}
    if _is_sharded(given):
        return {"dtype": dtype, "gradient_dtype": dtype, "options.shard_dtype": "float32"}
    return {"dtype": dtype, "precision": "mixed"}


def _read_stack(given: Given) -> Settings:
    name, launched = given[_OPTIMIZER.name], given.launched.settings
    if name not in _OPTIMIZERS:
        raise given.refused(_OPTIMIZER.name, f"'{name}' is not simulated", f"known: {', '.join(_OPTIMIZERS)}")
    if not given.model.described:
        return {}
    compiled = given[_COMPILE.name] or launched.get("stack") == "compiled"
    halved = (_dtype(given) or launched.get("dtype", "float32")) != "float32"
    optimizer = "master-adamw" if _is_of_deepspeed(given) and halved else _OPTIMIZERS[name]
    found = {"stack": "compiled" if compiled else "eager", "optimizer": optimizer}
    return found | ({} if halved or not given[_TF32.name] else {"products": "tf32"})


def _write_data(job: Job) -> Settings:
    if job.size("fsdp") > 1:
        return {_FSDP.name: "shard_grad_op" if job.get("options.reshard") == "no" else "full_shard"}
    bucket = job.settings.get("bucket_size")
    return {_BUCKET.name: None if bucket is None else int(bucket) // 2**20}


def _write_dtypes(job: Job) -> Settings:
    dtype = job.settings.get("dtype")
    return {_BF16.name: True if dtype == "bfloat16" else None, _FP16.name: True if dtype == "float16" else None}


def _write_stack(job: Job) -> Settings:
    if not job.model.described:
        return {}
    stack = STACKS[job.get("stack")]
    optimizer = job.get("optimizer") or stack.optimizer
    name = next((theirs for theirs, ours in _OPTIMIZERS.items() if ours == optimizer), None)
    fast = True if job.settings.get("products") == "tf32" else None
    return {_COMPILE.name: True if stack.name == "compiled" else None, _OPTIMIZER.name: name, _TF32.name: fast}


TRAINER = Framework(
    "transformers",
    "transformers 5",
    (
        Correspondence(
            "`micro_batch_size`, `micro_batches`",
            (_MICRO, _STEPS),
            _read_batch,
            lambda job: {_MICRO.name: job.micro_batch_size, _STEPS.name: job.micro_batches},
        ),
        Correspondence(
            "`ddp`, `fsdp`, `reshard`, `bucket_size`", (_FSDP, _BUCKET, _UNIT_AGAIN, _RESHARD), _read_data, _write_data
        ),
        Correspondence("`dtype`, `precision`", (_BF16, _FP16), _read_dtypes, _write_dtypes),
        Correspondence("`stack`, `optimizer`, `products`", (_COMPILE, _OPTIMIZER, _TF32), _read_stack, _write_stack),
        Correspondence(
            "`recompute`",
            (_AGAIN, _AGAIN_TOO),
            lambda given: {"recompute": "checkpoint"} if given[_AGAIN.name] or given[_AGAIN_TOO.name] else {},
            lambda job: {_AGAIN.name: True if job.get("recompute") == "checkpoint" else None},
        ),
    ),
    unmodelled=(
        *switches("use_liger_kernel", "auto_find_batch_size", "use_cpu", "full_determinism"),
        *switches("fsdp_config.offload_params", "fsdp_config.cpu_offload"),
        Option("torch_empty_cache_steps", "object"),
        Option("parallelism_config", "object"),
        Option("fp16_backend", "object", "auto"),
    ),
    without_effect=frozenset(
        (
            *("output_dir", "overwrite_output_dir", "num_train_epochs", "max_steps", "learning_rate", "lr_", "warmup_"),
            *(
                "weight_decay",
                "adam_",
                "optim_args",
                "optim_target_modules",
                "average_tokens_across_devices",
                "max_grad_norm",
            ),
            *("label_", "bf16_full_eval", "fp16_full_eval", "gradient_checkpointing_", "activation_checkpointing_"),
            *(
                "torch_compile_",
                "liger_",
                "use_cache",
                "neftune_",
                "logging_",
                "include_",
                "log_",
                "disable_tqdm",
                "report_to",
            ),
            *("run_name", "project", "trackio_", "eval_", "evaluation_strategy", "per_device_eval_batch_size"),
            *("prediction_loss_only", "batch_eval_metrics", "save_", "enable_jit_checkpoint", "push_to_hub", "hub_"),
            *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip"),
            *(
                "restore_callback_states_from_checkpoint",
                "seed",
                "data_seed",
                "accelerator_config",
                "accelerator_config.",
            ),
            *(
                "dataloader_",
                "remove_unused_columns",
                "train_sampling_strategy",
                "length_column_name",
                "group_by_length",
            ),
            *("ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend", "ddp_timeout"),
            *("fsdp_config", "fsdp_config.", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "debug"),
            *(
                "skip_memory_metrics",
                "do_train",
                "do_eval",
                "do_predict",
                "resume_from_checkpoint",
                "local_rank",
                "deepspeed",
            ),
            *(
                "model_",
                "dataset_",
                "tokenizer_",
                "trust_remote_code",
                "config_name",
                "cache_dir",
                "block_size",
                "train_file",
            ),
            *(
                "validation_",
                "preprocessing_",
                "token",
                "use_fast_tokenizer",
                "streaming",
                "mp_parameters",
                "jit_mode_eval",
            ),
        )
    ),
    of_script=frozenset({"seq"}),
)
