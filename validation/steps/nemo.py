"""Training steps of NeMo on H100s in fp8, as its documents of 2024 had them (Apache-2.0): pretraining, full fine-tuning.

Fine-tuning has one layer a virtual stage, as the rows of pretraining say. Rows of long samples name no model: that page trains
Llama 2 7B. A step's time follows from tokens a second where it is not printed.

Attention is FlashAttention-2, which NeMo's guide names until May 2024 (NVIDIA/NeMo pull request 9188 writes that Transformer
Engine prefers cuDNN's on Hopper): with it the steps of release 24.03 are 0 to 6% off, by cuDNN's kernel 15 to 31%, and those of
24.07 about 7% instead of 12%.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from validation.steps.command import CommandFormat
from validation.steps.megatron_command import division_of
from validation.steps.nemo_models import check_whole_training, model_of, nemo_command, stack_of, system_of
from validation.steps.rows import Record, Row

_OF_LONG_SAMPLES = "LLAMA2-7B"
#: ``--attention`` of releases of 2024.
ATTENTION = "flash"


class Nemo(CommandFormat):
    """Rows of NeMo's pages."""

    name = "nemo"
    columns = (
        *("container", "system", "phase", "precision_of_text", "model", "gpus", "global_batch", "micro_batch"),
        *("seq_len", "tp", "pp", "cp", "vp", "tokens_per_s_per_gpu", "step_time_s"),
    )
    tables = ("steps/nemo_h100.csv",)
    sample = 30
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.10}

    def read(self, record: Record) -> Row:
        """One row a record."""
        check_whole_training(record, "phase", "task")
        if not record.has("model"):
            long = str(1024 * record.whole("Sequence Length (K)"))
            record = replace(record, values={**record.values, "model": _OF_LONG_SAMPLES, "seq_len": long})
        model, system = model_of(record, "model"), system_of(record, record.text("system"))
        gpus, samples, micro_batch, sequence = (
            record.whole(name) for name in ("gpus", "global_batch", "micro_batch", "seq_len")
        )
        division = division_of(record, gpus)
        if not record.has("vp"):
            division = replace(division, chunks=getattr(model, "layers", 1) // division.pp if division.pp > 1 else 1)
        positions = f"(sequence={sequence})" if sequence > model.sequence else ""
        command = nemo_command(
            replace(model, name=f"{model.name}{positions}"),  # type: ignore[type-var]
            division,
            stack_of(record, record.text("precision_of_text")),
            micro_batch=micro_batch,
            micro_batches=division.micro_batches(record, samples, micro_batch),
            gpu=system.gpu,
            topology=system.topology(gpus),
            seq=None if positions else sequence,
            attention=ATTENTION,
        )
        if record.has("step_time_s"):
            measured = record.number("step_time_s")
        else:
            measured = samples * sequence / gpus / record.number("tokens_per_s_per_gpu")
        label = f"{record.text('model')} s={sequence} {division.label} batch={samples}/{micro_batch} {record.text('container')}"
        return Row(label, model.name, measured, "s", command, gpu=system.gpu, framework="NeMo")


FORMATS = (Nemo(),)
