"""Training steps of Megatron-LM with and without selective recomputation and sequence parallelism.

Korthikanti et al. 2022 (arXiv 2205.05198), Table 5: A100-80GB of Selene, eight to a node with a card of 200 Gb/s each, fp16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from validation.steps.megatron_step import CONSTANTS, Step, step_seconds
from validation.steps.rows import FittedFormat, Record, Row

_SIZES = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "sequence": "sequence_length",
    "vocab": "vocab",
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "tp": "tp",
    "dp": "dp",
    "pp": "pp",
    "interleave": "interleave",
}
_TIME = "iteration_time_s"


class Korthikanti(FittedFormat):
    """22 to 530 billion parameters."""

    name = "megatron-selective"
    columns = ("model", *_SIZES.values(), "gpus", "recompute", "sequence_parallel", _TIME)
    tables = ("end_to_end/megatron_a100_korthikanti.csv",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.04}
    published: ClassVar[Mapping[str, str]] = {"step time": "Calculon 3.65%"}
    constants = CONSTANTS

    def read(self, record: Record) -> Row:
        """One row a record."""
        return self._row(record)

    def predict(self, row: Row, constants: Mapping[str, float]) -> float:
        """Seconds."""
        return step_seconds(row.case, constants)

    def work(self, row: Row) -> float:
        """As the step's size says."""
        return float(row.case.work)

    def _row(self, record: Record) -> Row:
        step = Step(
            **{name: record.whole(column) for name, column in _SIZES.items()},
            nodes="eight-cards",
            recompute=record.one_of("recompute", ("none", "selective", "full")),
            sequence_parallel=record.one_of("sequence_parallel", ("no", "yes")) == "yes",
        )
        step.check(record, record.whole("gpus"))
        label = f"{record.text('model')} {step.label} recompute={step.recompute}"
        return Row(
            label + (" sp" if step.sequence_parallel else ""), record.text("model"), record.number(_TIME), "s", step
        )


FORMATS = (Korthikanti(),)
