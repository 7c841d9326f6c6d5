"""Training steps of GPTs of about 200 billion parameters under Megatron-DeepSpeed on Jean Zay, from BigScience's chronicles.

A100s: nodes of eight, ZeRO-1, full recomputation, a vocabulary of 250,880 (Le Scao et al. 2022), and
``CUDA_LAUNCH_BLOCKING=1``, without which runs of 200 billion parameters hung: a host is never ahead of its GPU. V100s: nodes of
four; the vocabulary of GPT-2, padded. A node has four cards of 100 Gb/s Omni-Path, of which NCCL did not use more than one:
BigScience's own all-reduce moved 10.6 and 6.9 GB/s a node on 4 and 16 nodes of V100s and 5.1 on 4 of A100s
(``experiments/bandwidth`` of github.com/bigscience-workshop/bigscience). So a node is given one card. Where seconds are not
printed, they follow from TFLOP/s as BigScience counts them: 8 FLOPs a parameter of the layers and token. Rows without a
division have that of the first (``tp=8``, ``pp=10``), rows without layers those of their size, and rows whose heads do not
divide the features have 64 ("all NHEADS=64 (above too)").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from validation.steps.command import CommandFormat
from validation.steps.megatron_command import Division, fuses_softmax, gpt, megatron_command
from validation.steps.rows import Record, Row

#: GPU and nodes by the start of the table's ``gpu``, and the vocabulary of the models that were trained there.
_SYSTEMS = {
    "A100-SXM4-80GB": (
        "A100-SXM-80GB",
        "dgx-a100(gpus={}, inter_node={{bandwidth: 100 Gb/s, gpus_per_nic: 8}})",
        250880,
    ),
    "V100-SXM2-32GB": (
        "V100-SXM2-32GB",
        "v100-nvl4(gpus={}, inter_node={{bandwidth: 100 Gb/s, gpus_per_nic: 4}})",
        50304,
    ),
    "V100-SXM2-16GB": (
        "V100-SXM2-16GB",
        "v100-nvl4(gpus={}, inter_node={{bandwidth: 100 Gb/s, gpus_per_nic: 4}})",
        50304,
    ),
}
_TP, _PP = 8, 10
_HEADS = 64


class BigScience(CommandFormat):
    """Rows of BigScience's chronicles."""

    name = "bigscience"
    columns = (
        *("gpu", "gpus", "model_size", "hidden", "layers_of_context", "heads_of_context", "seq_len", "dp", "tp", "pp"),
        *("mbs", "gbs", "seconds_per_iteration", "tflops_reported"),
    )
    tables = ("steps/bigscience.csv",)
    sample = 8
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.10}

    def read(self, record: Record) -> Row:
        """One row a record."""
        gpus, hidden, sequence, samples = (record.whole(name) for name in ("gpus", "hidden", "seq_len", "gbs"))
        gpu = next((name for name in _SYSTEMS if record.text("gpu").startswith(name)), "")
        record.check(bool(gpu), f"'gpu' is '{record.text('gpu')}'", f"known: {', '.join(_SYSTEMS)}")
        name, nodes, vocab = _SYSTEMS[gpu]
        tp, pp = (record.whole(axis) if record.has(axis) else usual for axis, usual in (("tp", _TP), ("pp", _PP)))
        division = Division(dp=gpus // tp // pp, tp=tp, pp=pp, data="zero1")
        record.check(division.gpus == gpus, f"{gpus} GPUs", f"give a multiple of tp={tp}, pp={pp}")
        layers, micro_batch = _layers(record, hidden, pp), record.whole("mbs") if record.has("mbs") else 1
        said = record.whole("heads_of_context")
        heads = _HEADS if hidden % said else said
        old = gpu.startswith("V100")
        command = megatron_command(
            gpt(
                layers=layers,
                hidden=hidden,
                heads=heads,
                vocab=vocab,
                sequence=sequence,
                fused_softmax=fuses_softmax(heads, sequence, tp, micro_batch),
            ),
            layers,
            division,
            micro_batch=micro_batch,
            micro_batches=division.micro_batches(record, samples, micro_batch),
            gpu=name,
            topology=nodes.format(gpus),
            dtype="fp16" if old else None,
            stack="deepspeed",
            run_ahead=None if old else 1,  # CUDA_LAUNCH_BLOCKING=1
            recompute=None if "no activation checkpointing" in record.values.get("notes", "") else "full",
        )
        if record.has("seconds_per_iteration"):
            measured = record.number("seconds_per_iteration")
        else:
            work = 8 * 12 * layers * hidden**2 * sequence * samples
            measured = work / (gpus * record.number("tflops_reported") * 1e12)
        size = record.text("model_size")
        label = f"{size} h={hidden} L={layers} a={heads} {division.label} batch={samples}/{micro_batch}"
        return Row(label, size, measured, "s", command, gpu=name, framework="Megatron-DeepSpeed")


def _layers(record: Record, hidden: int, pp: int) -> int:
    """Return how many there are: where the table does not say, as many as the size needs, a multiple of the stages."""
    if record.text("layers_of_context").isdigit():
        return record.whole("layers_of_context")
    size = record.text("model_size")
    record.check(size.endswith("B") and size[:-1].replace(".", "").isdigit(), f"'model_size' is '{size}'", "write 200B")
    return pp * round(float(size[:-1]) * 1e9 / (12 * hidden**2) / pp)


FORMATS = (BigScience(),)
