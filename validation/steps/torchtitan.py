"""Llama 3.1 trained by torchtitan on H100s: tokens a second and memory, as PyTorch's team published them (BSD-3).

The boards have 96 GB of HBM2e and draw 500 W at most. Phantora's own errors on such rows are 2 to 15%. A column
``memory_gib``, which may be empty, has the most that the allocator reserved (``max_memory_reserved``); a column ``async_tp``
(yes, no) may say that communication of tensor parallelism is overlapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from triosim.models.catalogue import MODELS
from validation.steps.rows import FittedFormat, Record, Row
from validation.steps.titan_step import AXES, CHECKPOINTS, CONSTANTS, Nodes, Step, peak_gib, step_memory, step_seconds

_MODEL = re.compile(r"llama3(?:\.1)?-(\d+B)", re.IGNORECASE)
_BOARD = {
    "bandwidth": re.compile(r"([\d.]+) ?TB/s"),
    "memory": re.compile(r"(\d+) ?GB\b(?!/s)"),
    "watts": re.compile(r"(\d+) ?W\b"),
    "gpus": re.compile(r"(\d+) per NVLink node"),
    "card": re.compile(r"(\d+ Gb/s)"),
}
_YES_OR_NO = ("no", "yes")
_SPEED, _MEMORY = "throughput of a GPU", "peak memory"


class TorchTitan(FittedFormat):
    """Rows of FSDP, and of FSDP with tensor, context and pipeline parallelism."""

    name = "torchtitan"
    columns = (
        *("model", "gpu", "gpus", "parallelism", "local_batch", "global_batch", "sequence_length"),
        *("activation_checkpointing", "compile", "float8", "tokens_per_second_per_gpu"),
    )
    tables = ("end_to_end/torchtitan_llama3_h100.csv",)
    asked: ClassVar[Mapping[str, float]] = {_SPEED: 0.07, _MEMORY: 0.04}
    published: ClassVar[Mapping[str, str]] = {_SPEED: "Phantora 2 to 15%"}
    constants = CONSTANTS

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _row(record)

    def predict(self, row: Row, constants: Mapping[str, float]) -> float:
        """Tokens a second of each GPU, or GiB of the fullest."""
        step, tokens = row.case
        if row.quantity == _MEMORY:
            return peak_gib(step_memory(step), "reserved", step.nodes.memory)
        return float(tokens / step.gpus / step_seconds(step, constants))


def _row(record: Record) -> Row:
    axes = _axes(record)
    step = Step(
        model=_model(record),
        axes=tuple(axes.items()),
        batch=record.whole("local_batch"),
        sequence=record.whole("sequence_length"),
        checkpoints=record.one_of("activation_checkpointing", CHECKPOINTS),
        nodes=_nodes(record.text("gpu"), record),
        compiled=record.one_of("compile", _YES_OR_NO) == "yes",
        eight=record.one_of("float8", _YES_OR_NO) == "yes",
        overlapped="async_tp" in record.values and record.one_of("async_tp", _YES_OR_NO) == "yes",
    )
    alone = step.overlapped and "tp" not in axes
    record.check(not alone, "'async_tp' is 'yes'", f"'{record.text('parallelism')}' has no tp")
    said, replicas = record.whole("gpus"), axes.get("dp", 1) * axes.get("fsdp", 1)
    record.check(said == step.gpus, f"{said} GPUs", f"'{record.text('parallelism')}' makes {step.gpus}")
    samples = record.whole("global_batch")
    fix = f"{replicas} replicas of {step.batch} make {replicas * step.batch}"
    record.check(samples == replicas * step.batch, f"global batch {samples}", fix)
    case = step, samples * step.sequence
    speed = Row(step.label, step.size, record.number("tokens_per_second_per_gpu"), "tokens/s", case, quantity=_SPEED)
    if not record.values.get("memory_gib", "").strip():
        return speed
    return replace(speed, also=(replace(speed, measured=record.number("memory_gib"), unit="GiB", quantity=_MEMORY),))


def _model(record: Record) -> str:
    said = record.text("model")
    match = _MODEL.fullmatch(said)
    name = f"llama3-{match[1].lower()}" if match else said
    known = [name for name in MODELS if name.startswith("llama3-")]
    record.check(name in known, f"'model' is '{said}'", f"known: {', '.join(known)}")
    return name


def _axes(record: Record) -> dict[str, int]:
    """Return sizes by name, of ``fsdp=64, tp=8``."""
    text = record.text("parallelism")
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        good = name in AXES and name not in found and size.isdigit() and int(size) > 0
        record.check(good, f"'parallelism' is '{text}'", f"write fsdp=8, tp=2 of {', '.join(AXES)}")
        found[name] = int(size)
    return found


def _nodes(text: str, record: Record) -> Nodes:
    found = {name: match[1] for name, pattern in _BOARD.items() if (match := pattern.search(text))}
    record.check(text.startswith("H100"), f"'gpu' is '{text}'", "the rows of H100s can be predicted")
    usual = Nodes()
    return Nodes(
        bandwidth=float(found["bandwidth"]) * 1e12 if "bandwidth" in found else usual.bandwidth,
        memory=float(found["memory"]) * 1e9 if "memory" in found else usual.memory,
        watts=float(found.get("watts", usual.watts)),
        gpus=int(found.get("gpus", usual.gpus)),
        card=found.get("card", usual.card),
    )


FORMATS = (TorchTitan(),)
