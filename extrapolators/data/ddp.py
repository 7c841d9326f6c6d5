"""Distributed data parallelism: the all-reduce of each gradient bucket overlaps with the rest of the backward pass.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020). Buckets are those of PyTorch
from the second step on, when they follow the order in which gradients became ready (``Reducer::rebuild_buckets`` and
``compute_bucket_assignment_by_size``): a bucket closes when it has reached its limit, 1 MiB for the first and 25 MiB for
the others, so it may be larger; gradients of different dtypes go into different buckets; buckets are reduced in the order
in which they close, the ones that never do at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from triosim.extrapolators.core import hooks
from triosim.extrapolators.core.extrapolator import Extrapolator
from triosim.extrapolators.core.flags import BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, RankHooksFactory, Stage
from triosim.tasks import AllReduce, Layers, TaskStream

Bucket = tuple[Gradient, ...]


class DistributedDataParallel(Extrapolator):
    """The parallelism ``ddp``: all-reduces gradients bucket by bucket, while the backward pass goes on."""

    axis = "ddp"
    identical_ranks = True
    sums_gradients = True
    options = (BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE)

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces gradients bucket by bucket, as they become ready."""
        hooks.require_gradients(program)
        if program.sharded_axes:
            return program  # what shards the optimizer reduces its shares along this axis
        return hooks.with_gradient_hooks(program, program.data_axes, lambda _: self._hooks)

    def _hooks(self, stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
        due = completed(gradients, buckets(gradients, self.config.first_bucket_size, self.config.bucket_size))
        hooked_parameters = frozenset(due)
        return lambda context: ReduceBuckets(context, due, hooked_parameters)


def buckets(gradients: Sequence[Gradient], first_bytes: float, later_bytes: float) -> tuple[Bucket, ...]:
    """Return PyTorch's buckets of gradients, which are given in the order in which they become ready."""
    filled: list[list[Gradient]] = []  # in the order in which they close
    open_: dict[str, list[Gradient]] = {}  # by dtype
    limits: dict[str, float] = {}
    for gradient in gradients:
        dtype = gradient.parameter.dtype
        bucket = open_.setdefault(dtype, [])
        bucket.append(gradient)
        if sum(one.nbytes for one in bucket) >= limits.get(dtype, first_bytes):
            filled.append(open_.pop(dtype))
            limits[dtype] = later_bytes
    return tuple(tuple(bucket) for bucket in (*filled, *open_.values()))


def completed(gradients: Sequence[Gradient], filled: Sequence[Bucket]) -> dict[int, tuple[Layers, ...]]:
    """Return the buckets that can be reduced when a gradient is ready, as bytes by layer, by the gradient's parameter.

    A bucket is reduced when its last gradient is ready, but not before the buckets ahead of it.
    """
    position = {gradient.parameter.id: index for index, gradient in enumerate(gradients)}
    found: dict[int, tuple[Layers, ...]] = {}
    last = 0
    for bucket in filled:
        last = max(last, *(position[gradient.parameter.id] for gradient in bucket))
        parameter = gradients[last].parameter.id
        found[parameter] = (*found.get(parameter, ()), layers_of(bucket))
    return found


class ReduceBuckets(TrainingHooks):
    """Reduces each bucket when its last gradient is ready; the optimizer waits for all.

    ``due`` are the buckets that a gradient completes, by parameter; ``hooked`` are these parameters.
    """

    def __init__(self, context: RankContext, due: Mapping[int, Sequence[Layers]], hooked: frozenset[int]) -> None:
        super().__init__(context)
        self._due = due
        self.hooked_parameters = hooked if not self.alone else frozenset()

    def accumulated_bytes(self, gradient: Gradient) -> float:
        """Return the bytes of a gradient as it is computed: its copy in the bucket is reduced."""
        return float(gradient.parameter.nbytes)

    def step_begins(self) -> None:
        """Allocate the buckets, which gradients are copied to (``gradient_as_bucket_view=False``, PyTorch's default)."""
        if not self.alone:
            for number, layers in enumerate(chain.from_iterable(self._due.values())):
                first = min(layers.nbytes, default="")
                self.memory.allocate(("bucket", self, number), layers.total, "communication", first)

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Reduce the buckets that the gradient completes."""
        for layers in self._due[gradient.parameter.id]:
            reduced = yield AllReduce(layers.total, self.group, layers=layers)
            self.pending.append(reduced)
            yield from self.announce(layers, layers.total, reduced)
