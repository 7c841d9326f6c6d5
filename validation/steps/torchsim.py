"""Steps of Llama 3 70B on 128 H100s: TorchSim's tables 17 (FSDP) and 18 (FSDP and tensor parallelism), trained by torchtitan.

The logs of these runs (github.com/sanketpurandare/torchtitan, October 2024) lie on Harvard's research cluster, whose nodes have
four H100s and whose network between them is "2:1 oversubscribed" (handbook of the Kempner Institute, *Overview of Cluster*).
Cards of 400 Gb/s, one a GPU, are assumed: the switches leave each 25 GB/s, and unlike a card of that speed they carry all of
it, so that the card is written as one that reaches 25 GB/s (92.4% of 27.05). The same logs take an all-gather of 2.1 GB for
22.5 ms, 23.3 GB/s a card, by a model of the authors' measurements, and reduce in float32 (816 MiB for a layer of which four
ranks hold a quarter each). Boards are taken to draw 700 W. TorchSim's own
figures are 9 to 10% too low. Tables 20 and 21 have the peak memory of Llama 3 70B, of which the second was measured on one GPU
whose collectives move nothing (``validation.sharded_memory``); it is what the allocator has handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from validation.sharded_memory import CASES
from validation.steps.command import CommandFormat
from validation.steps.rows import Record, Row
from validation.steps.titan_command import CHECKPOINTS, Step

_NODES = "dgx-h100(gpus={}, gpus_per_node=4, inter_node={{bandwidth: 27.05 GB/s}})"
#: The divisions of tables 20 and 21.
_SHARDS = {"20": (("fsdp", 64),), "21": (("fsdp", 32), ("tp", 4))}
_FSDP, _BOTH = (("fsdp", 128),), (("fsdp", 32), ("tp", 4))
#: Axes, batch, sequence, checkpoints, milliseconds measured, TorchSim's.
_TABLES = [
    (_FSDP, 2, 64, "selective", 5503.55, 4953.20),
    (_FSDP, 2, 256, "selective", 5423.15, 4934.07),
    (_FSDP, 2, 1024, "full", 5480.86, 5042.39),
    (_FSDP, 1, 4096, "full", 6018.70, 5477.02),
    (_FSDP, 1, 8192, "full", 10663.87, 9597.48),
    (_BOTH, 8, 1024, "full", 5445.67, 4955.56),
    (_BOTH, 4, 4096, "full", 5851.41, 5383.30),
    (_BOTH, 4, 8192, "full", 11195.45, 10075.91),
]


class TorchSim(CommandFormat):
    """Rows of tables 17 and 18; a file of such rows says its GPUs' tensor parallelism too."""

    name = "torchsim-sharded"
    columns = ("local batch size", "seq len", "ac", "tp", "actual (ms)")
    sample = 3
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.08}
    published: ClassVar[Mapping[str, str]] = {"step time": "TorchSim 9.3%"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _read(record)

    def built_in(self) -> list[Row]:
        """The rows of the paper."""
        return [
            _step(axes, batch, length, checkpoints).row(1e-3 * measured, "s", published=1e-3 * theirs)
            for axes, batch, length, checkpoints, measured, theirs in _TABLES
        ]


class TorchSimMemory(CommandFormat):
    """Rows of tables 20 and 21; a file of such rows says its GPUs, and their tensor parallelism, too."""

    name = "torchsim-memory"
    columns = ("gpus", "local batch size", "seq len", "ac", "tp", "actual (GiB)")
    sample = 3
    asked: ClassVar[Mapping[str, float]] = {"peak memory": 0.03}
    published: ClassVar[Mapping[str, str]] = {"peak memory": "TorchSim 1.4%"}
    counted = "allocated"

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _read_memory(record)

    def built_in(self) -> list[Row]:
        """The rows of the paper."""
        return [
            _step(_SHARDS[one.table], one.batch, one.length, one.checkpoint).row(
                one.measured, "GiB", "peak memory", one.estimated
            )
            for one in CASES
        ]


def _read_memory(record: Record) -> Row:
    gpus, tp = record.whole("gpus"), record.whole("tp")
    record.check(not gpus % tp, f"'tp' is {tp}", f"give a divisor of {gpus}")
    axes = (("fsdp", gpus // tp), ("tp", tp)) if tp > 1 else (("fsdp", gpus),)
    sizes = record.whole("local batch size"), record.whole("seq len")
    step = _step(axes, *sizes, record.one_of("ac", CHECKPOINTS))
    return step.row(record.number("actual (GiB)"), "GiB", "peak memory")


def _step(axes: tuple[tuple[str, int], ...], batch: int, length: int, checkpoints: str) -> Step:
    sizes = {"axes": axes, "batch": batch, "sequence": length, "checkpoints": checkpoints}
    return Step(model="llama3-70b", gpu="H100-SXM", topology=_NODES, **sizes)  # type: ignore[arg-type]


def _read(record: Record) -> Row:
    tp = record.whole("tp")
    record.check(not 128 % tp, f"'tp' is {tp}", "give a divisor of 128")
    axes = (("fsdp", 128 // tp), ("tp", tp)) if tp > 1 else _FSDP
    sizes = record.whole("local batch size"), record.whole("seq len")
    return _step(axes, *sizes, record.one_of("ac", CHECKPOINTS)).row(1e-3 * record.number("actual (ms)"), "s")


FORMATS = (TorchSim(), TorchSimMemory())
