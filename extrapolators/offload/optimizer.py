"""The optimizer on the CPU: gradients go to the host while the backward pass runs, updated parameters come back.

Ren et al. 2021 ("ZeRO-Offload"): each gradient, or a rank's share of it, is copied to the host as soon as it is reduced; when
all are there, the CPU updates the parameters tile by tile, and each tile is copied to the GPU while the next one is updated.
FSDP2's ``CPUOffloadPolicy`` keeps parameters on the host too, so that nothing comes back until they are needed again.
Where the states are on drives (Rajbhandari et al. 2021, "ZeRO-Infinity"), tiles are read ahead of their update and written
behind it.

An update takes what the host's memory needs for the bytes that a fused Adam reads and writes, each tensor once: 28 a parameter
in single precision (four tensors read, three written), and two more where a copy in half precision is written. CPUs have so
much arithmetic that its bandwidth is what limits them (Ren et al. 2021, section 5.1). All ranks of a host share it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from triosim.config.offload import Offload
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks
from triosim.extrapolators.core.program import Gradient, Stage
from triosim.operators.features import base_name
from triosim.tasks import COMPUTE_STREAM, Copy, Handle, Layers, Task, TaskStream, Wait
from triosim.trace import Operator, Tensor

#: The parameters that the CPU updates, and that are copied, at once: DeepSpeed's (``TILE`` of its cpu_adam.h).
TILE = 128 * 2**20

_COPIES = ("copy", "foreach_copy")

#: What reports call the copies, and the accesses of host memory by the CPU's optimizer.
GRADIENTS, UPDATE, PARAMETERS, STATES = "gradients", "cpu optimizer", "parameters", "states"


@dataclass(frozen=True, slots=True)
class OptimizerBytes:
    """The bytes of a rank's optimizer, each tensor once: what it ``traffic`` reads and writes, and its ``states``.

    ``updated`` are the parameters that it writes, ``copies`` those that it also reads, so that the host has them; ``tiles`` is
    how many the CPU divides them into.
    """

    traffic: float
    states: float
    updated: float
    copies: float
    tiles: int

    @classmethod
    def of(cls, stage: Stage) -> OptimizerBytes:
        """Return those of the optimizer of a pipeline rank."""
        operators = [operator for block in stage.optimizer for operator in block.operators]
        kept = ("parameter", "gradient", "optimizer_state")
        read = _distinct(one for op in operators for one in _read(op) if one.category in kept)
        written = _distinct(one for op in operators for one in op.outputs if one.category in kept)
        states = {key: one for key, one in (read | written).items() if one.category == "optimizer_state"}
        updated = {key: one for key, one in written.items() if one.category == "parameter"} or {
            key: one for key, one in read.items() if one.category == "parameter"
        }
        written = states | updated  # a gradient that is cleared is not
        return cls(
            traffic=_nbytes(read.values()) + _nbytes(written.values()),
            states=_nbytes(states.values()),
            updated=_nbytes(updated.values()),
            copies=_nbytes(one for key, one in updated.items() if key in read),
            tiles=max(1, math.ceil(sum(one.numel for one in updated.values()) / TILE)),
        )


def _read(operator: Operator) -> Iterator[Tensor]:
    """Yield the tensors that an operator reads: a copy lists those that it overwrites among its inputs."""
    overwritten = {one.storage for one in operator.outputs} if base_name(operator.name) in _COPIES else ()
    return (one for one in operator.inputs if one.storage not in overwritten)


def _distinct(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """Return the largest tensor of each storage."""
    found: dict[int, Tensor] = {}
    for tensor in tensors:
        known = found.get(tensor.storage)
        if known is None or tensor.numel > known.numel:
            found[tensor.storage] = tensor
    return found


def _nbytes(tensors: Iterable[Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """What the ranks of a stage share: where things are kept, the optimizer's bytes, and the stage's gradients.

    ``unshared`` are the parameters whose gradients no other rank adds to, so that nobody reduces them.
    """

    offload: Offload
    sizes: OptimizerBytes
    gradients: tuple[Gradient, ...]
    unshared: frozenset[int]


class HostOptimizer(TrainingHooks):
    """Copies one rank's gradients to the host, updates its parameters there, and copies these back."""

    def __init__(self, context: RankContext, plan: OptimizerPlan) -> None:
        super().__init__(context)
        self._plan = plan
        self._offload = plan.offload
        self.hooked_parameters = plan.unshared
        self.runs_optimizer = plan.offload.optimizer is None
        self._copied: list[Handle] = []  # of this step, to the host
        self._seen: dict[Hashable, float] = {}  # the bytes of gradients, before they were divided, by what was reduced
        self._total = sum(one.nbytes for one in plan.gradients)

    def kept_in(self, category: str) -> str | None:
        """Return the tier of the memory that a category of tensors is kept in; None for the GPU's."""
        return {"parameter": self._offload.parameters, "optimizer_state": self._offload.optimizer}.get(category)

    def step_begins(self) -> None:
        """Note what the host holds beside parameters and states: buffers of gradients, and the parameters that it updates."""
        if self.runs_optimizer:
            return
        if self._offload.parameters is None:
            self.memory.allocate("host parameters", self._plan.sizes.copies, "parameter", tier="host")
        if self._offload.optimizer == "nvme":
            tile = self._plan.sizes.states / self._plan.sizes.tiles
            self.memory.allocate("host tiles", 3 * tile, "communication", tier="host")  # read, updated and written

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Copy a gradient that nobody reduces."""
        key = ("gradient", gradient.parameter.storage)
        yield from self._store(key, gradient.nbytes, gradient.nbytes, None, (key,))

    def gradients_reduced(
        self, layers: Layers, nbytes: float, reduced: Handle | None, freed: tuple[Hashable, ...]
    ) -> TaskStream | None:
        """Copy gradients that another parallelism reduces, once they are."""
        return None if self.runs_optimizer else self._store(layers, layers.total, nbytes, reduced, freed)

    def _store(
        self, key: Hashable, whole: float, nbytes: float, reduced: Handle | None, freed: tuple[Hashable, ...]
    ) -> TaskStream:
        """Copy ``nbytes``, a share of ``whole`` gradients, to the host, and add them to those of earlier micro-batches."""
        for one in freed:
            self.memory.free(one)
        self.memory.allocate(("host", key), nbytes, "gradient", tier="host")
        after = () if reduced is None else (reduced,)
        issuer = COMPUTE_STREAM if reduced is None else None
        copied = yield Copy("device", "host", nbytes, stream=GRADIENTS, issuer=issuer, label=GRADIENTS, after=after)
        if key in self._seen:  # two tensors read, one written
            copied = yield Copy("host", "host", 3 * nbytes, stream=UPDATE, issuer=None, label=UPDATE, after=(copied,))
        self._seen[key] = whole
        self._copied.append(copied)

    def after_optimizer(self) -> TaskStream | None:
        """Update the parameters on the host; what follows on the GPU waits for them."""
        return None if self.runs_optimizer else self._update()

    def _update(self) -> TaskStream:
        left = self._total - sum(self._seen.values())
        if left > 0.5:  # gradients of which no parallelism said that they are reduced
            yield from self._store("others", left, left, None, ())
        ready, ends = tuple(self._copied), list[Handle]()
        self._copied, self._seen = [], {}
        for _ in range(self._plan.sizes.tiles):
            ends += yield from self._update_tile(ready)
        yield Wait(tuple(ends))

    def _update_tile(self, ready: tuple[Handle, ...]) -> Generator[Task, Any, list[Handle]]:
        """Update a tile once all gradients are ``ready``, with its states from drives and back; return what ends last."""
        sizes, offload = self._plan.sizes, self._offload
        on_drives = offload.optimizer == "nvme"
        if on_drives:
            state = yield self._copy("nvme", "host", sizes.states, STATES, ready)
            ready = (*ready, state)
        updated = yield self._copy("host", "host", sizes.traffic, UPDATE, ready)
        ends = [updated]
        if on_drives:
            ends.append((yield self._copy("host", "nvme", sizes.states, STATES, (updated,))))
        to = "device" if offload.parameters is None else offload.parameters
        if to != "host":
            ends.append((yield self._copy("host", to, sizes.updated, PARAMETERS, (updated,))))
        return ends

    def _copy(self, source: str, destination: str, nbytes: float, label: str, after: tuple[Handle, ...]) -> Copy:
        """Return the copy of a tile of so many bytes."""
        stream = f"{label} to {destination}"
        nbytes /= self._plan.sizes.tiles
        return Copy(source, destination, nbytes, stream=stream, issuer=None, label=label, after=after)
