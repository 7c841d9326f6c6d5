"""Fully sharded data parallelism (ZeRO-3): each rank keeps a share of the parameters, and gathers a unit's before it runs.

Zhao et al. 2023 ("PyTorch FSDP"), and what ``torch.distributed.fsdp.fully_shard`` does: an all-gather of a unit's parameters
before its forward pass and, unless they were kept, before its backward pass, issued while the unit before it runs; a
reduce-scatter of a unit's gradients when the last of them is there; the optimizer on the shares. The root's parameters
(what is in no unit) are kept from the forward pass to the end of the backward pass, and so are those of the last unit,
of which the backward pass begins at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from triosim.errors import OptionError, nearest
from triosim.extrapolators.base import DATA_ORDER, Extrapolator
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import Block, Gradient, Program, Stage
from triosim.extrapolators.reaction import Reaction, layers_of, reacting, require_gradients
from triosim.extrapolators.sharded_state import Copies, Replicas, scatter, with_sharded_optimizer
from triosim.extrapolators.units import ROOT, in_order, unit_of
from triosim.tasks import AllGather, Communicator, Handle, Layers, TaskStream, Wait
from triosim.trace import DTYPE_BYTES, Phase, dtype_name


class FullySharded(Extrapolator):
    """``fsdp``; with ``dp`` or ``ddp`` around it, hybrid sharding."""

    axis = "fsdp"
    place = "react"
    alike = True
    order = DATA_ORDER - 1  # next to the tensor axis, inside of the replicas
    sums_gradients = True
    shards_optimizer = True
    extra_options = ("unit", "prefetch", "reshard", "reduce", "parameter_dtype")

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that gathers parameters and scatters gradients, unit by unit."""
        if program.training:
            require_gradients(program)
        choices = Choices(
            unit=self.choice("unit", ("block", "layer", "model")),
            prefetch=self.number("prefetch", 1),
            reshards=self._said("reshard", "yes", "no", mesh),
            each_micro_batch=self._said("reduce", "each", "last", mesh),
            dtype=self._parameter_dtype(),
        )
        replicas, copies = Replicas(program, mesh), Copies(program)

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[Communicator, int], Reaction]:
            units = Units.of(stage, gradients, choices)
            shared = Shared(choices, units, copies)
            return lambda group, rank: ShardUnits(group, rank, shared, replicas.of(rank))

        if program.training:
            program = with_sharded_optimizer(program, mesh, self.axis)
        layers = {block.layer for stage in program.stages for block in stage.forward}
        if choices.unit == "block" and not any(map(unit_of, layers)):
            program = program.noted(
                "fsdp: no module is numbered (layers.0), so that all parameters are one unit; --option unit=layer divides them"
            )
        return reacting(program, program.sharded_axes, make)

    def _said(self, option: str, usual: str, in_pipeline: str, mesh: Mesh) -> bool:
        """Whether an option is what it usually is: what the user says, or else as ``torch.distributed.pipelining`` has it,
        where parameters stay whole, and gradients too, until the last micro-batch.
        """
        said = self.choice(option, ("auto", usual, in_pipeline))
        return said == usual or (said == "auto" and not any(axis.name == "pp" and axis.size > 1 for axis in mesh.axes))

    def _parameter_dtype(self) -> str | None:
        text = self.options.extra.get("parameter_dtype")
        if text is None:
            return None
        if dtype_name(text) not in DTYPE_BYTES:
            raise OptionError(
                f"unknown dtype '{text}'", where="--option parameter_dtype", fix=nearest(text, DTYPE_BYTES)
            )
        return dtype_name(text)


@dataclass(frozen=True, slots=True)
class Choices:
    """What a user says of it. ``dtype`` is what parameters are gathered in, None for their own."""

    unit: str
    prefetch: int
    reshards: bool
    each_micro_batch: bool
    dtype: str | None

    def unit_of(self, layer: str) -> str:
        """Return the unit that a layer is in."""
        return {"block": unit_of(layer), "layer": layer, "model": ROOT}[self.unit]


