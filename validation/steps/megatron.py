"""Training steps of GPTs under Megatron-DeepSpeed on A100s, as vTrain measured them (Bang et al., MICRO 2024; MIT).

Activations are computed again, the schedule is 1F1B, parameters are fp16. vTrain's own mean errors are 8.37% on one node and
14.73% on 64 to 512 GPUs, of nodes with 8 GPUs and 4 cards of 200 Gb/s. Its models (``src/config.py``, ``src/model`` of
github.com/VIA-Research/vTrain) divide GPT-2's vocabulary of 50,257 among GPUs and do not pad it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from validation.steps.megatron_step import CONSTANTS, Step, step_seconds
from validation.steps.rows import FittedFormat, Record, Row

_SIZES = {
    "global_batch": "global batch",
    "micro_batch": "micro batch",
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "sequence": "sequence length",
    "tp": "tensor parallelism",
    "dp": "data parallelism",
    "pp": "pipeline parallelism",
}
_TIME = "iteration time (ms)"
_WORDS = 50257


class OneNode(FittedFormat):
    """2 to 8 GPUs of one node."""

    name = "megatron-one-node"
    columns = ("# GPUs", *_SIZES.values(), _TIME)
    tables = ("end_to_end/megatron_a100_single_node.csv.gz",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.06}
    published: ClassVar[Mapping[str, str]] = {"step time": "vTrain 8.37%"}
    constants = CONSTANTS
    nodes = "dgx-a100"
    recompute = "none"

    def read(self, record: Record) -> Row:
        """One row a record."""
        return self._row(record)

    def predict(self, row: Row, constants: Mapping[str, float]) -> float:
        """Milliseconds."""
        return 1e3 * step_seconds(row.case, constants)

    def stand_in(self, row: Row) -> Row:
        """A stage's layers on its GPUs of tensor parallelism alone, of two micro-batches: their times are sums."""
        step: Step = row.case
        layers, samples = step.layers // step.pp, 2 * step.micro_batch
        small = replace(step, layers=layers, global_batch=samples, dp=1, pp=1)
        return Row(small.label, small.model, 1.0, "ms", small)

    def work(self, row: Row) -> float:
        """As the step's size says."""
        return float(row.case.work)

    def _row(self, record: Record) -> Row:
        step = Step(
            **{name: record.whole(column) for name, column in _SIZES.items()},
            nodes=self.nodes,
            recompute=self.recompute,
            vocab=_WORDS - _WORDS % record.whole(_SIZES["tp"]),
        )
        step.check(record, record.whole("# GPUs"))
        return Row(step.label, step.model, record.number(_TIME), "ms", step)


class Nodes(OneNode):
    """64 to 512 GPUs."""

    name = "megatron-nodes"
    columns = ("Parameters (billion)", *OneNode.columns)
    tables = ("end_to_end/megatron_a100_multi_node.csv.gz",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.10}
    published: ClassVar[Mapping[str, str]] = {"step time": "vTrain 14.73%"}
    nodes = "four-cards"
    recompute = "full"


FORMATS = (OneNode(), Nodes())
