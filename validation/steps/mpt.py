"""Training steps of MPT under llm-foundry's FSDP on 8 to 512 GPUs, as MosaicML published them (2023; Apache-2.0).

The models have the sizes of llm-foundry's YAML files, and as many positions as a sample has tokens. Composer computes in bf16
from fp32 shares, in fp8 by Transformer Engine. ``DEFAULT`` reduces gradients in fp32 and ``PURE`` in bf16; each micro-batch
gathers and reduces; checkpointed blocks run again. Attention is the first FlashAttention in Triton (``attn_impl: triton`` of
their YAML files), and metrics of each batch are computed, as by default (``use_train_metrics``). Nodes have eight GPUs, those
of A100s eight cards of 200 Gb/s with RoCE; H100s are taken to be in DGX H100s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from triosim.models.catalogue import MODELS
from validation.steps.command import Command, CommandFormat, axes
from validation.steps.rows import Record, Row

_GPUS = {"h100_80gb": "H100-SXM", "a100_80gb": "A100-SXM-80GB", "a100_40gb": "A100-SXM-40GB"}
_PRODUCTS = {"amp_bf16": None, "bf16": None, "amp_fp8": "fp8-delayed"}
_REDUCED = {"DEFAULT": "fp32", "PURE": "bf16"}
#: Parameters are freed after the forward pass, or not before the step ends.
_RESHARD = {"FULL_SHARD": None, "SHARD_GRAD_OP": "reshard=no"}
_YES_OR_NO = ("False", "True")


class LlmFoundry(CommandFormat):
    """Rows of llm-foundry's benchmarks."""

    name = "mpt"
    columns = (
        *("model", "seq_len", "gpus", "gpu", "precision", "fsdp_mixed_precision", "sharding_strategy"),
        *("activation_checkpointing", "micro_batch_size", "grad_accum", "step_time_s"),
    )
    tables = ("steps/mpt_llm_foundry.csv",)
    sample = 26
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.12}

    def read(self, record: Record) -> Row:
        """One row a record."""
        known = [name.removeprefix("mpt-") for name in MODELS if name.startswith("mpt-")]
        model, gpus, gpu = record.one_of("model", known), record.whole("gpus"), record.one_of("gpu", tuple(_GPUS))
        length, samples, count = (record.whole(name) for name in ("seq_len", "micro_batch_size", "grad_accum"))
        again = record.one_of("activation_checkpointing", _YES_OR_NO) == "True"
        if record.has("activation_cpu_offload"):
            offloaded = record.one_of("activation_cpu_offload", _YES_OR_NO) == "True"
            record.check(
                not offloaded, "activations are kept on the host", "rows that keep them on the GPU are predicted"
            )
        resharded = _RESHARD[record.one_of("sharding_strategy", tuple(_RESHARD))]
        command = Command.of(
            f"mpt-{model}(sequence={length})",
            gpu=_GPUS[gpu],
            topology=f"dgx-a100(gpus={gpus}, network=roce)" if gpu.startswith("a100") and gpus > 8 else None,
            parallel=axes(fsdp=gpus),
            attention="triton",
            micro_batch_size=samples,
            micro_batches=count if count > 1 else None,
            recompute="checkpoint" if again else None,
            products=_PRODUCTS[record.one_of("precision", tuple(_PRODUCTS))],
            gradient_dtype=_REDUCED[record.one_of("fsdp_mixed_precision", tuple(_REDUCED))],
            option=("shard_dtype=fp32", resharded),
        )
        label = f"{model} s={length} on {gpus} {gpu} {samples}x{count} {record.text('precision')}"
        label += (" checkpoints" if again else "") + (" kept" if resharded else "")
        return Row(label, model, record.number("step_time_s"), "s", command, gpu=_GPUS[gpu], framework="llm-foundry")


FORMATS = (LlmFoundry(),)