@dataclass(frozen=True, slots=True)
class Units:
    """A stage's units: parameters and gradients by layer, the order of their use, and whose gradient is a unit's last."""

    parameters: Mapping[str, Layers]
    gradients: Mapping[str, Layers]
    orders: Mapping[Phase, tuple[str, ...]]
    last: Mapping[int, tuple[str, ...]]  # by parameter: the units that its gradient completes

    @classmethod
    def of(cls, stage: Stage, gradients: tuple[Gradient, ...], choices: Choices) -> Units:
        """Return the units of a stage. A parameter belongs to the unit that uses it first."""
        home: dict[int, str] = {}
        for block in stage.forward:
            for operator in block.operators:
                for tensor in operator.inputs:
                    if tensor.category == "parameter":
                        home.setdefault(tensor.storage, block.layer)
        parameters: dict[str, dict[str, float]] = {}
        for tensor in stage.parameters:
            layer = home[tensor.storage]
            layers = parameters.setdefault(choices.unit_of(layer), {})
            nbytes = float(tensor.numel * DTYPE_BYTES[choices.dtype or tensor.dtype])
            layers[layer] = layers.get(layer, 0.0) + nbytes
        reduced: dict[str, list[Gradient]] = {}
        completes: dict[str, int] = {}
        for gradient in gradients:
            unit = choices.unit_of(home[gradient.parameter.storage])
            reduced.setdefault(unit, []).append(gradient)
            completes[unit] = gradient.parameter.id
        last: dict[int, tuple[str, ...]] = {}
        for unit, parameter in completes.items():
            last[parameter] = (*last.get(parameter, ()), unit)

        def order(blocks: tuple[Block, ...]) -> tuple[str, ...]:
            units = (choices.unit_of(block.layer) for block in blocks)
            return in_order(unit for unit in units if unit in parameters and unit != ROOT)

        return cls(
            {unit: Layers(layers) for unit, layers in parameters.items()},
            {unit: layers_of(some) for unit, some in reduced.items()},
            {"forward": order(stage.forward), "backward": order(stage.backward)},
            last,
        )


class Shared:
    """What the ranks of a stage share."""

    def __init__(self, choices: Choices, units: Units, copies: Copies) -> None:
        self.choices = choices
        self.units = units
        self.places = {phase: {unit: i for i, unit in enumerate(order)} for phase, order in units.orders.items()}
        self.acts_on = frozenset(units.last)
        self.copies = copies


class ShardUnits(Reaction):
    """Gathers and scatters one rank's units."""

    def __init__(self, group: Communicator, rank: int, shared: Shared, replicas: Communicator | None) -> None:
        super().__init__(group, rank)
        self._shared = shared
        self._units = shared.units
        self._replicas = replicas
        self._gathered: dict[str, Handle | None] = {}  # units that are whole here; None where they have been waited for
        self._current: tuple[Phase, str] | None = None
        self.each_micro_batch = shared.choices.each_micro_batch
        self.acts_on = shared.acts_on if not self.alone or replicas is not None else frozenset()

    def parameters_needed(self, block: Block) -> TaskStream | None:
        """Gather the unit that begins, and the next ones ahead of their use."""
        unit = self._shared.choices.unit_of(block.layer)
        if self.alone or unit not in self._units.parameters or self._is_in(block.phase, unit):
            return None
        return self._enter(block.phase, unit)

    def _is_in(self, phase: Phase, unit: str) -> bool:
        """Whether a rank is in a unit, or in the root, which is around all others and which it leaves at a phase's end."""
        return self._current == (phase, unit) or (
            unit == ROOT and self._current is not None and self._current[0] == phase
        )

    def _enter(self, phase: Phase, unit: str) -> TaskStream:
        before, self._current = self._current, (phase, unit)
        self._give_back(before)
        yield from self._gather(unit)
        handle = self._gathered[unit]
        if handle is not None:
            self._gathered[unit] = None
            yield Wait((handle,))
            yield self._shared.copies.task(
                "aten::split_with_sizes_copy", phase, unit, self._units.parameters[unit].total
            )
        following = self._shared.places[phase].get(unit, -1) + 1
        for other in self._units.orders[phase][following : following + self._shared.choices.prefetch]:
            yield from self._gather(other)

    def _give_back(self, before: tuple[Phase, str] | None) -> None:
        """Drop what is not kept of the unit before; or of all, where another micro-batch begins."""
        assert self._current is not None
        if before is None or self._current[0] == "backward":
            return  # in the backward pass a unit goes with its gradients
        if before[0] == "backward":
            if self._shared.choices.each_micro_batch or self._shared.choices.reshards:
                self._gathered.clear()
        elif self._shared.choices.reshards and before[1] not in (ROOT, self._units.orders["forward"][-1]):
            self._gathered.pop(before[1], None)

    def _gather(self, unit: str) -> TaskStream:
        if unit not in self._gathered:
            layers = self._units.parameters[unit]
            gather = AllGather(layers.total, self.group, stream="fsdp all-gather", layers=layers)
            self._gathered[unit] = yield gather

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Scatter the gradients of the units that are complete, and give back their parameters."""
        for unit in self._units.last[gradient.parameter.id]:
            layers = self._units.gradients[unit]
            yield self._shared.copies.task("aten::chunk_cat", "backward", unit, layers.total)
            self.pending.append((yield from scatter(layers, self.group, self._replicas, "fsdp reduce-scatter")))
            if unit != ROOT:
                self._gathered.pop(unit, None)

    def after_optimizer(self) -> TaskStream | None:
        """The parameters have changed: what was gathered is no longer true."""
        self._gathered.clear()
        self._current = None
        return None
