"""Training steps of GPTs under Megatron-DeepSpeed on A100s, as vTrain measured them (Bang et al., MICRO 2024; MIT).

The schedule is 1F1B, parameters are fp16, and between nodes, of 8 GPUs and 4 cards of 200 Gb/s, activations are computed
again; the rows of one node show no recomputation, whatever they say (docs/end-to-end.md). vTrain's own mean errors are 8.37%
on one node and 14.73% on 64 to 512 GPUs. Megatron-LM pads GPT-2's vocabulary of 50,257 to a multiple of 128 words a rank
(``--make-vocab-size-divisible-by``, 128 by default), and so have rows of many nodes. Rows of one node show the 50,257 of
vTrain's own models (``src/config.py``, ``src/model`` of github.com/VIA-Research/vTrain), divided among GPUs and not padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from validation.steps.command import CommandFormat
from validation.steps.megatron_command import gpt_row
from validation.steps.rows import Record, Row

_SIZES = {
    "gpus": "# GPUs",
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
_WORDS, _PADDED = 50257, 128


class OneNode(CommandFormat):
    """2 to 8 GPUs of one node."""

    name = "megatron-one-node"
    columns = (*_SIZES.values(), _TIME)
    tables = ("end_to_end/megatron_a100_single_node.csv.gz",)
    sample = 160
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.05}
    published: ClassVar[Mapping[str, str]] = {"step time": "vTrain 8.37%"}
    recompute: ClassVar[str | None] = None

    def read(self, record: Record) -> Row:
        """One row a record."""
        sizes = {name: record.whole(column) for name, column in _SIZES.items()}
        return gpt_row(
            record,
            sizes | {"vocab": self._words(sizes["tp"])},
            record.number(_TIME),
            framework="Megatron-DeepSpeed",
            nodes="dgx-a100(gpus={}, inter_node={{bandwidth: 200 Gb/s, gpus_per_nic: 2}})",
            stack="deepspeed",
            unit="ms",
            recompute=self.recompute,
        )

    def _words(self, tp: int) -> int:
        """Return the words that ranks divide."""
        return _WORDS - _WORDS % tp


class Nodes(OneNode):
    """64 to 512 GPUs."""

    name = "megatron-nodes"
    columns = ("Parameters (billion)", *OneNode.columns)
    tables = ("end_to_end/megatron_a100_multi_node.csv.gz",)
    sample = 12
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.07}
    published: ClassVar[Mapping[str, str]] = {"step time": "vTrain 14.73%"}
    recompute = "full"

    def _words(self, tp: int) -> int:
        """Return the words that ranks divide."""
        return -(-_WORDS // (_PADDED * tp)) * _PADDED * tp


FORMATS = (OneNode(), Nodes())
