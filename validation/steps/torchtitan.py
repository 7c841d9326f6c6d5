"""Llama 3.1 trained by torchtitan on H100s: tokens a second and memory, as PyTorch's team published them (BSD-3).

The boards have 96 GB of HBM2e and draw 500 W at most. Phantora's own errors on such rows are 2 to 15%. A column
``memory_gib``, which may be empty, has the most that the allocator reserved (``max_memory_reserved``); a column ``async_tp``
(yes, no) may say that communication of tensor parallelism is overlapped, as may the column of the parallelism, which names the
schedule of a pipeline too: ``fsdp=8,tp=8,pp=8 interleaved``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from triosim.models.catalogue import MODELS
from validation.steps.command import CommandFormat
from validation.steps.rows import Record, Row
from validation.steps.titan_command import AXES, CHECKPOINTS, SCHEDULES, Step

_MODEL = re.compile(r"llama3(?:\.1)?-(\d+B)", re.IGNORECASE)
#: What a row says of its boards, as a board of the catalogue is changed by it, and of its nodes.
_BOARD = {
    "power": re.compile(r"(\d+ ?W)\b"),
    "bandwidth": re.compile(r"([\d.]+ ?TB/s)"),
    "capacity": re.compile(r"(\d+ ?GB)\b(?!/s)"),
}
_PER_NODE, _CARD = re.compile(r"(\d+) per NVLink node"), re.compile(r"(\d+ Gb/s)")
_SCHEDULE = re.compile(r"interleaved|1f1b|zero[- ]?bubble|gpipe", re.IGNORECASE)
_ASYNC = re.compile(r"async(?:hronous|[- ]?tp)?\b(?: tp)?", re.IGNORECASE)
_YES_OR_NO = ("no", "yes")


class TorchTitan(CommandFormat):
    """Rows of FSDP, and of FSDP with tensor, context and pipeline parallelism."""

    name = "torchtitan"
    columns = (
        *("model", "gpu", "gpus", "parallelism", "local_batch", "global_batch", "sequence_length"),
        *("activation_checkpointing", "compile", "float8", "tokens_per_second_per_gpu"),
    )
    tables = ("end_to_end/torchtitan_llama3_h100.csv",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.06, "peak memory": 0.05}
    published: ClassVar[Mapping[str, str]] = {"step time": "Phantora 2 to 15%"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        step = _step(record)
        said, replicas = record.whole("gpus"), dict(step.axes).get("dp", 1) * dict(step.axes).get("fsdp", 1)
        record.check(said == step.gpus, f"{said} GPUs", f"'{record.text('parallelism')}' makes {step.gpus}")
        samples = record.whole("global_batch")
        fix = f"{replicas} replicas of {step.batch} make {replicas * step.batch}"
        record.check(samples == replicas * step.batch, f"global batch {samples}", fix)
        seconds = samples * step.sequence / said / record.number("tokens_per_second_per_gpu")
        if not record.has("memory_gib"):
            return step.row(seconds, "s")
        memory = step.row(record.number("memory_gib"), "GiB", "peak memory")
        return replace(step.row(seconds, "s"), also=(memory,))


def _step(record: Record) -> Step:
    text = record.text("parallelism")
    overlapped = bool(_ASYNC.search(text)) or (
        record.has("async_tp") and record.one_of("async_tp", _YES_OR_NO) == "yes"
    )
    schedule = _SCHEDULE.search(text)
    sizes = _axes(record, _ASYNC.sub("", _SCHEDULE.sub("", text)))
    record.check("tp" in sizes or not overlapped, "'async_tp' is 'yes'", f"'{text}' has no tp")
    return Step(
        model=_model(record),
        axes=tuple(sizes.items()),
        batch=record.whole("local_batch"),
        sequence=record.whole("sequence_length"),
        checkpoints=record.one_of("activation_checkpointing", CHECKPOINTS),
        **_board(record.text("gpu"), record),
        schedule=re.sub("zero.?bubble", "zero-bubble", schedule[0].lower()) if schedule else SCHEDULES[0],
        compiled=record.one_of("compile", _YES_OR_NO) == "yes",
        eight=record.one_of("float8", _YES_OR_NO) == "yes",
        overlapped=overlapped,
    )


def _model(record: Record) -> str:
    said = record.text("model")
    match = _MODEL.fullmatch(said)
    name = f"llama3-{match[1].lower()}" if match else said
    known = [name for name in MODELS if name.startswith("llama3-")]
    record.check(name in known, f"'model' is '{said}'", f"known: {', '.join(known)}")
    return name


def _axes(record: Record, text: str) -> dict[str, int]:
    """Return sizes by name, of ``fsdp=64, tp=8``."""
    found: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, _, size = part.partition("=")
        good = name in AXES and name not in found and size.isdigit() and int(size) > 0
        fix = f"write fsdp=8, tp=2 of {', '.join(AXES)}"
        record.check(good, f"'parallelism' is '{record.text('parallelism')}'", fix)
        found[name] = int(size)
    return found


def _board(text: str, record: Record) -> dict[str, str]:
    """Return the GPU and the topology of a text that says how its boards differ from the usual one."""
    record.check(text.startswith("H100"), f"'gpu' is '{text}'", "the rows of H100s can be predicted")
    own = ", ".join(f"{name}={match[1]}" for name, pattern in _BOARD.items() if (match := pattern.search(text)))
    node, card = _PER_NODE.search(text), _CARD.search(text)
    keys = ["gpus={}", *([f"gpus_per_node={node[1]}"] if node and node[1] != "8" else [])]
    keys += [f"inter_node={{{{bandwidth: {card[1]}}}}}"] if card and card[1] != "400 Gb/s" else []
    return {"gpu": f"H100-SXM({own})" if own else "H100-SXM", "topology": f"dgx-h100({', '.join(keys)})"}


FORMATS = (TorchTitan(),)
