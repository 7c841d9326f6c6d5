"""Training steps of Megatron-LM with and without selective recomputation and sequence parallelism.

Korthikanti et al. 2022 (arXiv 2205.05198), Table 5: A100-80GB of Selene, eight to a node with a card of 200 Gb/s each, fp16,
before FlashAttention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from validation.steps.command import CommandFormat
from validation.steps.megatron_command import gpt_row
from validation.steps.rows import Record, Row

_SIZES = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "sequence": "sequence_length",
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "tp": "tp",
    "dp": "dp",
    "pp": "pp",
    "chunks": "interleave",
    "vocab": "vocab",
    "gpus": "gpus",
}
_TIME = "iteration_time_s"


class Korthikanti(CommandFormat):
    """22 to 530 billion parameters."""

    name = "megatron-selective"
    columns = ("model", *_SIZES.values(), "recompute", "sequence_parallel", _TIME)
    tables = ("end_to_end/megatron_a100_korthikanti.csv",)
    sample = 4
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.03}
    published: ClassVar[Mapping[str, str]] = {"step time": "Calculon 3.65%"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        recompute = record.one_of("recompute", ("none", "selective", "full"))
        row = gpt_row(
            record,
            {name: record.whole(column) for name, column in _SIZES.items()},
            record.number(_TIME),
            framework="Megatron-LM",
            nodes="dgx-a100(gpus={}, inter_node={{bandwidth: 200 Gb/s}})",
            by_sequence=record.one_of("sequence_parallel", ("no", "yes")) == "yes",
            attention="math",
            recompute=None if recompute == "none" else recompute,
        )
        return replace(row, label=f"{row.label} recompute={recompute}")


FORMATS = (Korthikanti(),)
