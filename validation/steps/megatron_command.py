"""A step of Megatron-LM, or of what is built on it, as a command: its sizes, its division, and what Megatron does by itself.

Megatron-LM divides layers in pairs, gives each stage of a pipeline as many layers, runs 1F1B (interleaved where a GPU has
several stages, ``chunks``), and updates fp32 copies of the parameters. Megatron-Core reduces gradients and gathers parameters
of its distributed optimizer beside the computation, once a step: ``fsdp`` that keeps what it gathered does that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from triosim.models.architectures.llama import Llama
from validation.steps.command import Command, axes
from validation.steps.rows import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How many GPUs share what. Experts are divided over ``ep`` of the replicas.

    ``data`` is what replicas share: ``dp`` nothing, ``zero1`` the optimizer, ``core`` the same as Megatron-Core does it.
    """

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    data: str = "core"

    @property
    def gpus(self) -> int:
        """How many there are."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def label(self) -> str:
        """The sizes in short."""
        said = axes(dp=self.dp, cp=self.cp, ep=self.ep, tp=self.tp, pp=self.pp) or "one GPU"
        return f"{said} x{self.chunks}" if self.chunks > 1 else said

    def micro_batches(self, record: Record, samples: int, micro_batch: int) -> int:
        """Return how many micro-batches of a replica the samples make."""
        share = self.dp * micro_batch
        record.check(not samples % share, f"a batch of {samples}", f"give a multiple of {share}")
        return samples // share

    def options(self, layers: int, micro_batches: int) -> dict[str, Any]:
        """Return the options that say so, for so many layers."""
        stages, core = self.pp * self.chunks, self.data == "core"
        kept = (
            ("reshard=no", "reduce=last") if core and self.pp == 1 and self.dp > 1 else ()
        )  # as a pipeline does anyway
        together = ("overlap=ring",) if core and self.tp > 1 else ()  # --tp-comm-overlap
        return {
            "parallel": axes(
                **{"fsdp" if core else self.data: self.dp}, cp=self.cp, ep=self.ep, tp=self.tp, pp=self.pp
            ),
            "tp_style": "megatron" if self.tp > 1 else None,
            "schedule": None if self.pp == 1 else "interleaved" if self.chunks > 1 else "1f1b",
            "virtual_stages": self.chunks if self.chunks > 1 else None,
            "micro_batches": micro_batches if micro_batches > 1 else None,
            "sequence_parallel": core and self.tp > 1,
            "option": (*kept, *together, "stages=equal" if stages > 1 and not layers % stages else None),
        }


def division_of(record: Record, gpus: int, data: str = "core") -> Division:
    """Return the division of a row whose columns are the axes; what is left of the GPUs are replicas, or share them."""
    sizes = {axis: record.whole(axis) for axis in ("tp", "pp", "cp") if record.has(axis)}
    shared = math.prod(sizes.values())
    record.check(not gpus % shared, f"{gpus} GPUs", f"tp, pp and cp make {shared}")
    replicas = gpus // shared
    experts = record.whole("ep") if record.has("ep") else 1
    whole = record.has("fsdp") and record.text("fsdp") != "0"
    return Division(
        dp=replicas,
        ep=math.gcd(experts, replicas),
        chunks=record.whole("vp") if record.has("vp") else 1,
        data="fsdp" if whole else data,
        **sizes,
    )


def megatron_command(
    model: str, layers: int, division: Division, *, micro_batch: int, micro_batches: int, **options: Any
) -> Command:
    """Return the command of a model; further options by name are added, those of ``option`` to Megatron's own."""
    said = {"micro_batch_size": micro_batch} | division.options(layers, micro_batches)
    said |= {**options, "option": (*said["option"], *options.get("option", ()))}
    return Command.of(model, **said)


def gpt(*, layers: int, hidden: int, heads: int, vocab: int, sequence: int) -> str:
    """Return the name of a GPT of Megatron's with these sizes."""
    return f"gpt3-175b(layers={layers}, hidden={hidden}, heads={heads}, vocab={vocab}, sequence={sequence})"


def llama_flops(model: Llama, sequence: int) -> float:
    """Return the FLOPs of a token as Megatron-LM and NeMo count them, with its experts; attention is not halved."""
    hidden, heads = model.hidden, model.heads * model.width
    kv_heads = (model.kv_heads or model.heads) * model.width
    experts = model.experts_per_token if model.experts else 1
    attention = 2 * hidden * heads + 2 * hidden * kv_heads + 2 * heads * sequence
    return 6.0 * (model.layers * (attention + 3 * hidden * model.feed_forward * experts) + hidden * model.vocab)
