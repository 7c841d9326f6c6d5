"""The local shard of an operator, of the parameters and of the optimizer: what one rank computes and keeps.

A rank whose share would be no whole number is charged the largest share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from triosim.sharding.dataflow import is_view
from triosim.sharding.placements import Placements, Shard
from triosim.sharding.propagation import OperatorSharding
from triosim.trace import Operator, Tensor


def local_operator(operator: Operator, placements: Placements, ranks: int) -> Operator:
    """Return what a rank computes of an operator: the operator on the local shards of its tensors."""
    return _with_local_tensors(operator, lambda tensor: placements.get(tensor.id), ranks)


@dataclass(frozen=True, slots=True)
class ShardedParameters:
    """The shards of parameters, by storage, and those that all parameters of one of the ``shapes`` have."""

    parameters: Mapping[int, tuple[Tensor, Shard]]
    shapes: Mapping[tuple[int, ...], Shard]

    def with_repeated(self, repeated: Callable[[Tensor], Iterable[Tensor]]) -> ShardedParameters:
        """Return the sharding of more layers: ``repeated`` are a parameter and those of equal layers."""
        every = ((tensor, shard) for one, shard in self.parameters.values() for tensor in repeated(one))
        return ShardedParameters({tensor.storage: (tensor, shard) for tensor, shard in every}, self.shapes)


def sharded_parameters(
    operators: Iterable[Operator], shardings: Mapping[int, OperatorSharding | None]
) -> ShardedParameters:
    """Return how parameters are sharded, from the ``shardings`` of the forward operators by id.

    A parameter that some operator needs replicated, or sharded otherwise, is replicated. A view of a parameter does not count
    as a use: what reads the view says how the parameter is sharded.
    """
    uses: dict[int, list[tuple[Tensor, Shard | None]]] = {}
    views: set[int] = set()
    for operator in operators:
        if operator.phase != "forward":
            continue
        sharding = shardings.get(operator.id)
        if is_view(operator):
            views |= {t.id for t in operator.outputs} - {t.id for t in operator.inputs}
        for tensor in operator.inputs:
            if tensor.category == "parameter" and tensor.id not in views:
                shard = sharding.placements.get(tensor.id) if sharding is not None else None
                uses.setdefault(tensor.storage, []).append((tensor, shard))
    found: dict[int, tuple[Tensor, Shard]] = {}
    shapes: dict[tuple[int, ...], set[Shard | None]] = {}
    for storage, entries in uses.items():
        tensor = entries[0][0]
        shards = {_shard_of_view(tensor, other, shard) for other, shard in entries}
        shard = shards.pop() if len(shards) == 1 else None
        shapes.setdefault(tensor.shape, set()).add(shard)
        if shard is not None:
            found[storage] = (tensor, shard)
    by_shape = {shape: one for shape, shards in shapes.items() if len(shards) == 1 for one in shards if one is not None}
    return ShardedParameters(found, by_shape)


def local_optimizer_operator(
    operator: Operator, owners: Mapping[int, int], parameters: ShardedParameters, ranks: int
) -> Operator:
    """Return what a rank computes of an optimizer's operator. ``owners``: the storage of the parameter of each tensor.

    A tensor that is linked to no parameter is sharded like the parameters of its shape, if these all have one shard.
    """

    def shard_of(tensor: Tensor) -> Shard | None:
        if tensor.id not in owners:
            return parameters.shapes.get(tensor.shape) if len(tensor.shape) > 1 else None
        found = parameters.parameters.get(owners[tensor.id])
        return _shard_of_view(tensor, *found) if found is not None else None

    return _with_local_tensors(operator, shard_of, ranks)


def _shard_of_view(tensor: Tensor, other: Tensor, shard: Shard | None) -> Shard | None:
    """The shard of a parameter's view, gradient or state, where that of the parameter or of another view is known."""
    if shard is None or tensor.shape == other.shape:
        return shard
    if tensor.shape == other.shape[::-1]:
        return Shard(len(tensor.shape) - 1 - shard.dim, shard.size, shard.outer)
    if len(tensor.shape) == 1 and tensor.numel == other.numel:
        return Shard(0, tensor.numel)
    return None


def _with_local_tensors(operator: Operator, shard_of: Callable[[Tensor], Shard | None], ranks: int) -> Operator:
    def local(tensor: Tensor) -> Tensor:
        shard = shard_of(tensor)
        if shard is None:
            return tensor
        shape = shard.local_shape(tensor.shape, ranks)  # written out, because replace() takes several times as long
        return Tensor(tensor.id, shape, tensor.dtype, tensor.category, tensor.storage, tensor.parameter)

    return operator.with_tensors(tuple(map(local, operator.inputs)), tuple(map(local, operator.outputs)))
