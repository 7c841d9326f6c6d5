"""ZeRO stages 1 and 2: parameters are whole on every rank, the optimizer's states are sharded, and in stage 2 gradients too.

Rajbhandari et al. 2020 ("ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). Gradients are
reduce-scattered in buckets as they become ready, each rank updates its share, and the new parameters are all-gathered: together
as many bytes as one all-reduce. Stage 1 keeps gradients whole, so it reduces them once, in the last micro-batch; stage 2
keeps its share alone, so it reduces them in each. Implementations of stage 1 that all-reduce instead (``reduce=all-reduce``)
move 1.5 times the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

from triosim.config import Option
from triosim.extrapolators.core.extrapolator import DATA_ORDER, Extrapolator
from triosim.extrapolators.core.flags import BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import (
    RankContext,
    TrainingHooks,
    layers_of,
    require_gradients,
    with_gradient_hooks,
)
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, HooksFactory, Program, Stage
from triosim.extrapolators.data.ddp import Bucket, buckets, completed
from triosim.extrapolators.data.sharded_state import ShardGroups, require_training, scatter, with_sharded_optimizer
from triosim.tasks import AllGather, AllReduce, Communicator, Handle, Layers, Task, TaskStream


class Zero1(Extrapolator):
    """The parallelism ``zero1``: each rank updates its share of the parameters, and the ranks all-gather them."""

    axis = "zero1"
    level = "hooks"
    identical_ranks = True
    order = DATA_ORDER - 1
    sums_gradients = True
    shards_optimizer = True
    options: ClassVar[tuple[Option, ...]] = (
        BUCKET_SIZE,
        FIRST_BUCKET_SIZE,
        GRADIENT_DTYPE,
        Option(
            "reduce",
            "choice",
            "scatter",
            "zero1: whether gradients are scattered, or summed whole on every GPU.",
            choices=("scatter", "all-reduce"),
        ),
    )
    each_micro_batch: ClassVar[bool] = False

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces gradients in buckets and gathers the updated parameters."""
        require_training(program, self.axis)
        require_gradients(program)
        sharded = with_sharded_optimizer(program, mesh, self.axis)
        return with_gradient_hooks(
            sharded, program.sharded_axes, lambda experts: self._hooks(ShardGroups(program, mesh, experts=experts))
        )

    def _hooks(self, sharing: ShardGroups) -> HooksFactory:
        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[RankContext], TrainingHooks]:
            filled = buckets(gradients, self.config.first_bucket_size, self.config.bucket_size)
            due = completed(gradients, filled)
            sharded = ShardedBuckets(
                due,
                dict(zip(chain.from_iterable(due.values()), filled, strict=True)),
                layers_of(replace(one, nbytes=float(one.parameter.nbytes)) for one in gradients),
                self._reduces_whole(),
                self.each_micro_batch,
            )
            hooked = frozenset(due)
            return lambda context: ShardState(context, sharded, hooked, sharing.replicas(context.rank))

        return make

    def _reduces_whole(self) -> bool:
        return bool(self.config.reduce == "all-reduce")


class Zero2(Zero1):
    """The parallelism ``zero2``: as ``zero1``, and each rank keeps the gradients of its share alone."""

    axis = "zero2"
    options = (BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE)
    each_micro_batch = True

    def _reduces_whole(self) -> bool:
        return False  # a rank has no room for whole gradients


@dataclass(frozen=True, slots=True)
class ShardedBuckets:
    """What the ranks of a stage share: the buckets by the parameter whose gradient completes them, and the updated parameters.

    ``gradients`` are those in a bucket, by the layers and bytes that its collective names; ``updated`` are the parameters'.
    ``whole`` gradients are all-reduced, others reduce-scattered.
    """

    due: Mapping[int, Sequence[Layers]]
    gradients: Mapping[Layers, Bucket]
    updated: Layers
    whole: bool
    each_micro_batch: bool


class ShardState(TrainingHooks):
    """Reduces each bucket when its last gradient is ready, and gathers the parameters after their update."""

    def __init__(
        self,
        context: RankContext,
        buckets: ShardedBuckets,
        hooked_parameters: frozenset[int],
        replicas: Communicator | None,
    ) -> None:
        super().__init__(context)
        self._buckets = buckets
        self._replicas = replicas
        self.each_micro_batch = buckets.each_micro_batch
        self.hooked_parameters = hooked_parameters if not self.alone or replicas is not None else frozenset()

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Reduce what is complete."""
        for layers in self._buckets.due[gradient.parameter.id]:
            self.memory.free(("bucket", self))  # the one before; what is communicated lies in one piece
            self.memory.allocate(("bucket", self), layers.total, "communication", next(iter(layers.nbytes), ""))
            if self.each_micro_batch:
                self._keep_shares(self._buckets.gradients[layers])
            if self._buckets.whole:
                self.pending.append((yield from self._reduce(layers)))
            else:
                self.pending.append((yield from scatter(layers, self.group, self._replicas, "communication")))

    def _reduce(self, layers: Layers) -> Generator[Task, Any, Handle]:
        """Reduce whole gradients, among those that share the optimizer and then among their replicas."""
        reduced: tuple[Handle, ...] = ()
        if not self.alone:
            reduced = ((yield AllReduce(layers.total, self.group, layers=layers)),)
        if self._replicas is None:
            return reduced[0]
        handle: Handle = yield AllReduce(
            layers.total, self._replicas, after=reduced, stream="communication of replicas", layers=layers
        )
        return handle

    def _keep_shares(self, bucket: Bucket) -> None:
        """Give the whole gradients of a bucket back; from the first micro-batch on there are shares of them."""
        ranks = len(self.group.ranks)
        for part in bucket:
            self.memory.free(("gradient", part.parameter.storage))
            self.memory.allocate(("share", part.parameter.storage), part.nbytes / ranks, "gradient", part.layer)

    def before_optimizer(self) -> TaskStream | None:
        """The last bucket is no longer needed."""
        self.memory.free(("bucket", self))
        return super().before_optimizer()

    def after_optimizer(self) -> TaskStream | None:
        """Gather the parameters that the others have updated; the next step waits for them."""
        return None if self.alone or not self._buckets.updated.total else self._gather()

    def _gather(self) -> TaskStream:
        self.pending.append((yield AllGather(self._buckets.updated.total, self.group, layers=self._buckets.updated)))
        yield from self.wait()
