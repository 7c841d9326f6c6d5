"""Sharded embedding tables: each rank has some of them, and looks up and pools their rows for the samples of all ranks.

Naumov et al. 2019 ("DLRM"); Mudigere et al. 2022; TorchRec's table-wise sharding, and column-wise sharding within a table where
ranks do not divide the tables. It adds no ranks: those that see other data divide the tables among themselves, and replicate
the rest of the model (hybrid parallelism). All-to-alls send indices to the tables and pooled rows back, and in the backward
pass the gradients of pooled rows to the tables, whose kernel updates them (FBGEMM's fused optimizers), so that nothing reduces
theirs. Pooled rows are sent while other operators run, until the first that reads them.

A rank looks up as many rows as before: those of its tables for all samples, instead of those of all tables for its samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import EXPERT_ORDER, Extrapolator
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Await, Block, BlockItem, Communicate, Program, TransferKey
from triosim.operators.features import is_pooled_look_up
from triosim.trace import Operator, Tensor


class ShardedTables(Extrapolator):
    """The parallelism ``tables``: shards embedding tables over ranks that see different samples."""

    axis = "tables"
    level = "operators"
    order = EXPERT_ORDER
    adds_ranks = False
    identical_ranks = True

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of a rank with its share of the tables."""
        replicas = len(mesh.group(program.data_axes, 0).ranks)
        if program.training and self.size != replicas:
            what = f"the kernels of tables update them, so that those of {replicas // self.size} groups of GPUs would differ"
            raise OptionError(
                what, where="--parallel tables", fix=f"divide them among all {replicas}: tables={replicas}"
            )
        if self.size == 1:
            return program
        lookups = [operator for operator in program.operators if is_pooled_look_up(operator)]
        if not lookups:
            what = "the model has no tables of embeddings whose rows are pooled"
            raise OptionError(what, where="--parallel tables", fix="leave it out, or describe a DLRM")
        exchanges = _Exchanges(lookups, program.operators, self.axis)
        local = {operator.id: self._local(operator) for operator in lookups}
        weights = frozenset(one.storage for op in lookups for one in op.inputs if one.category == "parameter")
        found = program.with_operators(local).rewritten(exchanges.items)
        return replace(found, experts=program.experts | weights, expert_axis=self.axis)

    def _local(self, operator: Operator) -> Operator:
        """Return a look-up in a rank's share of the tables."""
        return replace(
            operator,
            inputs=tuple(self._share(one, operator) for one in operator.inputs),
            outputs=tuple(self._share(one, operator) for one in operator.outputs),
        )

    def _share(self, tensor: Tensor, operator: Operator) -> Tensor:
        """Return a rank's share of tables or of their optimizer's states; other tensors as they are."""
        if tensor.category not in ("parameter", "optimizer_state"):
            return tensor
        tables, *rest = tensor.shape
        by_table = math.gcd(tables, self.size)
        parts = self.size // by_table
        if tensor.category == "parameter" and rest[-1] % parts:
            what = f"{tables} tables of {rest[-1]} columns ({operator.layer}) do not divide among {self.size} GPUs"
            raise OptionError(what, where="--parallel tables", fix=f"use a number that divides {tables * rest[-1]}")
        if tensor.category == "parameter":
            rest[-1] //= parts
        return replace(tensor, shape=(tables // by_table, *rest))


@dataclass(frozen=True, slots=True)
class _Place:
    """The all-to-alls before and after an operator, and the transfers that it waits for."""

    before: tuple[BlockItem, ...] = ()
    after: tuple[BlockItem, ...] = ()


class _Exchanges:
    """The all-to-alls around look-ups, by the operators that they come before and after."""

    def __init__(self, lookups: Iterable[Operator], operators: Iterable[Operator], axis: str) -> None:
        self._axis = axis
        self._places: dict[int, _Place] = {}
        ordered = list(operators)
        for lookup in lookups:
            if lookup.phase == "forward":
                indices, pooled = _indices(lookup), lookup.outputs[0]
                self._add(lookup.id, before=(self._all_to_all(indices, lookup),))
                reader = next(one for one in ordered if _reads(one, pooled) and one is not lookup)
                self._overlapped(pooled, lookup, lookup, reader)
            else:
                gradient = lookup.inputs[0]
                maker = next(one for one in reversed(ordered) if _makes(one, gradient))
                self._overlapped(gradient, lookup, maker, lookup)

    def _overlapped(self, tensor: Tensor, lookup: Operator, maker: Operator, reader: Operator) -> None:
        """Send a tensor behind the operator that makes it; the one that reads it waits."""
        key = TransferKey("pooled rows", lookup.id)
        self._add(maker.id, after=(replace(self._all_to_all(tensor, lookup), key=key),))
        self._add(reader.id, before=(Await(key),))

    def _all_to_all(self, tensor: Tensor, lookup: Operator) -> Communicate:
        return Communicate("all_to_all", float(tensor.nbytes), self._axis, operator=lookup.id, tensors=(tensor.id,))

    def _add(self, operator: int, before: tuple[BlockItem, ...] = (), after: tuple[BlockItem, ...] = ()) -> None:
        known = self._places.get(operator, _Place())
        self._places[operator] = _Place((*known.before, *before), (*known.after, *after))

    def items(self, block: Block) -> Iterable[BlockItem]:
        """Yield a block's items with the all-to-alls."""
        places: Mapping[int, _Place] = self._places
        for item in block.items:
            place = places.get(item.id) if isinstance(item, Operator) else None
            yield from (item,) if place is None else (*place.before, item, *place.after)


def _indices(lookup: Operator) -> Tensor:
    return next(one for one in lookup.inputs if one.category == "input")


def _reads(operator: Operator, tensor: Tensor) -> bool:
    return any(one.storage == tensor.storage for one in operator.inputs)


def _makes(operator: Operator, tensor: Tensor) -> bool:
    return any(one.storage == tensor.storage for one in operator.outputs)
