"""ZeRO stages 1 and 2: every rank has all parameters, but a shard of the optimizer states, and in stage 2 of the gradients.

Rajbhandari et al. 2020 ("ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). Gradients are
reduce-scattered in buckets as they become ready, each rank updates its share, and the new parameters are all-gathered: together
as many bytes as one all-reduce. Stage 1 keeps all gradients, so it reduces them once, in the last micro-batch; stage 2
keeps its share alone, so it reduces them in each. Implementations of stage 1 that all-reduce instead (``reduce=all-reduce``)
move 1.5 times the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

from triosim.config import Option
from triosim.extrapolators.core import hooks
from triosim.extrapolators.core.extrapolator import DATA_ORDER, Extrapolator
from triosim.extrapolators.core.flags import BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE
from triosim.extrapolators.core.hooks import RankContext, TrainingHooks, layers_of
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, HooksFactory, Program, RankHooksFactory, Stage
from triosim.extrapolators.data.ddp import Bucket, buckets, completed
from triosim.extrapolators.data.sharded_state import ShardGroups, reduced, with_sharded_optimizer
from triosim.tasks import AllGather, Communicator, Layers, TaskStream


class Zero1(Extrapolator):
    """The parallelism ``zero1``: each rank updates its share of the parameters, and the ranks all-gather them."""

    axis = "zero1"
    identical_ranks = True
    order = DATA_ORDER - 1
    sums_gradients = True
    shards_optimizer = True
    options: ClassVar[tuple[Option, ...]] = (
        BUCKET_SIZE,
        FIRST_BUCKET_SIZE,
        GRADIENT_DTYPE,
        Option("reduce", "choice", "scatter", choices=("scatter", "all-reduce"),
               help="zero1: whether gradients are scattered, or summed whole on every GPU."),
    )  # fmt: skip
    each_micro_batch: ClassVar[bool] = False

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces gradients in buckets and gathers the updated parameters."""
        why, fix = "inference has no optimizer to shard", "leave out --inference, or use dp"
        hooks.require_training(program, self.axis, why, fix)
        sharded = with_sharded_optimizer(program, mesh, self.axis)
        return hooks.with_gradient_hooks(
            sharded, program.sharded_axes, lambda experts: self._hooks(ShardGroups(program, mesh, experts=experts))
        )

    def _hooks(self, sharing: ShardGroups) -> HooksFactory:
        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
            filled = buckets(gradients, self.config.first_bucket_size, self.config.bucket_size)
            due = completed(gradients, filled)
            sharded = ShardedBuckets(
                due,
                dict(zip(chain.from_iterable(due.values()), filled, strict=True)),
                frozenset(one.parameter.id for one in gradients),
                layers_of(replace(one, nbytes=float(one.parameter.nbytes)) for one in gradients),
                not self.each_micro_batch and self.config.reduce == "all-reduce",
                self.each_micro_batch,
            )
            hooked = frozenset(due)
            return lambda context: ShardState(context, sharded, hooked, sharing.replicas(context.rank))

        return make


class Zero2(Zero1):
    """The parallelism ``zero2``: as ``zero1``, with reduce-scattered gradients, of which each rank keeps its share."""

    axis = "zero2"
    options = (BUCKET_SIZE, FIRST_BUCKET_SIZE, GRADIENT_DTYPE)
    each_micro_batch = True


@dataclass(frozen=True, slots=True)
class ShardedBuckets:
    """The buckets of a stage, shared by its ranks: ``due`` has each by the parameter whose gradient completes it.

    ``gradients`` are those in a bucket, ``reduced`` the parameters of all, ``updated`` the bytes of the updated parameters by
    layer. ``whole`` gradients are all-reduced, others reduce-scattered.
    """

    due: Mapping[int, Sequence[Layers]]
    gradients: Mapping[Layers, Bucket]
    reduced: frozenset[int]
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

    def reduces_each_time(self, gradient: Gradient) -> bool:
        """Whether the rank shares the gradient with others, and reduces it in each micro-batch."""
        return self.each_micro_batch and bool(self.hooked_parameters) and gradient.parameter.id in self._buckets.reduced

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Reduce the buckets that the gradient completes."""
        for layers in self._buckets.due[gradient.parameter.id]:
            self.memory.free(("bucket", self))  # the one before; each is communicated from one buffer
            self.memory.allocate(("bucket", self), layers.total, "communication", next(iter(layers.nbytes), ""))
            if self.each_micro_batch:
                self._keep_shares(self._buckets.gradients[layers])
            handle = yield from reduced(layers, self.group, self._replicas, whole=self._buckets.whole)
            self.pending.append(handle)
            shares = tuple(("share", part.parameter.storage) for part in self._buckets.gradients[layers])
            yield from self.announce(layers, layers.total / len(self.group.ranks), handle, shares)

    def _keep_shares(self, bucket: Bucket) -> None:
        """Free the gradients of a bucket, and allocate the rank's shares of them (in the first micro-batch)."""
        ranks = len(self.group.ranks)
        for part in bucket:
            self.memory.free(("gradient", part.parameter.storage))
            self.memory.allocate(("share", part.parameter.storage), part.nbytes / ranks, "gradient", part.layer)

    def before_optimizer(self) -> TaskStream | None:
        """Free the last bucket."""
        self.memory.free(("bucket", self))
        return super().before_optimizer()

    def after_optimizer(self) -> TaskStream | None:
        """Gather the parameters that the others have updated; the next step waits for them."""
        return None if self.alone or not self._buckets.updated.total else self._gather()

    def _gather(self) -> TaskStream:
        self.pending.append((yield AllGather(self._buckets.updated.total, self.group, layers=self._buckets.updated)))
        yield from self.wait()
