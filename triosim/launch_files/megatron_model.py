"""Megatron-LM's arguments about the model, those that change no step, and those that change it as is not simulated."""

from __future__ import annotations

from triosim.config import Option
from triosim.launch_files.correspondence import Correspondence, Given, Settings, of_model
from triosim.launch_files.job import Job

#: Arguments that say what the model is made of; they are written for a Llama, and read for nothing.
_GATED, _NORM = Option("swiglu", "flag", False), Option("normalization", "text", "LayerNorm")
_NO_BIAS, _POSITION = Option("disable-bias-linear", "flag", False), Option("position-embedding-type", "text")
_UNTIED, _GROUPED = (
    Option("untie-embeddings-and-output-weights", "flag", False),
    Option("group-query-attention", "flag", False),
)
_GROUPS, _CHANNELS = Option("num-query-groups", "whole"), Option("kv-channels", "whole")
_QKV_BIAS, _QK_NORM = Option("add-qkv-bias", "flag", False), Option("qk-layernorm", "flag", False)
_EXPERTS, _TOP = Option("num-experts", "whole"), Option("moe-router-topk", "whole", 2)
_WIDTH, _TOGETHER = Option("moe-ffn-hidden-size", "whole"), Option("moe-grouped-gemm", "flag", False)


def _read_nothing(given: Given) -> Settings:
    return {}


def _write_kind(job: Job) -> Settings:
    if job.model.architecture != "Llama":
        return {}
    sizes = job.model.sizes
    return {
        _GATED.name: True,
        _NORM.name: "RMSNorm",
        _NO_BIAS.name: True,
        _POSITION.name: "rope",
        _UNTIED.name: True if not sizes["tied_embeddings"] else None,
        _QKV_BIAS.name: True if sizes["qkv_bias"] else None,
        _QK_NORM.name: True if sizes["qk_norm"] else None,
        _CHANNELS.name: sizes["head_dim"],
    }


def _read_groups(given: Given) -> Settings:
    ours, theirs = given.model.size("kv_heads"), given[_GROUPS.name]
    if given[_GROUPED.name] and ours is not None and theirs is not None and theirs != ours:
        what = f"{theirs} is not the kv heads of {given.model.name}, which are {ours}"
        raise given.refused(_GROUPS.name, what, "name the model that the file trains")
    return {}


def _write_groups(job: Job) -> Settings:
    shared, heads = job.model.size("kv_heads"), job.model.size("heads")
    if shared is None or shared == heads:
        return {}
    return {_GROUPED.name: True, _GROUPS.name: shared}


def _read_experts(given: Given) -> Settings:
    for key, name in ((_EXPERTS, "experts"), (_TOP, "experts_per_token")):
        ours = given.model.size(name)
        if key.name in given.entries and ours and given[key.name] != ours:
            what = f"{given[key.name]} is not the {name.replace('_', ' ')} of {given.model.name}, which are {ours}"
            raise given.refused(key.name, what, "name the model that the file trains")
    return {}


def _write_experts(job: Job) -> Settings:
    experts = job.model.size("experts")
    if not experts:
        return {}
    width = job.model.size("expert_width") or job.model.size("feed_forward")
    return {
        _EXPERTS.name: experts,
        _TOP.name: job.model.size("experts_per_token"),
        _WIDTH.name: width,
        _TOGETHER.name: True,
    }


MODEL_TABLE = (
    of_model("layers", Option("num-layers", "whole")),
    of_model("hidden", Option("hidden-size", "whole")),
    of_model("feed_forward", Option("ffn-hidden-size", "whole")),
    of_model("heads", Option("num-attention-heads", "whole")),
    Correspondence("the model", (_GROUPED, _GROUPS), _read_groups, _write_groups),
    Correspondence(
        "the model",
        (_GATED, _NORM, _NO_BIAS, _POSITION, _UNTIED, _QKV_BIAS, _QK_NORM, _CHANNELS),
        _read_nothing,
        _write_kind,
    ),
    Correspondence("the model", (_EXPERTS, _TOP, _WIDTH, _TOGETHER), _read_experts, _write_experts),
)

