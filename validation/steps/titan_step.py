"""One training step of torchtitan's Llama on H100s, from its sizes to seconds and bytes: described, sharded and simulated.

All layers are alike: steps of a few layers are simulated, and the time of all is on the line through both. A pipeline
has all. Parameters are in fp32 and gathered in bf16, or with products in eight bits in these; gradients are reduced in
fp32 (torchtitan's defaults). Tensor parallelism is sequence parallel too, as torchtitan's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import triosim
from triosim.memory.extrapolated_memory import ExtrapolatedMemory
from triosim.models import Llama
from triosim.models.catalogue import MODELS
from triosim.trace import Trace

CONSTANTS = ("beside_collective", "beside_computation")
#: Steps of so many layers are simulated.
FEW, MORE = 4, 8
#: What runs again in the backward pass, by torchtitan's word, of plain products and of those in eight bits.
_AGAIN = {
    "none": ("none", "none"),
    "selective": ("save=mm/2,attention", "save=scaled_mm/2,attention"),
    "full": ("checkpoint", "checkpoint"),
}
CHECKPOINTS = tuple(_AGAIN)
AXES = ("dp", "fsdp", "pp", "cp", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """H100s with a memory and a power limit, so many in a node; ``card`` is a GPU's bandwidth to other nodes, one way."""

    bandwidth: float = 3.352e12
    memory: float = 80e9
    watts: float = 700.0
    gpus: int = 8
    card: str = "400 Gb/s"

    @property
    def board(self) -> str:
        """The name of the GPU."""
        return f"H100(power={self.watts:g} W, bandwidth={self.bandwidth / 1e12:g} TB/s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is trained, and how it is divided. ``batch`` is that of a replica; ``axes`` are sizes by name."""

    model: str
    axes: tuple[tuple[str, int], ...]
    batch: int
    sequence: int
    checkpoints: str
    nodes: Nodes
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
        return " ".join((self.model, said, f"batch {self.batch}x{self.sequence}", self.checkpoints, *more))


def step_seconds(step: Step, constants: Mapping[str, float]) -> float:
    """Return the simulated seconds of a step."""
    layers = llama(step.model).layers
    if dict(step.axes).get("pp", 1) > 1 or layers <= MORE:
        return _simulated(step, layers, constants)
    few, more = (_simulated(step, count, constants) for count in (FEW, MORE))
    return more + (more - few) * (layers - MORE) / (MORE - FEW)


def llama(name: str) -> Llama:
    """Return the sizes of a model in torchtitan's style."""
    found = MODELS[name]
    assert isinstance(found, Llama)
    return replace(found, style="torchtitan")


def _simulated(step: Step, layers: int, constants: Mapping[str, float]) -> float:
    extra = {"overlap": "ring"} if step.overlapped else {}
    result = triosim.simulate(
        _described(step, layers, step.nodes.board),
        _axes(step) or "single",
        gpus=step.gpus,
        topology=_topology(step),
        collective="auto",
        conditions={
            "compute_slowdown": constants["beside_collective"],
            "collective_slowdown": constants["beside_computation"],
        },
        options=_gathered(step) | extra,
        **_divided(step),
    )
    return result.step_time_s


def step_memory(step: Step) -> ExtrapolatedMemory:
    """Return the memory of all ranks of a step, with all layers.

    FSDP keeps its shares of parameters, gradients and states in fp32; what it does not divide has a copy in fp32.
    """
    axes = _axes(step)
    extra = {"shard_dtype": "float32"} if "fsdp" in axes else {}
    extra |= {"embedding_gradient": "whole"} if "tp" in axes else {}
    optimizer = "adamw" if "fsdp" in axes else "master-adamw"
    trace = _described(step, llama(step.model).layers, "H100-SXM", optimizer)
    return triosim.rank_memory(
        trace, axes or "single", gpus=step.gpus, options=_gathered(step) | extra, **_divided(step)
    )


def peak_gib(memory: ExtrapolatedMemory, counted: str, capacity: float) -> float:
    """Return the peak of the fullest rank in GiB: of ``live`` tensors, or what is ``allocated`` or ``reserved`` for them."""
    return float(getattr(memory.report(capacity=capacity), f"peak_{counted}")) / 2**30


def _axes(step: Step) -> dict[str, int]:
    return {name: size for name, size in step.axes if size > 1}


def _divided(step: Step) -> dict[str, Any]:
    """Return the options of the division that times and memory have in common."""
    axes = _axes(step)
    found: dict[str, Any] = {"recompute": _AGAIN[step.checkpoints][step.eight], "gradient_dtype": "float32"}
    if "tp" in axes:
        found |= {"tp_style": "megatron", "sequence_parallel": True}
    if "pp" in axes:
        found |= {"schedule": "1f1b", "micro_batches": step.batch}
    return found


def _gathered(step: Step) -> dict[str, str]:
    return {"parameter_dtype": "fp8"} if step.eight and "fsdp" in _axes(step) else {}


@lru_cache(maxsize=4)
def _described(step: Step, layers: int, gpu: str, optimizer: str = "master-adamw") -> Trace:
    return triosim.describe(
        llama(step.model),
        batch=step.batch,
        sequence=step.sequence,
        layers=layers,
        kernels="compiled" if step.compiled else "eager",
        products="fp8" if step.eight else "plain",
        optimizer=optimizer,
        gpu=gpu,
    )


def _topology(step: Step) -> dict[str, Any] | None:
    if step.gpus == 1:
        return None
    nodes = step.nodes
    inside = {"preset": "dgx-h100", "gpus": step.gpus, "gpus_per_node": min(nodes.gpus, step.gpus)}
    return inside | {"inter_node": {"bandwidth": nodes.card, "latency": "1 us"}}
