"""Turns the blocks of one repeated layer into those of another, which differ in ids and names alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat

from triosim.extrapolators.core.program import Await, Block, BlockItem, Communicate, TransferKey
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class IdMap:
    """The ids of a layer's tensors and storages, by the ids of the corresponding ones of another layer."""

    tensors: Mapping[int, int]
    storages: Mapping[int, int]


class Renaming:
    """Renames tensors and storages by ``ids``, operators by ``numbers`` and layers by ``layers``.

    Operators that are not in ``numbers`` get the next ``fresh`` number.
    """

    def __init__(
        self,
        ids: IdMap,
        numbers: Mapping[int, int] | None = None,
        fresh: Iterator[int] | None = None,
        layers: Mapping[str, str] | None = None,
    ) -> None:
        self._ids = ids
        self._numbers = numbers or {}
        self._fresh = repeat(-1) if fresh is None else fresh
        self._layers = layers or {}
        # By id(): one object for all operators that read a tensor, and hashing its value would cost more than renaming it.
        self._made: dict[int, Tensor] = {}

    def block(self, block: Block) -> Block:
        """Return a block with everything in it renamed."""
        return Block(self._layers.get(block.layer, block.layer), block.phase, tuple(map(self._item, block.items)))

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its other ids."""
        made = self._made.get(id(tensor))
        if made is None:
            tensors = self._ids.tensors
            made = self._made[id(tensor)] = Tensor(
                tensors.get(tensor.id, tensor.id),
                tensor.shape,
                tensor.dtype,
                tensor.category,
                self._ids.storages.get(tensor.storage, tensor.storage),
                None if tensor.parameter is None else tensors.get(tensor.parameter, tensor.parameter),
            )
        return made

    def _item(self, item: BlockItem) -> BlockItem:
        if isinstance(item, Operator):
            return self._operator(item)
        if isinstance(item, Communicate):
            operator = None if item.operator is None else self._numbers.get(item.operator, item.operator)
            tensors = tuple(self._ids.tensors.get(one, one) for one in item.tensors)
            key = None if item.key is None else self._key(item.key)
            return replace(item, key=key, operator=operator, tensors=tensors)
        return Await(self._key(item.key)) if isinstance(item, Await) else item

    def _key(self, key: TransferKey) -> TransferKey:
        """The key of what is communicated for an operator has the operator's number."""
        return key._replace(number=self._numbers.get(key.number, key.number))

    def _operator(self, one: Operator) -> Operator:
        number = self._numbers.get(one.id)
        return Operator(  # written out, because replace() takes several times as long
            next(self._fresh) if number is None else number,
            one.name,
            one.phase,
            self._layers.get(one.layer, one.layer),
            tuple(map(self.tensor, one.inputs)),
            tuple(map(self.tensor, one.outputs)),
            one.seconds,
            one.busy_seconds,
            one.host_seconds,
            None if one.forward is None else self._numbers.get(one.forward, one.forward),
            one.flops,
            one.kernels,
            one.predicted_by,
            one.relative_error,
            one.attributes,
            one.stream,
            one.communication,
            one.recomputed,
        )
