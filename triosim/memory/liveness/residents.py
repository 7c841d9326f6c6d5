"""What a rank holds for the whole step: parameters, buffers, optimizer states, inputs and communication buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from triosim.extrapolators.core.memory import MemoryFootprint
from triosim.extrapolators.core.program import Program, Stage
from triosim.memory.liveness.micro_batch_lifetimes import CapturedStorages, ProgramStorages
from triosim.trace import Storage, Tensor


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory that a rank holds for the whole step."""

    nbytes: int
    category: str
    layer: str
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @classmethod
    def of(cls, tensor: Tensor | Storage, layer: str, nbytes: float) -> Resident:
        """Return the memory of a tensor, or of a captured storage, that takes ``nbytes`` on this rank."""
        return cls(round(nbytes), tensor.category, layer, tensor.shape, tensor.dtype)


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """The tensors that the operators of a rank's stages find when the step begins, each with the layer that it belongs to.

    ``others`` are all but ``parameters`` and gradients, the largest tensor of each storage.
    """

    parameters: tuple[tuple[Tensor, str], ...]
    others: tuple[tuple[Tensor, str], ...]

    @classmethod
    def of(cls, stage: Stage, storages: ProgramStorages) -> HeldTensors:
        """Return those of a pipeline rank, all of whose stages are given as one."""
        layers: dict[int, str] = {}  # by storage: the layer that uses it first
        parameter_of: dict[int, int] = {}  # storage of a parameter, by that of its states
        largest: dict[int, Tensor] = {}  # by storage
        persistent = storages.persistent
        for block in stage.blocks:
            for storage, use in block.tensors.storages.items():
                if not persistent[storage]:
                    continue
                layers.setdefault(storage, use.layer)
                for parameter in use.named:
                    if parameter in storages.parameters:
                        parameter_of[storage] = storages.parameters[parameter]
                if storage not in largest or use.largest.numel > largest[storage].numel:
                    largest[storage] = use.largest
        parameters = stage.parameters
        known = {tensor.storage for tensor in parameters}
        return cls(
            tuple((tensor, layers.get(tensor.storage, "")) for tensor in parameters),
            tuple(
                (tensor, layers.get(parameter_of.get(storage, storage), ""))
                for storage, tensor in largest.items()
                if storage not in known and tensor.category != "gradient"
            ),
        )

    def residents(
        self, program: Program, captured: CapturedStorages, sizes: Sequence[float], *, first: bool
    ) -> Iterator[Resident]:
        """Yield what a rank holds, the ``sizes`` of its parameters in bytes given; the ``first`` of a pipeline also what was
        captured of no operator."""
        for (tensor, layer), nbytes in zip(self.parameters, sizes, strict=True):
            yield Resident.of(tensor, layer, nbytes)
        for tensor, layer in self.others:
            times = program.micro_batches if tensor.category == "input" else 1
            yield Resident.of(tensor, layer, captured.scale(tensor.storage, tensor.nbytes) * times)
        for name, nbytes in program.buffers:
            yield Resident(round(nbytes), "communication", name)
        for one in captured.persistent if first else ():
            if program.training or one.category not in ("optimizer_state", "gradient"):
                yield Resident.of(one, one.layer, one.nbytes)


def residents_of_footprint(footprint: MemoryFootprint, residents: Iterable[Resident]) -> Iterator[Resident]:
    """Yield what a rank that runs a part of a training step holds for the whole step, with its extra buffers."""
    for one in residents:
        if one.category == "parameter":
            yield replace(one, nbytes=round(one.nbytes * footprint.share))
        elif footprint.updates if one.category == "optimizer_state" else footprint.trains:
            yield one
    for what, category, nbytes in footprint.buffers:
        yield Resident(round(nbytes), category, what)
