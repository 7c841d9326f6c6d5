"""Distributed data parallelism: the all-reduce of each gradient bucket overlaps with the rest of the backward pass.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020). Buckets are those of PyTorch
from the second step on, when they follow the order in which gradients became ready (``Reducer::rebuild_buckets`` and
``compute_bucket_assignment_by_size``): a bucket closes when it has reached its limit, 1 MiB for the first and 25 MiB for
the others, so it may be larger; gradients of different dtypes go into different buckets; buckets are reduced in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triosim.extrapolators.base import DATA_ORDER, Extrapolator
from triosim.extrapolators.dp import reacting, require_gradients
from triosim.extrapolators.mesh import Mesh
from triosim.extrapolators.program import Gradient, Program, Stage
from triosim.extrapolators.reaction import Reaction
from triosim.tasks import AllReduce, Communicator, TaskStream

Bucket = tuple[Gradient, ...]


class DistributedDataParallel(Extrapolator):
    """``ddp``."""

    axis = "ddp"
    place = "react"
    order = DATA_ORDER

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces gradients bucket by bucket, as they become ready."""
        require_gradients(program)
        return reacting(program, self.axis, self._reaction)

    def _reaction(self, stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[Communicator, int], Reaction]:
        filled = buckets(gradients, self.options.first_bucket_bytes, self.options.bucket_bytes)
        bucket_of = {gradient.parameter.id: index for index, bucket in enumerate(filled) for gradient in bucket}
        sizes = [len(bucket) for bucket in filled]
        nbytes = [sum(gradient.nbytes for gradient in bucket) for bucket in filled]
        return lambda group, rank: ReduceBuckets(group, rank, sizes, nbytes, bucket_of)


def buckets(gradients: Sequence[Gradient], first_bytes: float, later_bytes: float) -> tuple[Bucket, ...]:
    """Return PyTorch's buckets of gradients, which are given in the order in which they become ready."""
    filled: list[list[Gradient]] = []  # in the order of their first gradients, as they are reduced
    open_: dict[str, list[Gradient]] = {}  # by dtype
    limits: dict[str, float] = {}
    for gradient in gradients:
        dtype = gradient.parameter.dtype
        if dtype not in open_:
            open_[dtype] = []
            filled.append(open_[dtype])
        open_[dtype].append(gradient)
        if sum(one.nbytes for one in open_[dtype]) >= limits.get(dtype, first_bytes):
            del open_[dtype]
            limits[dtype] = later_bytes
    return tuple(tuple(bucket) for bucket in filled)


class ReduceBuckets(Reaction):
    """Reduces each bucket when its last gradient is ready; the optimizer waits for all."""

    def __init__(
        self,
        group: Communicator,
        rank: int,
        sizes: Sequence[int],
        nbytes: Sequence[float],
        bucket_of: Mapping[int, int],
    ) -> None:
        super().__init__(group, rank)
        self._sizes = sizes
        self._nbytes = nbytes
        self._bucket_of = bucket_of  # by parameter
        self._missing = list(sizes)
        self._next = 0

    def gradient_ready(self, gradient: Gradient) -> TaskStream | None:
        """Count the gradient in; reduce what is complete, in the order of the buckets."""
        self._missing[self._bucket_of[gradient.parameter.id]] -= 1
        return self._reduce() if not self._missing[self._next] and not self.alone else None

    def _reduce(self) -> TaskStream:
        while self._next < len(self._missing) and not self._missing[self._next]:
            nbytes = self._nbytes[self._next]
            self._next += 1
            self.pending.append((yield AllReduce(nbytes, self.group)))

    def before_optimizer(self) -> TaskStream | None:
        """Wait for all buckets."""
        self._missing, self._next = list(self._sizes), 0
        return super().before_optimizer()