UNMODELLED = (
    Option("expert-tensor-parallel-size", "object"),
    Option("pipeline-model-parallel-layout", "text"),
    Option("decoder-first-pipeline-num-layers", "object"),
    Option("decoder-last-pipeline-num-layers", "object"),
    Option("account-for-embedding-in-pipeline-split", "flag", False),
    Option("account-for-loss-in-pipeline-split", "flag", False),
    Option("num-distributed-optimizer-instances", "object", "1"),
    Option("cpu-offloading", "flag", False),
    Option("cpu-offloading-num-layers", "object", "0"),
    Option("fine-grained-activation-offloading", "flag", False),
    Option("use-precision-aware-optimizer", "flag", False),
    Option("multi-latent-attention", "flag", False),
    Option("mtp-num-layers", "object"),
    Option("rampup-batch-size", "object"),
    Option("deterministic-mode", "flag", False),
    Option("distribute-saved-activations", "flag", False),
    Option("first-last-layers-bf16", "flag", False),
    Option("enable-cuda-graph", "flag", False),
    Option("external-cuda-graph", "flag", False),
    Option("cuda-graph-impl", "text", "none"),
    Option("moe-shared-expert-overlap", "flag", False),
    Option("overlap-param-gather-with-optimizer-step", "flag", False),
    Option("no-overlap-p2p-communication", "flag", False),
    Option("no-scatter-gather-tensors-in-pipeline", "flag", False),
    Option("window-size", "object"),
    *(
        Option(f"no-{kernel}-fusion", "flag", False)
        for kernel in ("masked-softmax", "bias-gelu", "bias-swiglu", "bias-dropout", "rope", "gradient-accumulation")
    ),
    Option("apply-query-key-layer-scaling", "flag", False),
    Option("defer-embedding-wgrad-compute", "flag", False),
    Option("use-tp-pp-dp-mapping", "flag", False),
    Option("microbatch-group-size-per-virtual-pipeline-stage", "object"),
    Option("hierarchical-context-parallel-sizes", "object"),
)

#: Arguments that change no step; those that end in a dash begin others.
WITHOUT_EFFECT = frozenset(
    (
        *("lr", "lr-", "min-lr", "decoupled-", "weight-decay", "weight-decay-", "clip-grad", "adam-", "sgd-"),
        *("start-weight-", "train-", "exit-", "eval-", "full-validation", "skip-train", "seed", "init-method-"),
        *("use-cpu-initialization", "save", "save-", "load", "no-save-", "no-load-", "ckpt-", "dist-ckpt-"),
        *("async-save", "use-dist-ckpt", "finetune", "pretrained-checkpoint", "auto-detect-ckpt-format"),
        *("non-persistent-", "override-opt_param-scheduler", "use-checkpoint-", "log-", "tensorboard-", "wandb-"),
        *("timing-log-", "no-log-", "one-logger-", "enable-one-logger", "record-memory-history", "data-"),
        *("train-data-path", "valid-data-path", "test-data-path", "split", "mock-data", "num-workers"),
        *("dataloader-type", "tokenizer-", "vocab-", "merge-file", "make-vocab-size-divisible-by"),
        *("padded-vocab-size", "vocab-size", "tiktoken-", "reset-position-ids", "reset-attention-mask"),
        *("eod-mask-loss", "no-create-attention-mask-in-dataloader", "distributed-backend"),
        *("distributed-timeout-minutes", "local-rank", "use-mcore-models", "transformer-impl", "use-legacy-"),
        *("attention-softmax-in-fp32", "cross-entropy-loss-fusion", "cross-entropy-fusion-impl"),
        *("apply-layernorm-1p", "norm-epsilon", "layernorm-epsilon", "rotary-", "use-rotary-position-embeddings"),
        *("use-rope-scaling", "rope-", "no-position-embedding", "squared-relu", "initial-loss-scale", "loss-scale"),
        *("loss-scale-window", "min-loss-scale", "hysteresis", "check-for-nan-in-loss-and-grad"),
        *("no-check-for-nan-in-loss-and-grad", "fp8-margin", "fp8-amax-", "fp8-interval", "bias-"),
        *("use-ring-exchange-p2p", "moe-router-load-balancing-type", "moe-aux-loss-coeff", "moe-z-loss-coeff"),
        *("moe-permute-fusion", "moe-router-dtype", "moe-router-score-function", "moe-router-enable-expert-bias"),
        *("moe-router-bias-update-rate", "moe-router-pre-softmax", "moe-router-topk-", "moe-router-group-topk"),
        *("moe-router-num-groups", "moe-router-fusion", "moe-per-layer-logging", "manual-gc", "manual-gc-interval"),
        *("profile", "profile-", "use-pytorch-profiler", "no-initialization", "empty-unused-memory-"),
        *("calculate-per-token-loss", "nccl-communicator-config-path", "rerun-mode", "disable-msc"),
        *("no-barrier-with-level-1-timing", "overlap-p2p-communication-warmup-flush", "spec"),
    )
)
