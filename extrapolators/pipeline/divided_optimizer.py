"""The optimizer of each rank of a pipeline: that of the parameters that its stages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triosim.compute.pricing.repricing import scaled
from triosim.extrapolators.core.program import Block, BlockItem
from triosim.sharding.parameters import owners
from triosim.trace import Operator, Tensor


class DividedOptimizer:
    """Divides an optimizer among pipeline ranks, given the parameters that each of them uses, by storage.

    An operator's part has the same share of its time as of its bytes; known are the bytes of tensors that belong to a
    parameter. One without such tensors is divided as all parameters are.
    """

    def __init__(
        self, blocks: Sequence[Block], used: Sequence[Mapping[int, Tensor]], storages: Mapping[int, int]
    ) -> None:
        self._blocks = blocks
        self._owner = owners((op for block in blocks for op in block.operators), storages)
        self._ranks: dict[int, list[int]] = {}  # that use a parameter, by storage
        for rank, mine in enumerate(used):
            for storage in mine:
                self._ranks.setdefault(storage, []).append(rank)
        nbytes = [float(sum(tensor.nbytes for tensor in mine.values())) for mine in used]
        every = {storage: tensor for mine in used for storage, tensor in mine.items()}
        total = sum(tensor.nbytes for tensor in every.values())
        self._shares = [one / total if total else 1 / len(used) for one in nbytes]

    def parts(self) -> tuple[tuple[Block, ...], ...]:
        """Return each rank's blocks."""
        found: list[list[Block]] = [[] for _ in self._shares]
        for block in self._blocks:
            for blocks, items in zip(found, zip(*map(self._parts, block.items), strict=True), strict=True):
                if mine := tuple(item for item in items if item is not None):
                    blocks.append(replace(block, items=mine))
        return tuple(map(tuple, found))

    def _parts(self, item: BlockItem) -> Sequence[BlockItem | None]:
        """Return each rank's part of an item; None for a rank without one."""
        if not isinstance(item, Operator):
            return [item for _ in self._shares]
        if not any(tensor.id in self._owner for tensor in (*item.inputs, *item.outputs)):
            return [scaled(item, share) for share in self._shares]
        known = sum(t.nbytes for t in (*item.inputs, *item.outputs) if t.id in self._owner)
        divided = zip(self._divided(item.inputs), self._divided(item.outputs), self._shares, strict=True)
        return [_part(item, inputs, outputs, known, share) for inputs, outputs, share in divided]

    def _divided(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in self._shares]
        for tensor in tensors:
            for rank in self._ranks.get(self._owner[tensor.id], ()) if tensor.id in self._owner else ():
                found[rank].append(tensor)
        return found


def _part(
    item: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor], known: int, share: float
) -> Operator | None:
    """Return an operator on some of its tensors, of all of which ``known`` bytes belong to parameters; None on none."""
    if not inputs and not outputs:
        return None
    if len(inputs) == len(item.inputs) and len(outputs) == len(item.outputs):
        return item
    part = sum(tensor.nbytes for tensor in (*inputs, *outputs)) / known if known else share
    return scaled(item.with_tensors(tuple(inputs), tuple(outputs)), part)
