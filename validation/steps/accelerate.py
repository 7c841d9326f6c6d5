"""Steps of transformers in fp32 on the GPUs of one node, as NeuSight measured them (Lee et al., ASPLOS 2025; MIT).

They ran under Megatron-LM through Hugging Face's accelerate: gradients are reduced after the backward pass, a pipeline runs
1F1B with stages of as many layers each, vocabularies are padded to multiples of 128 a rank. Products run in fp32 and not in
TF32, which PyTorch leaves off: on an A100, GPT-2 Large would else be five times as fast. NeuSight's own mean error is 8%.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import triosim
from triosim import gpus
from triosim.errors import TriosimError
from triosim.models import GPT
from triosim.models.catalogue import MODELS
from triosim.trace import Trace
from validation.steps.rows import FittedFormat, Record, Row

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: Whether the update of the parameters is timed too.
_TIMED = {"forward+backward": "none", "forward+backward+update": "fused-adamw"}
#: GPT-3 XL as NeuSight has it: as wide as its 24 heads of 128 features, where Brown et al. (2020) print 2,048.
_OWN = {"gpt3-xl": GPT(layers=24, hidden=3072, heads=24, vocab=50257, sequence=2048, name="gpt3-xl")}
_PADDED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is trained, and how it is divided."""

    model: str
    gpu: str
    dtype: str
    batch: int
    sequence: int
    axes: tuple[tuple[str, int], ...]
    micro_batches: int
    optimizer: str

    def size(self, axis: str) -> int:
        """Return how many GPUs share an axis."""
        return dict(self.axes).get(axis, 1)

    @property
    def sizes(self) -> GPT:
        """The model as Megatron-LM has it."""
        model = _known()[self.model]
        multiple = _PADDED * self.size("tp")
        return replace(model, vocab=-(-model.vocab // multiple) * multiple, style="megatron")


class OneNode(FittedFormat):
    """Forward and backward passes on the GPUs of one node."""

    name = "fp32-one-node"
    columns = (
        *("model", "precision", "gpu", "gpus", "global_batch", "sequence_length", "strategy", "micro_batches"),
        *("timed", "measured_ms"),
    )
    tables = ("end_to_end/gpt_fp32_4gpu.csv",)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.07}
    published: ClassVar[Mapping[str, str]] = {"step time": "NeuSight 8%"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _row(record)

    def predict(self, row: Row, constants: Mapping[str, float]) -> float:
        """Milliseconds."""
        return 1e3 * step_seconds(row.case)


def step_seconds(step: Step) -> float:
    """Return the simulated seconds of a step."""
    stages, layers = step.size("pp"), step.sizes.layers
    micro_batch = step.batch // step.size("dp") // step.micro_batches
    result = triosim.simulate(
        _described(step, micro_batch),
        {axis: size for axis, size in step.axes if size > 1} or "single",
        gpus=step.size("dp") * step.size("tp") * stages,
        batch_size=micro_batch * step.micro_batches,
        micro_batches=step.micro_batches,
        stages=tuple(f"transformer.layers.{layers * k // stages}" for k in range(1, stages)) or None,
        schedule="1f1b",
        tp_style="megatron",
    )
    return result.step_time_s


@lru_cache(maxsize=4)
def _described(step: Step, micro_batch: int) -> Trace:
    return triosim.describe(
        step.sizes,
        batch=micro_batch,
        sequence=step.sequence,
        dtype=step.dtype,
        attention="math",
        optimizer=step.optimizer,
        gpu=step.gpu,
    )


def _row(record: Record) -> Row:
    step = Step(
        model=record.one_of("model", tuple(_known())),
        gpu=_gpu(record),
        dtype=_DTYPES[record.one_of("precision", tuple(_DTYPES))],
        batch=record.whole("global_batch"),
        sequence=record.whole("sequence_length"),
        axes=_axes(record),
        micro_batches=record.whole("micro_batches"),
        optimizer=_TIMED[record.one_of("timed", tuple(_TIMED))],
    )
    share, stages = step.size("dp") * step.micro_batches, step.size("pp")
    record.check(not step.batch % share, f"global batch {step.batch}", f"give a multiple of {share}")
    record.check(not step.sizes.layers % stages, f"{stages} stages", f"give a divisor of {step.sizes.layers} layers")
    record.check(not step.sizes.heads % step.size("tp"), f"tp={step.size('tp')}", f"{step.sizes.heads} heads")
    longest = step.sizes.sequence
    record.check(step.sequence <= longest, f"sequence {step.sequence}", f"{step.model} has {longest} positions")
    label = (
        f"{step.model} on {record.text('gpus')} {record.text('gpu')} {record.text('strategy')} "
        f"batch={step.batch}/{step.micro_batches} s={step.sequence}"
    )
    return Row(label, step.model, record.number("measured_ms"), "ms", step)


def _axes(record: Record) -> tuple[tuple[str, int], ...]:
    """Return the sizes by axis of a strategy such as ``dp=2,tp=2``."""
    found = []
    for part in record.text("strategy").replace(" ", "").split(","):
        axis, _, size = part.partition("=")
        record.check(
            axis in ("dp", "tp", "pp") and size.isdigit() and int(size) > 0,
            f"'strategy' is '{record.text('strategy')}'",
            "give sizes of dp, tp and pp: dp=4, or tp=2,pp=2",
        )
        found.append((axis, int(size)))
    count = 1
    for _, size in found:
        count *= size
    record.check(count == record.whole("gpus"), f"{record.text('gpus')} GPUs", f"the strategy takes {count}")
    return tuple(found)


def _gpu(record: Record) -> str:
    try:
        return gpus.find(record.text("gpu")).name
    except TriosimError as error:
        raise type(error)(error.what, where=f"{record.where}, gpu", fix=error.fix) from None


def _known() -> dict[str, GPT]:
    """The GPTs that have names."""
    return {name: model for name, model in MODELS.items() if isinstance(model, GPT)} | _OWN


FORMATS = (OneNode(),)
