"""A step of Megatron-LM, or of what is built on it, as a command: its sizes, its division, and what Megatron does by itself.

Megatron-LM divides layers in pairs, gives each stage of a pipeline as many layers, runs 1F1B (interleaved where a GPU has
several stages, ``chunks``), and updates fp32 copies of the parameters. Megatron-Core reduces gradients and gathers parameters
of its distributed optimizer beside the computation, once a step: ``fsdp`` that keeps what it gathered does that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triosim.models.architectures.llama import Llama
from validation.steps.command import Command, axes
from validation.steps.rows import Record, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How many GPUs share what. Experts are divided over ``ep`` of the replicas.

    ``data`` is what replicas share: ``dp`` nothing, ``zero1`` the optimizer, ``core`` the same as Megatron-Core does it. Ranks
    of ``tp`` divide activations ``by_sequence``, which Megatron-Core does by default.
    """

    dp: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    data: str = "core"
    by_sequence: bool | None = None

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
        by_sequence = self.tp > 1 and (core if self.by_sequence is None else self.by_sequence)
        kept = (
            ("reshard=no", "reduce=last") if core and self.pp == 1 and self.dp > 1 else ()
        )  # as a pipeline does anyway
        together = ("overlap=ring",) if core and self.tp > 1 else ()  # --tp-comm-overlap
        parts = (
            ("sends=parts",) if self.pp > 1 and self.tp > 1 and not by_sequence else ()
        )  # its default: scatter, gather
        return {
            "parallel": axes(
                **{"fsdp" if core else self.data: self.dp}, cp=self.cp, ep=self.ep, tp=self.tp, pp=self.pp
            ),
            "tp_style": "megatron" if self.tp > 1 else None,
            "schedule": None if self.pp == 1 else "interleaved" if self.chunks > 1 else "1f1b",
            "virtual_stages": self.chunks if self.chunks > 1 else None,
            "micro_batches": micro_batches if micro_batches > 1 else None,
            "sequence_parallel": by_sequence,
            "option": (*kept, *together, *parts, "stages=equal" if stages > 1 and not layers % stages else None),
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


def gpt_row(
    record: Record,
    sizes: Mapping[str, int],
    measured: float,
    *,
    framework: str,
    unit: str = "s",
    nodes: str = "",
    by_sequence: bool = False,
    **options: Any,
) -> Row:
    """Return the row of a GPT in fp16 on A100s, by the sizes of the model, its batch and its division.

    ``nodes`` is what the topology of more than one has, with a place for the number of GPUs.
    """
    own = {name: sizes[name] for name in ("layers", "hidden", "heads", "sequence", "vocab")}
    division = Division(
        **{name: sizes[name] for name in ("dp", "tp", "pp", "chunks") if name in sizes},
        data="dp",
        by_sequence=by_sequence,
    )
    gpus, samples, micro_batch = sizes["gpus"], sizes["global_batch"], sizes["micro_batch"]
    _check(record, own, division, gpus)
    command = megatron_command(
        gpt(**own, fused_softmax=fuses_softmax(own["heads"], own["sequence"], division.tp, micro_batch)),
        own["layers"],
        division,
        micro_batch=micro_batch,
        micro_batches=division.micro_batches(record, samples, micro_batch),
        gpu="A100-SXM-80GB",
        topology=nodes.format(gpus) if gpus > 8 else None,
        dtype="fp16",
        **options,
    )
    label = f"h={own['hidden']} L={own['layers']} a={own['heads']} s={own['sequence']} {division.label} "
    label += f"batch={samples}/{micro_batch}{' by sequence' if by_sequence else ''}"
    model = f"{own['layers']} layers of {own['hidden']}"
    return Row(label, model, measured, unit, command, gpu="A100-SXM-80GB", framework=framework)


def _check(record: Record, sizes: Mapping[str, int], division: Division, gpus: int) -> None:
    """Refuse a row whose sizes contradict each other."""
    record.check(gpus == division.gpus, f"{gpus} GPUs", f"tensor, data and pipeline parallelism make {division.gpus}")
    stages, layers, heads = division.pp * division.chunks, sizes["layers"], sizes["heads"]
    record.check(not layers % stages, f"{layers} layers", f"give a multiple of the {stages} stages")
    record.check(not sizes["hidden"] % heads, f"{heads} heads", f"give a divisor of {sizes['hidden']}")
    record.check(not heads % division.tp, f"{heads} heads", f"give a multiple of tensor parallelism {division.tp}")


def gpt(*, layers: int, hidden: int, heads: int, vocab: int, sequence: int, fused_softmax: bool = True) -> str:
    """Return the name of a GPT of Megatron's with these sizes."""
    unfused = "" if fused_softmax else ", fused_softmax=false"
    return f"gpt3-175b(layers={layers}, hidden={hidden}, heads={heads}, vocab={vocab}, sequence={sequence}{unfused})"


def fuses_softmax(heads: int, sequence: int, tp: int, micro_batch: int) -> bool:
    """Whether Megatron's fused softmax serves a rank: ``is_kernel_available`` of its ``fused_softmax.py`` in 2021 and 2022."""
    return 16 < sequence <= 2048 and sequence % 4 == 0 and heads // tp * micro_batch % 4 == 0


def llama_flops(model: Llama, sequence: int) -> float:
    """Return the FLOPs of a token as Megatron-LM and NeMo count them, with its experts; attention is not halved."""
    hidden, heads = model.hidden, model.heads * model.width
    kv_heads = (model.kv_heads or model.heads) * model.width
    experts = model.experts_per_token if model.experts else 1
    attention = 2 * hidden * heads + 2 * hidden * kv_heads + 2 * heads * sequence
    return 6.0 * (model.layers * (attention + 3 * hidden * model.feed_forward * experts) + hidden * model.vocab)
