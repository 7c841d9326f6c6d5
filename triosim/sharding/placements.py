"""The placement of a tensor on the ranks of one mesh axis: sharded in one of its dimensions, or replicated.

``Shard`` is DTensor's placement of this name, with what its ``_StridedShard`` adds: a dimension may fold several logical
axes (``triosim.sharding.dimensions``), of which one is sharded. A tensor that ``Placements`` do not list is replicated; where
an operator reduces over a sharded axis, its output is a partial sum of full size, and is not listed either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.sharding.dimensions import Dim, Dims, LogicalAxis, axes_of, leaves, new_dim, size


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor is sharded in dimension ``dim``: in the factor of ``size`` entries that stands inside ``outer`` others.

    Of 3 x 12 x 64 features in one dimension, the 12 heads are ``Shard(dim, size=12, outer=3)``.
    """

    dim: int
    size: int
    outer: int = 1

    def local_shape(self, shape: Sequence[int], ranks: int) -> tuple[int, ...]:
        """Return the shape of a rank's shard; where the size does not divide, of the largest shard."""
        found = list(shape)
        found[self.dim] = shape[self.dim] // self.size * -(-self.size // ranks)
        return tuple(found)

    def contains(self, outer: int, length: int) -> bool:
        """Whether a factor of the same dimension lies within the sharded factor."""
        return self.outer <= outer and outer * length <= self.outer * self.size

    def overlaps(self, outer: int, length: int) -> bool:
        """Whether a factor of the same dimension and the sharded factor have entries in common."""
        return outer < self.outer * self.size and self.outer < outer * length


#: The shards of tensors, by tensor id.
Placements = Mapping[int, Shard]


def shards_of(dims: Dims, sharded: set[LogicalAxis]) -> list[Shard]:
    """Return where sharded axes stand in a tensor; axes that stand side by side in one dimension are one shard."""
    found: list[Shard] = []
    for index, dim in enumerate(dims):
        outer = 1
        for axis in axes_of(dim):
            if leaves((axis,)) & sharded:
                last = found[-1] if found else None
                if last is not None and last.dim == index and last.outer * last.size == outer:
                    found[-1] = Shard(index, last.size * axis.size, last.outer)
                else:
                    found.append(Shard(index, axis.size, outer))
            outer *= axis.size
    return found


def sharded_axes(dims: Dims, shard: Shard) -> set[LogicalAxis]:
    """Return the logical axes of a tensor that a shard of it divides."""
    found: set[LogicalAxis] = set()
    outer = 1
    for axis in axes_of(dims[shard.dim]):
        if shard.overlaps(outer, axis.size):
            found |= leaves((axis,))
        outer *= axis.size
    return found


def axes_around(axes: Iterable[LogicalAxis], shard: Shard) -> tuple[Dim, Dim]:
    """Return a dimension's axes outside and inside of a shard; a new axis of that size where the shard cuts through axes."""
    before: list[LogicalAxis] = []
    after: list[LogicalAxis] = []
    outer = whole = 1
    for axis in axes:
        if outer * axis.size <= shard.outer:
            before.append(axis)
        elif outer >= shard.outer * shard.size:
            after.append(axis)
        outer *= axis.size
        whole *= axis.size
    inner = whole // (shard.outer * shard.size)
    return (
        tuple(before) if size(before) == shard.outer else new_dim(shard.outer),
        tuple(after) if size(after) == inner else new_dim(inner),
    )
