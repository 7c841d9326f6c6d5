"""What fsdp and the zeros have in common: each rank keeps, and updates, a share of every parameter.

Rajbhandari et al. 2020 ("ZeRO"). Where the ranks along other axes have the same share (data parallelism around it, which is
hybrid sharding), gradients are summed over these too, share by share.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from triosim.compute.pricing import estimated
from triosim.errors import OptionError
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import Program
from triosim.tasks import AllReduce, Communicator, Compute, Handle, Layers, ReduceScatter, Task
from triosim.trace import Operator, Phase, Tensor


def with_sharded_optimizer(program: Program, mesh: Mesh, name: str) -> Program:
    """Return the program whose optimizer works on a rank's share of each parameter, its gradient and its states.

    A share is one of equal parts of the first dimension, the largest where it does not divide, as FSDP has it.
    """
    ranks = len(mesh.group(program.sharded_axes, 0).ranks)
    known = {tensor.shape for stage in program.stages for tensor in stage.parameters}

    def share(tensor: Tensor) -> Tensor:
        about = tensor.category in ("parameter", "gradient", "optimizer_state") or tensor.shape in known
        if not about or not tensor.shape or tensor.numel == 1:
            return tensor
        return replace(tensor, shape=(-(-tensor.shape[0] // ranks), *tensor.shape[1:]))

    shapes = {
        operator.id: replace(
            operator, inputs=tuple(map(share, operator.inputs)), outputs=tuple(map(share, operator.outputs))
        )
        for operator in program.operators
        if operator.phase == "optimizer"
    }
    return program.reshaped(shapes, note=f"{name}: the optimizer's times are predicted for a share of the parameters")


def require_training(program: Program, name: str) -> None:
    """Raise ``OptionError`` for inference, which has no optimizer to shard."""
    if not program.training:
        raise OptionError("inference has no optimizer to shard", where=name, fix="leave out --inference, or use dp")


class Replicas:
    """The ranks that have the same share: of the axes along which gradients are summed, those that are not sharded over."""

    def __init__(self, program: Program, mesh: Mesh) -> None:
        self._mesh = mesh
        self._axes = tuple(axis for axis in program.data_axes if axis not in program.sharded_axes)

    def of(self, rank: int) -> Communicator | None:
        """Return the communicator of the ranks that have a rank's share; None where it is alone."""
        group = self._mesh.group(self._axes, rank) if self._axes else None
        return group if group is not None and len(group.ranks) > 1 else None


def scatter(
    layers: Layers, group: Communicator, replicas: Communicator | None, stream: str
) -> Generator[Task, Any, Handle]:
    """Reduce some layers' gradients so that each rank of ``group`` has its share, then the shares among the replicas."""
    handle: Handle = yield ReduceScatter(layers.total, group, stream=stream, layers=layers)
    if replicas is not None:
        share = layers.total / len(group.ranks)
        handle = yield AllReduce(share, replicas, after=(handle,), stream=f"{stream} of replicas", layers=layers)
    return handle


class Copies:
    """Copies in device memory: what is gathered comes in one buffer, and what is scattered must lie in one.

    Each is one operator that reads and writes its bytes, at the time that the compute model gives it.
    """

    def __init__(self, program: Program) -> None:
        self._model, self._gpu = program.model, program.gpu
        self._made: dict[tuple[str, Phase, str, float], Compute] = {}

    def task(self, name: str, phase: Phase, layer: str, nbytes: float) -> Compute:
        """Return the task of a copy: one object for all who ask for the same."""
        key = (name, phase, layer, nbytes)
        if key not in self._made:
            source = Tensor(-1, (max(1, round(nbytes / 2)),), "bfloat16", "communication")
            copied = Operator(-1, name, phase, layer, (source,), (replace(source, id=-2, storage=-2),), 0.0)
            self._made[key] = Compute(tuple(estimated([copied], self._model, self._gpu)))
        return self._made[key]
