"""Fully sharded data parallelism (ZeRO-3): each rank keeps a share of the parameters, and gathers a unit's before it runs.

Zhao et al. 2023 ("PyTorch FSDP"), and what ``torch.distributed.fsdp.fully_shard`` does: an all-gather of a unit's parameters
before its forward pass and, unless they were kept, before its backward pass, issued while the unit before it runs; a
reduce-scatter of a unit's gradients when the last of them is there; the optimizer on the shares. The root's parameters
(those in no unit) are kept from the forward pass to the end of the backward pass, and so are those of the last unit,
of which the backward pass begins at once.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass

from triosim.config import Option
from triosim.config.offload import Offload
from triosim.extrapolators.core.extrapolator import DATA_ORDER, Extrapolator
from triosim.extrapolators.core.flags import GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of, require_gradients, with_hooks
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Block, Gradient, Program, RankHooksFactory, Stage
from triosim.extrapolators.data.sharded_state import (
    DeviceCopies,
    ShardGroups,
    reduced,
    shard_groups,
    with_sharded_optimizer,
)
from triosim.extrapolators.offload.parameters import READ_AHEAD, ParameterFetcher
from triosim.tasks import AllGather, Handle, Layers, TaskStream, Tier, Wait
from triosim.trace import DTYPE_BYTES, Phase, Tensor
from triosim.trace.numbered_modules import ROOT, numbered_module_of


class FullyShardedDataParallel(Extrapolator):
    """The parallelism ``fsdp``; together with ``dp`` or ``ddp``, hybrid sharding."""

    axis = "fsdp"
    identical_ranks = True
    order = DATA_ORDER - 1  # next to the tensor axis, inside of the replicas
    sums_gradients = True
    shards_optimizer = True
    options = (
        GRADIENT_DTYPE,
        Option("unit", "choice", "block", choices=("block", "layer", "model"),
               help="fsdp: the unit that is gathered at once: a numbered module, a layer, or the whole model."),
        Option("prefetch", "whole", 1, "fsdp: the number of units that are gathered ahead.", unit="units", least=0),
        Option("reshard", "choice", "auto", choices=("auto", "yes", "no"),
               help="fsdp: whether parameters are freed after the forward pass; auto: not within a pipeline."),
        Option("reduce", "choice", "auto", choices=("auto", "each", "last"),
               help="fsdp: whether each micro-batch reduces gradients, or the last; auto: the last within a pipeline."),
        Option("parameter_dtype", "dtype", None, "fsdp: the dtype in which parameters are gathered. By default their own."),
        Option("shard_dtype", "dtype",
               help="fsdp: the dtype in which shares are kept and updated. By default the parameters' own."),
        Option("buffers", "choice", "auto", choices=("auto", "copied", "flat"),
               help="fsdp: whether parameters and gradients are copied out of and into collectives' buffers, or lie there; "
               "auto: flat in Megatron's stacks, where units are freed."),
    )  # fmt: skip

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that gathers parameters and scatters gradients, unit by unit."""
        if program.training:
            require_gradients(program)
        kept_in = Offload.of(self.config.offload, training=program.training).parameters
        choices = FsdpChoices(
            unit=self.config.unit,
            prefetch=self.config.prefetch,
            reshards=_usually(self.config.reshard, "yes", mesh),
            each_micro_batch=_usually(self.config.reduce, "each", mesh),
            dtype=self.config.parameter_dtype,
            shard_dtype=self.config.shard_dtype,
            kept_in=kept_in,
            gathered_on_load=kept_in in program.gathering_memories,
        )
        flat = {"flat": True, "copied": False}.get(self.config.buffers, choices.reshards and _has_flat_buffers(program))
        copies = None if flat else DeviceCopies(program)
        groups, experts = shard_groups(program, mesh), program.experts

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
            units = StageUnits(stage, gradients, choices, groups, experts)
            return lambda context: ShardUnits(context, units, copies)

        if program.training:
            program = with_sharded_optimizer(program, mesh, self.axis, choices.shard_dtype)
        layers = {block.layer for stage in program.stages for block in stage.forward}
        if choices.unit == "block" and not any(map(numbered_module_of, layers)):
            program = program.noted(
                "fsdp: no module has a number in its name (layers.0), so all parameters form one unit; "
                "--option unit=layer makes one of each layer"
            )
        return with_hooks(program, program.sharded_axes, make)


def _usually(chosen: str, usual: str, mesh: Mesh) -> bool:
    """Whether an option is ``usual``, which "auto" is outside of a pipeline.

    In one, ``torch.distributed.pipelining`` keeps parameters whole, and gradients too, until the last micro-batch.
    """
    return chosen == usual or (chosen == "auto" and not any(axis.name == "pp" and axis.size > 1 for axis in mesh.axes))


