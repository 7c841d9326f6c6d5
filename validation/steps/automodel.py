"""Training steps of NeMo AutoModel (FSDP2 with Transformer Engine) on H100s in bf16, as NVIDIA publishes them (Apache-2.0).

What a row leaves open is in its recipes (``examples/benchmark/configs`` of github.com/NVIDIA-NeMo/Automodel): a gate that sends
each token to experts next to each other (``fake_balanced_gate``), in bf16 by DeepEP where the row names it; torch.optim.Adam;
blocks that run again in the backward pass of dense models and of mixtures in pipelines; without a size of ``ep`` experts are
divided over a node. FSDP2 copies what it gathers and reduces (``buffers=copied``). A pipeline runs once for each local batch: a
step of several is that many runs, and the time is of one. FlexAttention reaches about what FlashAttention-2 does (He et al.,
"FlexAttention", PyTorch blog 2024: 85 to 90% on an A100).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from validation.steps.command import Command, CommandFormat
from validation.steps.megatron_command import Division, division_of
from validation.steps.nemo_models import check_whole_training, model_of, system_of
from validation.steps.rows import Record, Row

_COLUMNS = {"TP": "tp", "PP": "pp", "CP": "cp", "EP": "ep", "VP": "vp", "FSDP": "fsdp"}
_NODE = 8
_ROUTED = ("load=consecutive", "deepep_dispatch=as-is")
_FSDP2 = ("buffers=copied",)


class AutoModel(CommandFormat):
    """Rows of NeMo AutoModel."""

    name = "automodel"
    columns = (
        *("Model", "#GPUs", "GBS", "MBS", "LBS", "GA", "Seq Length", "TP", "PP", "CP", "EP", "VP", "FSDP"),
        *("Time per Global Step (s)", "phase", "system"),
    )
    tables = ("steps/nemo_automodel_h100.csv",)
    sample = 4
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.10}

    def read(self, record: Record) -> Row:
        """One row a record."""
        check_whole_training(record, "phase")
        model = model_of(record, "Model")
        found = re.search(r"DGX-\w+", record.text("system"))
        system = system_of(record, found[0] if found else record.text("system"))
        gpus, samples, micro_batch = (record.whole(name) for name in ("#GPUs", "GBS", "MBS"))
        said = {_COLUMNS.get(key, key): text for key, text in record.values.items()}
        division = division_of(replace(record, values=said), gpus, data="fsdp")
        mixture = bool(getattr(model, "experts", 0))
        if mixture and division.ep == 1 and "DeepEP" in record.values.get("Kernel Optimizations", ""):
            division = replace(division, ep=min(_NODE, division.dp))
        runs = record.whole("GA") if division.pp > 1 else 1
        micro_batches = division.micro_batches(record, samples // runs, micro_batch)
        options = division.options(getattr(model, "layers", 1), micro_batches)
        command = Command.of(
            model.name,
            gpu=system.gpu,
            topology=system.topology(gpus),
            seq=record.whole("Seq Length"),
            stack="megatron",
            attention="flash" if "FlexAttn" in record.values.get("Kernel Optimizations", "") else None,
            optimizer="adamw",
            micro_batch_size=micro_batch,
            recompute=None if mixture and division.pp == 1 else "checkpoint",
            ep_transport="deepep" if division.ep > 1 else None,
            **options | {"option": (*options["option"], *_own(division))},
        )
        label = f"{record.text('Model')} {division.label} batch={samples}/{micro_batch}"
        measured = record.number("Time per Global Step (s)") / runs
        return Row(label, model.name, measured, "s", command, gpu=system.gpu, framework="NeMo AutoModel")


def _own(division: Division) -> tuple[str, ...]:
    """Return the options that FSDP2 and the routers of its mixtures stand for."""
    return (_FSDP2 if division.dp > 1 else ()) + (_ROUTED if division.ep > 1 else ())


FORMATS = (AutoModel(),)
