"""A step of torchtitan's Llama 3 on H100s as a command, and the command of its memory.

Parameters are in fp32 and gathered in bf16, or with products in eight bits in these; gradients are reduced in fp32
(torchtitan's defaults). Tensor parallelism is sequence parallel too. A pipeline's micro-batches have one sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from validation.steps.command import Command, axes
from validation.steps.rows import Row

#: What runs again in the backward pass, by torchtitan's word, of plain products and of those in eight bits.
_AGAIN = {
    "none": (None, None),
    "selective": ("save=mm/2,attention", "save=scaled_mm/2,attention"),
    "selective per-op": ("save=mm/2,attention", "save=scaled_mm/2,attention"),
    "full": ("checkpoint", "checkpoint"),
}
CHECKPOINTS = tuple(_AGAIN)
AXES = ("dp", "fsdp", "pp", "cp", "tp")
SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "gpipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is trained, and how it is divided. ``batch`` is that of a replica; ``axes`` are sizes by name.

    ``gpu`` and ``topology`` are as a command has them; the latter has a place for the GPUs' number.
    """

    model: str
    axes: tuple[tuple[str, int], ...]
    batch: int
    sequence: int
    checkpoints: str
    gpu: str
    topology: str
    schedule: str = "1f1b"
    compiled: bool = False
    eight: bool = False
    overlapped: bool = False  # asynchronous tensor parallelism

    @property
    def gpus(self) -> int:
        """How many there are."""
        found = 1
        for _, size in self.axes:
            found *= size
        return found

    @property
    def size(self) -> str:
        """The model and what divides it: rows of the same say the same of a constant."""
        return f"{self.model} {','.join(name for name, _ in self.axes)}"

    @property
    def label(self) -> str:
        """The columns in short."""
        said = ",".join(f"{name}={size}" for name, size in self.axes)
        more = [word for word in ("compiled", "eight", "overlapped") if getattr(self, word)]
        if "pp" in dict(self.axes):
            more.append(self.schedule)
        return " ".join((self.model, said, f"batch {self.batch}x{self.sequence}", self.checkpoints, *more))

    def command(self) -> Command:
        """Return the command that predicts the seconds of the step."""
        return Command.of(self._model, gpu=self.gpu, topology=self._topology, **self._options())

    def memory_command(self) -> Command:
        """Return the command that predicts the memory of its ranks."""
        return replace(Command.of(self._model, gpu=self.gpu, **self._options()), verb="memory")

    def row(self, measured: float, unit: str, quantity: str = "step time", published: float | None = None) -> Row:
        """Return a row of the step's time, or of its memory."""
        case = self.memory_command() if unit == "GiB" else self.command()
        return Row(
            self.label,
            self.size,
            measured,
            unit,
            case,
            quantity,
            published,
            gpu=self.gpu.partition("(")[0],
            framework="torchtitan",
        )

    @property
    def _model(self) -> str:
        return f"{self.model}(style=torchtitan)"

    @property
    def _topology(self) -> str | None:
        return self.topology.format(self.gpus) if self.gpus > 8 else None  # a node is the GPU's usual system

    def _options(self) -> dict[str, Any]:
        sizes = dict(self.axes)
        tensor, sharded = sizes.get("tp", 1) > 1, sizes.get("fsdp", 1) > 1
        own = ["shard_dtype=fp32"] if sharded else []
        own += ["parameter_dtype=fp8"] if sharded and self.eight else []
        own += ["embedding_gradient=whole"] if tensor else []
        own += ["overlap=ring"] if self.overlapped else []
        found = {
            "seq": self.sequence,
            "parallel": axes(**sizes),
            "stack": "compiled" if self.compiled else "eager",
            "products": "fp8" if self.eight else None,
            "optimizer": None if sharded else "master-adamw",
            "recompute": _AGAIN[self.checkpoints][self.eight],
            "gradient_dtype": "fp32",
            "tp_style": "megatron" if tensor else None,
            "sequence_parallel": tensor,
            "option": tuple(own),
        }
        if sizes.get("pp", 1) == 1:
            return found | {"micro_batch_size": self.batch}
        return found | {"micro_batch_size": 1, "micro_batches": self.batch, "schedule": self.schedule}
