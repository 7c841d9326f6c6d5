"""The optimizer on a rank's shards of the parameters, and the gradients of embeddings that DTensor computes in full."""

from __future__ import annotations

from dataclasses import replace

from triosim.extrapolators.core.program import Program
from triosim.operators.features import base_name
from triosim.sharding.parameters import owners, parameter_storages
from triosim.sharding.shards import ShardedParameters, local_optimizer_operator


def with_local_optimizer(
    before: Program, after: Program, parameters: ShardedParameters, ranks: int, *, note: str
) -> Program:
    """Return ``after``, a sharded program, with the optimizer of a rank's shards; ``before`` has the whole optimizer."""
    optimizer = [operator for operator in before.operators if operator.phase == "optimizer"]
    owner_of = owners(optimizer, parameter_storages(before.operators))
    shapes = {operator.id: local_optimizer_operator(operator, owner_of, parameters, ranks) for operator in optimizer}
    return after.reshaped(shapes, note=note)


def with_full_embedding_gradients(before: Program, after: Program, axis: str) -> Program:
    """Return ``after``, a sharded program, with gradients of embedding tables in full, of which a rank keeps its shard.

    So PyTorch's ``DTensor`` computes them for a table that is sharded by rows.
    """
    known = {operator.id: operator for operator in before.operators}
    full = {
        one.id: replace(one, outputs=known[one.id].outputs)
        for one in after.operators
        if base_name(one.name) == "embedding_dense_backward" and one.id in known
    }
    return after.reshaped(full, note=f"{axis}: the gradients of embeddings are computed whole, as DTensor does")
