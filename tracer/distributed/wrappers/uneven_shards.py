"""Which ranks have smaller shards of a model's parameters than those before them.

A dimension that the ranks do not divide is cut as ``torch.chunk`` does: the first ranks get equal parts, one the rest, and the
last ones nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.distributed.tensor import DTensor


def uneven_positions(parameters: Iterable[Any]) -> dict[int, tuple[int, ...]]:
    """Return, by the number of ranks that a dimension is sharded over, the positions among them where shards become smaller."""
    found: dict[int, set[int]] = {}
    for parameter in parameters:
        if not isinstance(parameter, DTensor):
            continue
        shape, mesh = parameter.shape, parameter.device_mesh
        for axis, placement in enumerate(parameter.placements):
            if placement.is_shard() and mesh.size(axis) > 1:
                ranks = mesh.size(axis)
                found.setdefault(ranks, set()).update(_smaller_from(shape[placement.dim], ranks))  # type: ignore[attr-defined]
    return {ranks: tuple(sorted(positions)) for ranks, positions in found.items() if positions}


def _smaller_from(size: int, ranks: int) -> set[int]:
    """Return the positions from which on the parts of a dimension are smaller than before."""
    part = -(-size // ranks)
    whole, rest = divmod(size, part) if part else (0, 0)
    return {one for one in (whole, whole + bool(rest)) if 0 < one < ranks}
