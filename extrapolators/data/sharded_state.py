"""The shared parts of fsdp, zero1 and zero2: each rank keeps, and updates, a share of every parameter.

Rajbhandari et al. 2020 ("ZeRO"). Where the ranks along other axes have the same share (data parallelism around it, which is
hybrid sharding), gradients are summed over these too, share by share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from triosim.compute.pricing.repricing import estimated
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.program.kept_programs import with_kept_optimizer
from triosim.sharding.parameters import owners, parameter_storages
from triosim.tasks import COMMUNICATION_STREAM, AllReduce, Communicator, Compute, Handle, Layers, ReduceScatter, Task
from triosim.trace import Operator, Phase, Tensor


class ShardGroups:
    """The ranks among which dense parameters, or experts, are sharded (those along ``axes``), and their replicas."""

    def __init__(self, program: Program, mesh: Mesh, *, experts: bool = False) -> None:
        self._mesh = mesh
        self._experts = experts
        self.axes = program.replica_axes(program.sharded_axes, experts=experts)
        outside = tuple(axis for axis in program.data_axes if axis not in program.sharded_axes)
        self._outside = program.replica_axes(outside, experts=experts)
        self.ranks = len(self.group(0).ranks)

    def group(self, rank: int) -> Communicator:
        """Return the communicator of the ranks among which a rank's parameters are sharded."""
        return self._mesh.group(self.axes, rank)

    def replicas(self, rank: int) -> Communicator | None:
        """Return the communicator of the ranks that have the same share as a rank; None where it is alone."""
        group = self._mesh.group(self._outside, rank)
        return group if len(group.ranks) > 1 else None

    def share(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a rank's share of a parameter.

        It is one of equal parts of the first dimension, the largest where it does not divide, as FSDP has it; of fewer
        stacked experts than ranks, of the second.
        """
        if not shape:
            return shape
        dim = 1 if self._experts and len(shape) == 3 and self.ranks > shape[0] else 0
        return (*shape[:dim], -(-shape[dim] // self.ranks), *shape[dim + 1 :])


def shard_groups(program: Program, mesh: Mesh) -> dict[bool, ShardGroups]:
    """Return the groups that shard dense parameters (False) and, where a program has some, experts (True)."""
    kinds = (False, True) if program.experts else (False,)
    return {experts: ShardGroups(program, mesh, experts=experts) for experts in kinds}


def with_sharded_optimizer(program: Program, mesh: Mesh, name: str, dtype: str | None = None) -> Program:
    """Return the program whose optimizer works on a rank's share of each parameter, its gradient and its states.

    Shares are kept in ``dtype``, where that is another than the trace's.
    """
    kinds = shard_groups(program, mesh)
    note = f"{name}: the optimizer's times are predicted for a share of the parameters"

    def sharded() -> Program:
        shapes = optimizer_shares(program, lambda shape, experts: kinds[experts].share(shape), dtype)
        return program.reshaped(shapes, note=note)

    if program.experts or len(program.stages) > 1:
        return sharded()
    others = name, kinds[False].ranks, dtype, program.stages[0].parameters
    return with_kept_optimizer(program, others, note, sharded)


def optimizer_shares(
    program: Program, share_of: Callable[[tuple[int, ...], bool], tuple[int, ...]], dtype: str | None = None
) -> dict[int, Operator]:
    """Return the optimizer's operators on shares of the parameters, their gradients and states, by id.

    ``share_of`` returns the shape of a share, from that of the tensor and whether it is an expert's. Shares are of ``dtype``,
    by default the tensor's.
    """
    parameters = [tensor for stage in program.stages for tensor in stage.parameters]
    known = {tensor.shape for tensor in parameters}
    stacked = {t.shape for t in parameters if t.storage in program.experts}
    stacked -= {t.shape for t in parameters if t.storage not in program.experts}
    updating = [operator for operator in program.operators if operator.phase == "optimizer"]
    about = owners(updating, parameter_storages(program.operators))

    def is_expert(tensor: Tensor) -> bool:
        return about[tensor.id] in program.experts if tensor.id in about else tensor.shape in stacked

    def share(tensor: Tensor) -> Tensor:
        has_a_share = tensor.category in ("parameter", "gradient", "optimizer_state") or tensor.shape in known
        if not has_a_share or not tensor.shape or tensor.numel == 1:
            return tensor
        shape = share_of(tensor.shape, is_expert(tensor))
        # Written out, because replace() takes several times as long.
        return Tensor(tensor.id, shape, dtype or tensor.dtype, tensor.category, tensor.storage, tensor.parameter)

    return {
        operator.id: operator.with_tensors(tuple(map(share, operator.inputs)), tuple(map(share, operator.outputs)))
        for operator in updating
    }


def reduced(
    layers: Layers,
    group: Communicator,
    replicas: Communicator | None,
    stream: str = COMMUNICATION_STREAM,
    *,
    whole: bool = False,
) -> Generator[Task, Any, Handle]:
    """Reduce-scatter some layers' gradients in ``group``, then all-reduce the shares among the replicas.

    With ``whole`` both are all-reduces of the whole gradients. The group has several ranks, or there are replicas.
    """
    handles: tuple[Handle, ...] = ()
    if len(group.ranks) > 1:
        kind = AllReduce if whole else ReduceScatter
        handles = ((yield kind(layers.total, group, stream=stream, layers=layers)),)
    if replicas is None:
        return handles[0]
    nbytes = layers.total if whole else layers.total / len(group.ranks)
    handle: Handle = yield AllReduce(nbytes, replicas, after=handles, stream=f"{stream} of replicas", layers=layers)
    return handle


class DeviceCopies:
    """Copies in device memory, out of the buffer of an all-gather or into that of a reduce-scatter.

    Each is one operator that reads and writes its bytes, at the time that the compute model gives it.
    """

    def __init__(self, program: Program) -> None:
        self._model, self._gpu, self._deduplicate = program.model, program.gpu, program.deduplicate
        self._priced: dict[tuple[str, Phase, str, float], Operator] = {}  # the copy of one unit
        self._made: dict[tuple[str, Phase, str, float], Compute] = {}

    def task(self, name: str, phase: Phase, layer: str, nbytes: float) -> Compute:
        """Return the task of a copy: one object for all who ask for the same."""
        key = (name, phase, layer, nbytes)
        if key not in self._made:
            priced_key = (name, phase, "" if self._deduplicate else layer, nbytes)
            copied = self._priced.get(priced_key)
            if copied is None:
                source = Tensor(-1, (max(1, round(nbytes / 2)),), "bfloat16", "communication")
                asked = Operator(-1, name, phase, layer, (source,), (replace(source, id=-2, storage=-2),), 0.0)
                (copied,) = estimated([asked], self._model, self._gpu)
                self._priced[priced_key] = copied
            self._made[key] = Compute((replace(copied, layer=layer),))
        return self._made[key]
