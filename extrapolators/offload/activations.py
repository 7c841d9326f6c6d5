"""Activations that leave the GPU between the forward and the backward pass.

As in Transformer Engine and Megatron-Core (``cpu_offload``), torchtune and torchtitan: what the backward pass of a numbered
module reads is copied to the host by a stream of its own behind the module's forward pass, while the next module runs, at
whose end the memory is freed; in the backward pass it is copied back one module ahead. The last module, of which the backward
pass begins at once, stays, and so do the tensors of what is in no numbered module. With recomputation, only what is not
computed again is copied: the inputs of modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from triosim.errors import OptionError
from triosim.extrapolators.core.memory import LoadActivations, StoreActivations
from triosim.extrapolators.core.program import Await, Block, BlockItem, Program, Stage, TransferKey
from triosim.trace import Tensor
from triosim.trace.numbered_modules import ROOT, numbered_module_of

_OUT, _IN = "activations out", "activations in"


def with_offloaded_activations(program: Program, tier: str) -> Program:
    """Return the program whose stages offload activations. Raises ``OptionError`` where there is nothing to offload."""
    stages = tuple(_stage(stage, tier, number) for number, stage in enumerate(program.stages))
    if all(after is before for after, before in zip(stages, program.stages, strict=True)):
        what = "no two numbered modules (layers.0, layers.1) have activations that a backward pass reads"
        raise OptionError(what, where="--offload activations", fix="leave it out")
    return replace(program, stages=stages)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A numbered module of a stage: its last forward block, its first backward block, and the tensors to offload."""

    name: str
    forward_end: int
    backward_start: int
    tensors: Mapping[int, Tensor]  # by storage

    @property
    def nbytes(self) -> float:
        """The bytes of the tensors."""
        return float(sum(tensor.nbytes for tensor in self.tensors.values()))


def _stage(stage: Stage, tier: str, number: int) -> Stage:
    """Return a stage with copies of its units' activations."""
    units = _units(stage)
    if not any(unit.tensors for unit in units[:-1]):
        return stage
    after: dict[int, list[BlockItem]] = {}  # items at the end of a forward block
    before: dict[int, list[BlockItem]] = {}  # and at the start of a backward block
    for index, (unit, following) in enumerate(pairwise(units)):
        out, back = (TransferKey(f"{what} {number}", index) for what in (_OUT, _IN))
        storages = frozenset(unit.tensors)
        after.setdefault(unit.forward_end, []).append(StoreActivations(out, tier, unit.nbytes, storages, unit.name))
        after.setdefault(following.forward_end, []).append(Await(out))
        before.setdefault(following.backward_start, []).append(
            LoadActivations(back, tier, unit.nbytes, storages, unit.name)
        )
        before.setdefault(unit.backward_start, []).insert(0, Await(back))
    return replace(
        stage,
        forward=tuple(_with(block, (), after.get(i, ())) for i, block in enumerate(stage.forward)),
        backward=tuple(_with(block, before.get(i, ()), ()) for i, block in enumerate(stage.backward)),
    )


def _with(block: Block, first: Sequence[BlockItem], last: Sequence[BlockItem]) -> Block:
    """Return a block with other items at its start and its end."""
    return block.of((*first, *block.items, *last)) if first or last else block


def _units(stage: Stage) -> list[_Unit]:
    """Return the numbered modules of a stage that have a backward pass, in the order of the forward pass."""
    ends: dict[str, int] = {}
    for index, block in enumerate(stage.forward):
        ends[numbered_module_of(block.layer)] = index
    names = list(_backward_units(stage))
    starts: dict[str, int] = {}
    for index, name in enumerate(names):
        starts.setdefault(name, index)
    tensors: dict[str, dict[int, Tensor]] = {}
    for name, tensor in _surviving(stage, names):
        tensors.setdefault(name, {})[tensor.storage] = tensor
    return [
        _Unit(name, end, starts[name], tensors.get(name, {}))
        for name, end in ends.items()
        if name in starts and name != ROOT
    ]


def _backward_units(stage: Stage) -> Iterator[str]:
    """Yield the unit of each backward block: that of the forward block that it differentiates or recomputes."""
    for block, index in zip(stage.backward, stage.forward_blocks_of_backward(), strict=True):
        recomputed = any(operator.recomputed for operator in block.operators)
        yield numbered_module_of(block.layer if recomputed else stage.forward[index].layer)


def _surviving(stage: Stage, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the activations that the backward pass reads and has not computed again, each with the unit that reads it first."""
    made: dict[int, Tensor] = {}  # by storage: the largest tensor
    for block in stage.forward:
        for operator in block.operators:
            read = {tensor.storage for tensor in operator.inputs}
            for tensor in operator.outputs:
                known = made.get(tensor.storage)
                if tensor.storage not in read and tensor.category not in ("parameter", "buffer", "input"):
                    made[tensor.storage] = tensor if known is None or tensor.numel > known.numel else known
    for name, block in zip(names, stage.backward, strict=True):
        for operator in block.operators:
            for tensor in operator.inputs:
                if tensor.storage in made:
                    yield name, made.pop(tensor.storage)
            for tensor in operator.outputs:
                made.pop(tensor.storage, None)
