"""The same blocks under other names: those of one layer as those of another that is like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat

from triosim.extrapolators.core.program import Await, Block, BlockItem, Communicate
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class Names:
    """The ids of tensors, and of storages, by those that stand for them."""

    tensors: Mapping[int, int]
    storages: Mapping[int, int]


class Renaming:
    """Gives blocks of a unit other names: of tensors and storages, operators (``numbers``; others are ``fresh``), layers."""

    def __init__(
        self,
        names: Names,
        numbers: Mapping[int, int] | None = None,
        fresh: Iterator[int] | None = None,
        layers: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names
        self._numbers = numbers or {}
        self._fresh = repeat(-1) if fresh is None else fresh
        self._layers = layers or {}
        self._made: dict[int, Tensor] = {}  # by identity: a tensor is renamed once for all that read it

    def block(self, block: Block) -> Block:
        """Return a block under its other names."""
        return Block(self._layers.get(block.layer, block.layer), block.phase, tuple(map(self._item, block.items)))

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor under its other name."""
        made = self._made.get(id(tensor))
        if made is None:
            tensors = self._names.tensors
            made = self._made[id(tensor)] = Tensor(
                tensors.get(tensor.id, tensor.id),
                tensor.shape,
                tensor.dtype,
                tensor.category,
                self._names.storages.get(tensor.storage, tensor.storage),
                None if tensor.parameter is None else tensors.get(tensor.parameter, tensor.parameter),
            )
        return made

    def _item(self, item: BlockItem) -> BlockItem:
        if isinstance(item, Operator):
            return self._operator(item)
        if isinstance(item, Communicate):
            operator = None if item.operator is None else self._numbers.get(item.operator, item.operator)
            tensors = tuple(self._names.tensors.get(one, one) for one in item.tensors)
            return replace(item, key=self._key(item.key), operator=operator, tensors=tensors)
        return Await(self._key(item.key) or "") if isinstance(item, Await) else item

    def _key(self, key: str | None) -> str | None:
        """A collective's key ends in the number of the operator that it is about, in brackets."""
        if key is None:
            return None
        what, number = key[:-1].rsplit("(", 1)
        return f"{what}({self._numbers.get(int(number), int(number))})"

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