def _has_flat_buffers(program: Program) -> bool:
    """Whether the software stack gathers parameters and reduces gradients where they lie."""
    return program.stack is not None and program.stack.flat_buffers


@dataclass(frozen=True, slots=True)
class FsdpChoices:
    """The user's options. ``dtype`` is that of gathered parameters, ``shard_dtype`` that of kept shares; None is their own.

    ``kept_in`` is the tier of the memory in which shares are kept; None is the GPU's. They are ``gathered_on_load`` where that
    memory's switches do so.
    """

    unit: str
    prefetch: int
    reshards: bool
    each_micro_batch: bool
    dtype: str | None
    shard_dtype: str | None
    kept_in: Tier | None = None
    gathered_on_load: bool = False

    def unit_of(self, layer: str) -> str:
        """Return the unit that a layer is in."""
        return {"block": numbered_module_of(layer), "layer": layer, "model": ROOT}[self.unit]


class StageUnits:
    """The units of a stage, which its ranks share. A parameter belongs to the unit of the layer that uses it first.

    Experts that have a group of their own are a unit inside of the one that their layer is in, and gathered when it is used.
    What has a group of one rank is not gathered, and without replicas it is not reduced either; but where parameters are
    kept outside of the GPU, all are fetched, and all gradients leave it.

    - ``shares`` are the bytes that a rank keeps of each unit.
    - ``parameters`` and ``gradients`` are the bytes of each unit by layer, ``parts`` its gradients one by one.
    - ``paths`` are the units that a layer is in, the root first; ``order`` are the units in the order of their use in a pass.
    - ``last`` are the units that the gradient of a parameter completes; ``reduced`` are all parameters with such gradients.
    - ``kept`` are the root and the last units of the forward pass, of which the backward pass begins at once.
    - ``groups`` are the ranks that share dense parameters (False) and experts (True); ``experts`` are storages.
    """

    def __init__(
        self,
        stage: Stage,
        gradients: tuple[Gradient, ...],
        choices: FsdpChoices,
        groups: Mapping[bool, ShardGroups],
        experts: frozenset[int],
    ) -> None:
        self.choices, self.groups, self.experts = choices, groups, experts
        home = _UnitsOfTensors(stage, choices, experts)
        self.expert_units = frozenset(home.expert_units.values())
        parameters: dict[str, dict[str, float]] = {}
        self.shares: dict[str, float] = {}
        for tensor in stage.parameters:
            if groups[tensor.storage in experts].ranks > 1 or choices.kept_in:
                unit = home.unit(tensor)
                self.shares[unit] = self.shares.get(unit, 0.0) + self.share(tensor)
                layers, layer = parameters.setdefault(home.unit(tensor), {}), home.layers[tensor.storage]
                nbytes = float(tensor.numel * DTYPE_BYTES[choices.dtype or tensor.dtype])
                layers[layer] = layers.get(layer, 0.0) + nbytes
        self.parameters = {name: Layers(layers) for name, layers in parameters.items()}
        self.parts: dict[str, list[Gradient]] = {}
        for gradient in gradients:
            sharing = groups[gradient.parameter.storage in experts]
            if sharing.ranks > 1 or sharing.replicas(0) is not None or choices.kept_in:
                self.parts.setdefault(home.unit(gradient.parameter), []).append(gradient)
        self.gradients = {name: layers_of(parts) for name, parts in self.parts.items()}
        self.last: dict[int, tuple[str, ...]] = {}
        for name, parts in self.parts.items():
            parameter = parts[-1].parameter.id
            self.last[parameter] = (*self.last.get(parameter, ()), name)
        self.hooked_parameters = frozenset(self.last)
        self.reduced = frozenset(one.parameter.id for parts in self.parts.values() for one in parts)
        self.paths = {block.layer: home.path(block.layer, parameters) for block in stage.blocks}
        self.order = {"forward": self._order(stage.forward), "backward": self._order(stage.backward)}
        self.positions = {phase: {unit: i for i, unit in enumerate(order)} for phase, order in self.order.items()}
        used_last = set(self.order["forward"][-1:])
        self.kept = {unit for path in self.paths.values() if used_last & set(path) for unit in (ROOT, *path)}

    def share(self, parameter: Tensor) -> float:
        """Return the bytes that a rank keeps of a parameter."""
        sharing = self.groups[parameter.storage in self.experts]
        dtype = self.choices.shard_dtype or parameter.dtype
        return float(math.prod(sharing.share(parameter.shape)) * DTYPE_BYTES[dtype])

    def _order(self, blocks: tuple[Block, ...]) -> tuple[str, ...]:
        return _distinct(name for block in blocks for name in self.paths[block.layer] if name != ROOT)


