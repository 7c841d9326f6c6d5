"""Steps of transformers in fp32 on the GPUs of one node, as NeuSight measured them (Lee et al., ASPLOS 2025; MIT).

They ran under Megatron-LM through Hugging Face's accelerate: gradients are reduced after the backward pass, a pipeline runs
1F1B with stages of as many layers each, vocabularies are padded to multiples of 128 a rank. Products run in fp32 and not in
TF32, which PyTorch leaves off: on an A100, GPT-2 Large would else be five times as fast. NeuSight's own mean error is 8%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from triosim import gpus
from triosim.errors import TriosimError
from triosim.models import GPT
from triosim.models.catalogue import MODELS, find
from validation.steps.command import Command, CommandFormat, axes
from validation.steps.rows import Record, Row

_DTYPES = ("fp32", "bf16", "fp16")
#: Whether the update of the parameters is timed too.
_TIMED = {"forward+backward": "none", "forward+backward+update": "fused-adamw"}
#: GPT-3 XL as NeuSight has it: as wide as its 24 heads of 128 features, where Brown et al. (2020) print 2,048.
_OWN = {"gpt3-xl": "gpt3-1.3b(hidden=3072, heads=24"}
_PADDED = 128


class OneNode(CommandFormat):
    """Forward and backward passes on the GPUs of one node."""

    name = "fp32-one-node"
    columns = (
        *("model", "precision", "gpu", "gpus", "global_batch", "sequence_length", "strategy", "micro_batches"),
        *("timed", "measured_ms"),
    )
    tables = ("end_to_end/gpt_fp32_4gpu.csv",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.05}
    published: ClassVar[Mapping[str, str]] = {"step time": "NeuSight 8%"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        model, gpu, sizes = record.one_of("model", (*_gpts(), *_OWN)), _gpu(record), _sizes(record)
        batch, parts, sequence = (record.whole(name) for name in ("global_batch", "micro_batches", "sequence_length"))
        tp, stages, samples = sizes.get("tp", 1), sizes.get("pp", 1), batch // sizes.get("dp", 1) // parts
        known = find(f"{_OWN[model]})" if model in _OWN else model)
        assert isinstance(known, GPT)
        record.check(batch == samples * sizes.get("dp", 1) * parts, f"global batch {batch}", "give one that divides")
        record.check(not known.layers % stages, f"{stages} stages", f"give a divisor of {known.layers} layers")
        record.check(not known.heads % tp, f"tp={tp}", f"{known.heads} heads")
        longest = known.sequence
        record.check(sequence <= longest, f"sequence {sequence}", f"{model} has {longest} positions")
        words = -(-known.vocab // (_PADDED * tp)) * _PADDED * tp
        said = f"{_OWN[model]}, " if model in _OWN else f"{model}("
        command = Command.of(
            f"{said}vocab={words}, style=megatron)",
            gpu=gpu,
            parallel=axes(**sizes),
            tp_style="megatron" if tp > 1 else None,
            schedule="1f1b" if stages > 1 else None,
            option="stages=equal" if stages > 1 else None,
            micro_batch_size=samples,
            micro_batches=parts if parts > 1 or stages > 1 else None,
            seq=sequence,
            dtype=record.one_of("precision", _DTYPES),
            attention="math",
            optimizer=_TIMED[record.one_of("timed", tuple(_TIMED))],
        )
        label = f"{model} on {record.text('gpus')} {record.text('gpu')} {record.text('strategy')} "
        label += f"batch={batch}/{parts} s={sequence}"
        return Row(label, model, record.number("measured_ms"), "ms", command, gpu=gpu, framework="Megatron-LM")


def _sizes(record: Record) -> dict[str, int]:
    """Return the sizes by axis of a strategy such as ``dp=2,tp=2``."""
    found = {}
    for part in record.text("strategy").replace(" ", "").split(","):
        axis, _, size = part.partition("=")
        record.check(
            axis in ("dp", "tp", "pp") and size.isdigit() and int(size) > 0,
            f"'strategy' is '{record.text('strategy')}'",
            "give sizes of dp, tp and pp: dp=4, or tp=2,pp=2",
        )
        found[axis] = int(size)
    count = math.prod(found.values())
    record.check(count == record.whole("gpus"), f"{record.text('gpus')} GPUs", f"the strategy takes {count}")
    return found


def _gpu(record: Record) -> str:
    try:
        return gpus.find(record.text("gpu")).name
    except TriosimError as error:
        raise type(error)(error.what, where=f"{record.where}, gpu", fix=error.fix) from None


def _gpts() -> list[str]:
    return [name for name, model in MODELS.items() if isinstance(model, GPT)]


FORMATS = (OneNode(),)
