"""Training steps that Megatron-LM's own pages give: weak scaling on H100s and A100s, Llama 3 in fp8, Mixtral.

Where a page gives TFLOP/s alone, the step's time follows from the FLOPs that Megatron-LM counts. What the pages leave open:
Narayanan et al. (2021, table 1) ran ``examples/sc21/run_table_1.sh`` of Megatron-LM, which says micro-batches and layers of a
virtual stage. The table of Megatron-Core 0.8 says that communication overlaps, which in a pipeline is interleaving: virtual
stages are taken to have one layer, and micro-batches one sample; without a pipeline a replica's samples are one micro-batch.
Attention is as of their time: unfused in 2021, fused (Transformer Engine) in 2024; and gradients of inputs are all-reduced
after the products for those of weights in 2021 (``--no-async-tensor-model-parallel-allreduce``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from triosim.models import GPT
from triosim.models.architectures.llama import Llama
from triosim.models.catalogue import MODELS
from validation.steps.command import CommandFormat
from validation.steps.megatron_command import Division, division_of, fuses_softmax, gpt, llama_flops, megatron_command
from validation.steps.rows import Record, Row

#: Micro-batch and layers of a virtual stage in examples/sc21/run_table_1.sh, by billions of parameters; 0 is one stage a GPU.
_SC21 = {
    1.7: (16, 0),
    3.6: (16, 0),
    7.5: (16, 0),
    18.4: (8, 0),
    39.1: (4, 0),
    76.1: (2, 5),
    145.6: (2, 5),
    310.1: (1, 3),
    529.6: (1, 1),
    1008.0: (1, 0),
}
_LLAMAS = {
    "LLAMA3-8B": "llama3-8b",
    "LLAMA3-70B": "llama3-70b",
    "LLAMA3-405B": "llama3-405b",
    "Mixtral 8x7B": "mixtral-8x7b",
}
_NODES = {"A100": "A100-SXM-80GB", "H100": "H100-SXM"}


class MegatronLM(CommandFormat):
    """Rows of Megatron-LM's pages."""

    name = "megatron-lm"
    columns = (
        *("table", "gpu", "params_b", "hidden", "layers", "tp", "pp", "dp", "gpus", "batch_sequences", "micro_batch"),
        *("seq_len", "vocab", "precision", "tflops_per_gpu", "step_time_s_derived"),
    )
    tables = ("steps/megatron_lm.csv",)
    sample = 6
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.08}

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _llama(record) if record.has("model") else _gpt(record)


def _gpt(record: Record) -> Row:
    gpu = _gpu(record)
    layers, hidden, sequence = (record.whole(name) for name in ("layers", "hidden", "seq_len"))
    division = Division(
        **{name: record.whole(name) for name in ("dp", "tp", "pp")}, data="dp" if gpu.startswith("A100") else "core"
    )
    named = MODELS.get(f"gpt-{record.number('params_b'):g}b")
    heads = record.whole("heads") if record.has("heads") else named.heads if isinstance(named, GPT) else 0
    record.check(heads > 0, "no 'heads'", "give them, or a model of Narayanan et al. (2021), table 1")
    old = gpu.startswith("A100")
    if old:
        micro_batch, together = _SC21.get(record.number("params_b"), (1, 0))
    else:
        micro_batch, together = (1, 1) if division.pp > 1 else (record.whole("batch_sequences") // division.dp, 0)
    division = _chunked(division, layers, together)
    command = megatron_command(
        gpt(
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocab=record.whole("vocab"),
            sequence=sequence,
            fused_softmax=not old or fuses_softmax(heads, sequence, division.tp, micro_batch),
        ),
        layers,
        division,
        micro_batch=micro_batch,
        micro_batches=division.micro_batches(record, record.whole("batch_sequences"), micro_batch),
        gpu=gpu,
        dtype="fp16" if record.text("precision") == "fp16" else None,
        attention="math" if old else None,
        option=("async_allreduce=no",) if old and division.tp > 1 else (),
        gradient_dtype=None if old else "fp32",
        recompute="full" if "full" in record.text("recompute") else None,
    )
    size = f"{record.number('params_b'):g}B"
    return _row(record, size, division, record.number("step_time_s_derived"), command)


def _llama(record: Record) -> Row:
    name = record.text("model").partition(" (")[0]
    record.check(name in _LLAMAS, f"'model' is '{name}'", f"known: {', '.join(_LLAMAS)}")
    model = MODELS[_LLAMAS[name]]
    assert isinstance(model, Llama)
    division = division_of(record, record.whole("gpus"))
    sequence, samples = record.whole("seq_len"), record.whole("batch_sequences")
    if record.has("step_time_s_derived"):
        measured = record.number("step_time_s_derived")
    else:
        work = samples * sequence * llama_flops(model, sequence)
        measured = work / (record.number("tflops_per_gpu") * 1e12 * division.gpus)
    micro_batch = record.whole("micro_batch")
    command = megatron_command(
        model.name,
        model.layers,
        division,
        micro_batch=micro_batch,
        micro_batches=division.micro_batches(record, samples, micro_batch),
        gpu=_gpu(record),
        seq=sequence,
        stack="te-fp8" if record.text("precision").lower().startswith("fp8") else "megatron",
        option=("load=balanced",) if model.experts else (),
    )
    return _row(record, name, division, measured, command)


def _row(record: Record, model: str, division: Division, measured: float, command: object) -> Row:
    record.check(
        division.gpus == record.whole("gpus"), f"{record.text('gpus')} GPUs", f"the sizes make {division.gpus}"
    )
    label = f"{model} {division.label} batch={record.text('batch_sequences')} {record.text('precision')}"
    return Row(label, model, measured, "s", command, gpu=_gpu(record), framework="Megatron-LM")


def _chunked(division: Division, layers: int, together: int) -> Division:
    """Return the division with virtual stages of so many layers; the last are fewer where they do not divide a stage's."""
    if not together or division.pp == 1:
        return division
    return replace(division, chunks=max(1, layers // division.pp // together))


def _gpu(record: Record) -> str:
    found = next((name for start, name in _NODES.items() if record.text("gpu").startswith(start)), None)
    record.check(found is not None, f"'gpu' is '{record.text('gpu')}'", f"known: {', '.join(_NODES)}")
    assert found is not None
    return found


FORMATS = (MegatronLM(),)