class _UnitsOfTensors:
    """The unit that each parameter of a stage belongs to: that of the layer which uses it first."""

    def __init__(self, stage: Stage, choices: FsdpChoices, experts: frozenset[int]) -> None:
        self._choices = choices
        self._experts = experts
        self.layers: dict[int, str] = {}  # by storage
        self.expert_units: dict[str, str] = {}  # by layer
        for block in stage.forward:
            for tensor in (t for operator in block.operators for t in operator.inputs if t.category == "parameter"):
                layer = self.layers.setdefault(tensor.storage, block.layer)
                if tensor.storage in experts:
                    self.expert_units[block.layer] = f"{choices.unit_of(layer)} experts".strip()

    def unit(self, tensor: Tensor) -> str:
        layer = self.layers[tensor.storage]
        return self.expert_units[layer] if tensor.storage in self._experts else self._choices.unit_of(layer)

    def path(self, layer: str, gathered: Container[str]) -> tuple[str, ...]:
        """Return those of the gathered units that a layer is in, the root first."""
        units = (ROOT, self._choices.unit_of(layer), self.expert_units.get(layer, ROOT))
        return _distinct(unit for unit in units if unit in gathered)


class ShardUnits(TrainingHooks):
    """Gathers one rank's units, and reduce-scatters their gradients. Without ``copies`` both lie in collectives' buffers."""

    def __init__(self, context: RankContext, units: StageUnits, copies: DeviceCopies | None) -> None:
        super().__init__(context)
        self._units, self._copies, self._choices = units, copies, units.choices
        self._groups = {kind: sharing.group(self.rank) for kind, sharing in units.groups.items()}
        self._replicas = {kind: sharing.replicas(self.rank) for kind, sharing in units.groups.items()}
        self._gathered: dict[str, Handle | None] = {}  # units that are whole here; None where they have been waited for
        self._phase: Phase | None = None
        self._inside: tuple[str, ...] = ()  # units, the outer ones first
        self._drained: str | None = None  # the unit whose buffer is read by a copy that nobody waits for
        self._fetcher = None if units.choices.kept_in is None else ParameterFetcher(context, units.choices.kept_in)
        self.each_micro_batch = units.choices.each_micro_batch
        self.hooked_parameters = units.hooked_parameters

    def resident_bytes(self, parameter: Tensor) -> float:
        """Return the bytes of a rank's share."""
        return self._units.share(parameter)

    def accumulated_bytes(self, gradient: Gradient) -> float:
        """Return the bytes of a gradient in the dtype that the backward pass computes it in."""
        parameter = gradient.parameter
        return float(parameter.numel * DTYPE_BYTES[self._choices.dtype or parameter.dtype])

    def reduces_each_time(self, gradient: Gradient) -> bool:
        """Whether a gradient is scattered in each micro-batch: that of a parameter which no other rank has is not."""
        return self.each_micro_batch and gradient.parameter.id in self._units.reduced

    def parameter_key(self, block: Block) -> Hashable:
        """Return the units that a block is in: where they stay the same, none begins."""
        return block.phase, self._units.paths[block.layer]

    def parameters_needed(self, block: Block) -> TaskStream | None:
        """Gather the units that begin, and the next ones ahead of their use.

        A unit is left where one begins that is not in it; the root, which is around all others, at a phase's end.
        """
        path = self._units.paths[block.layer]
        begins = path if block.phase != self._phase else tuple(unit for unit in path if unit not in self._inside)
        return self._enter(block.phase, path, begins) if begins else None

    def _enter(self, phase: Phase, path: tuple[str, ...], begins: tuple[str, ...]) -> TaskStream:
        self._leave(phase, path)
        self._phase, self._inside = phase, path
        for unit in begins:
            yield from self._gather(unit)
            handle = self._gathered[unit]
            if handle is not None:
                self._gathered[unit] = None
                yield Wait((handle,))
                if self._copies is not None and not self._is_whole(unit):
                    yield from self._copy_out(phase, unit, self._copies)
            following = self._units.positions[phase].get(unit, -1) + 1
            ahead = following + self._choices.prefetch
            for other in self._units.order[phase][following:ahead]:
                yield from self._gather(other)
            if self._fetcher is not None:
                yield from self._read_ahead(self._fetcher, self._units.order[phase][ahead : ahead + READ_AHEAD])

    def _read_ahead(self, fetcher: ParameterFetcher, units: Iterable[str]) -> TaskStream:
        """Begin to read units that will be fetched after those that are gathered ahead."""
        absent = [unit for unit in units if unit not in self._gathered]
        return fetcher.read_ahead(absent, [self._units.shares[unit] for unit in absent])

    def _is_whole(self, unit: str) -> bool:
        """Whether a rank's share of a unit is all of it, so that it is fetched and not gathered."""
        return len(self._groups[unit in self._units.expert_units].ranks) == 1

    def _copy_out(self, phase: Phase, unit: str, copies: DeviceCopies) -> TaskStream:
        """Copy a unit's parameters out of the all-gather's buffer."""
        nbytes = self._units.parameters[unit].total
        self.memory.free(("gathered", self._drained))
        self.memory.allocate(("whole", unit), nbytes, "communication", unit)
        yield copies.task("aten::split_with_sizes_copy", phase, unit, nbytes)
        if phase == "forward":
            self._drained = unit
        else:
            self.memory.free(("gathered", unit))

    def _leave(self, phase: Phase, path: tuple[str, ...]) -> None:
        """Free the units that are left and not kept; or all, where another micro-batch begins."""
        if phase == "backward" or self._phase is None:
            return  # in the backward pass a unit goes with its gradients
        if self._phase == "backward":
            if self._choices.each_micro_batch or self._choices.reshards:
                self._drop(*self._gathered)
        elif self._choices.reshards:
            self._drop(*(unit for unit in self._inside if unit not in path and unit not in self._units.kept))

    def _drop(self, *units: str) -> None:
        """Free whole units."""
        for unit in units:
            if unit in self._gathered:
                del self._gathered[unit]
                self.memory.free(("whole", unit))
                if self._copies is None or self._is_whole(unit):
                    self.memory.free(("gathered", unit))

    def _gather(self, unit: str) -> TaskStream:
        """Gather a unit; what was fetched for it is copied into the all-gather's buffer, and freed."""
        if unit in self._gathered:
            return
        layers, is_whole = self._units.parameters[unit], self._is_whole(unit)
        on_load = self._choices.gathered_on_load and not is_whole
        after: tuple[Handle, ...] = ()
        if self._fetcher is not None and not on_load:
            if not is_whole:
                fetched = self._units.shares[unit]
                self.memory.allocate(("fetched", unit), fetched, "communication", unit, stream="fsdp all-gather")
            after = ((yield from self._fetcher.fetch(unit, self._units.shares[unit])),)
        self.memory.allocate(("gathered", unit), layers.total, "communication", unit, stream="fsdp all-gather")
        if is_whole:
            (self._gathered[unit],) = after
            return
        group = self._groups[unit in self._units.expert_units]
        nbytes = self._units.shares[unit] * len(group.ranks) if on_load else layers.total
        memory = self._choices.kept_in if on_load else None
        gather = AllGather(nbytes, group, stream="fsdp all-gather", layers=layers, after=after, memory=memory)
        self._gathered[unit] = yield gather
        self.memory.free(("fetched", unit))

    def forward_ends(self) -> None:
        """Free the last buffer, which is copied out by now."""
        self.memory.free(("gathered", self._drained))

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Scatter the gradients of the units that are complete, and free their parameters."""
        for unit in self._units.last[gradient.parameter.id]:
            layers, kind = self._units.gradients[unit], unit in self._units.expert_units
            self.memory.free("scattered")  # the buffer of the unit before this one
            self._drop(unit)
            alone = self._is_whole(unit) and self._replicas[kind] is None
            if self._copies is not None and not alone:
                self.memory.allocate("scattered", layers.total, "communication", unit)
                yield self._copies.task("aten::chunk_cat", "backward", unit, layers.total)
            for part in self._units.parts[unit]:
                self.memory.free(("gradient", part.parameter.storage))
            self.memory.allocate(("share", unit), self._share(unit), "gradient", unit, stream="fsdp reduce-scatter")
            handle: Handle | None = None
            if not alone:
                handle = yield from reduced(layers, self._groups[kind], self._replicas[kind], "fsdp reduce-scatter")
                self.pending.append(handle)
            yield from self.announce(layers, self._share(unit), handle, (("share", unit),))

    def _share(self, unit: str) -> float:
        """Return the bytes of a rank's share of a unit's gradients."""
        dtype = self._choices.shard_dtype
        parts = self._units.parts[unit]
        whole = sum(p.nbytes if dtype is None else p.parameter.numel * DTYPE_BYTES[dtype] for p in parts)
        return whole / len(self._groups[unit in self._units.expert_units].ranks)

    def before_optimizer(self) -> TaskStream | None:
        """Free the last scattered buffer and all whole units."""
        self.memory.free("scattered")
        self._drop(*self._gathered)
        return super().before_optimizer()

    def after_optimizer(self) -> TaskStream | None:
        """Forget the gathered units: the parameters have changed."""
        self._gathered.clear()
        self._phase, self._inside = None, ()
        return None


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in the order in which they first come, each once."""
    return tuple(dict.fromkeys(names))
