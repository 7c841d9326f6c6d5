"""ZeRO stages 1 and 2: parameters are whole on every rank, the optimizer's states are sharded, and in stage 2 gradients too.

Rajbhandari et al. 2020 ("ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). Gradients are
reduce-scattered in buckets as they become ready, each rank updates its share, and the new parameters are all-gathered: together
as many bytes as one all-reduce. Stage 1 keeps gradients whole, so it reduces them once, in the last micro-batch; stage 2
keeps its share alone, so it reduces them in each. Implementations of stage 1 that all-reduce instead (``reduce=all-reduce``)
move 1.5 times the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

from triosim.extrapolators.core.extrapolator import DATA_ORDER, Extrapolator
from triosim.extrapolators.core.hooks import Reaction, layers_of, reducing, require_gradients
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Gradient, Program, ReactionMaker, Stage
from triosim.extrapolators.data.ddp import Bucket, buckets, completed
from triosim.extrapolators.data.sharded_state import Sharing, require_training, scatter, with_sharded_optimizer
from triosim.tasks import AllGather, AllReduce, Communicator, Handle, Layers, Task, TaskStream


class Zero1(Extrapolator):
    """``zero1``."""

    axis = "zero1"
    place = "react"
    alike = True
    order = DATA_ORDER - 1
    sums_gradients = True
    shards_optimizer = True
    extra_options: ClassVar[tuple[str, ...]] = ("reduce",)
    each_micro_batch: ClassVar[bool] = False

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program that reduces gradients in buckets and gathers the updated parameters."""
        require_training(program, self.axis)
        require_gradients(program)
        sharded = with_sharded_optimizer(program, mesh, self.axis)
        return reducing(
            sharded, program.sharded_axes, lambda experts: self._reaction(Sharing(program, mesh, experts=experts))
        )

    def _reaction(self, sharing: Sharing) -> ReactionMaker:
        whole = self._reduces_whole()

        def make(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[Communicator, int], Reaction]:
            filled = buckets(gradients, self.options.first_bucket_bytes, self.options.bucket_bytes)
            due = completed(gradients, filled)
            # What lies in a bucket, by its layers, the object that says what is communicated.
            parts = dict(zip(chain.from_iterable(due.values()), filled, strict=True))
            updated = layers_of(replace(one, nbytes=float(one.parameter.nbytes)) for one in gradients)
            acts_on = frozenset(due)

            def of_rank(group: Communicator, rank: int) -> Reaction:
                replicas = sharing.replicas(rank)
                return ShardState(group, rank, due, parts, acts_on, updated, replicas, whole, self.each_micro_batch)

            return of_rank

        return make

    def _reduces_whole(self) -> bool:
        return self.choice("reduce", ("scatter", "all-reduce")) == "all-reduce"


class Zero2(Zero1):
    """``zero2``."""

    axis = "zero2"
    extra_options = ()
    each_micro_batch = True

    def _reduces_whole(self) -> bool:
        return False  # a rank has no room for whole gradients


class ShardState(Reaction):
    """Scatters each bucket when its last gradient is ready, and gathers the parameters after their update."""

    def __init__(
        self,
        group: Communicator,
        rank: int,
        due: Mapping[int, Sequence[Layers]],
        parts: Mapping[Layers, Bucket],
        acts_on: frozenset[int],
        updated: Layers,
        replicas: Communicator | None,
        whole: bool,
        each_micro_batch: bool,
    ) -> None:
        super().__init__(group, rank)
        self._due = due  # by parameter: the buckets that its gradient completes
        self._parts = parts
        self._updated = updated  # the parameters, by layer
        self._replicas = replicas
        self._whole = whole
        self.each_micro_batch = each_micro_batch
        self.acts_on = acts_on if not self.alone or replicas is not None else frozenset()

    def gradient_ready(self, gradient: Gradient) -> TaskStream:
        """Reduce what is complete."""
        for layers in self._due[gradient.parameter.id]:
            self.ledger.release(("bucket", self))  # the one before; what is communicated lies in one piece
            self.ledger.hold(("bucket", self), layers.total, "communication", next(iter(layers.nbytes), ""))
            if self.each_micro_batch:
                self._keep_shares(self._parts[layers])
            if self._whole:
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
            self.ledger.release(("gradient", part.parameter.storage))
            self.ledger.hold(("share", part.parameter.storage), part.nbytes / ranks, "gradient", part.layer)

    def before_optimizer(self) -> TaskStream | None:
        """The last bucket is no longer needed."""
        self.ledger.release(("bucket", self))
        return super().before_optimizer()

    def after_optimizer(self) -> TaskStream | None:
        """Gather the parameters that the others have updated; the next step waits for them."""
        return None if self.alone or not self._updated.total else self._gather()

    def _gather(self) -> TaskStream:
        self.pending.append((yield AllGather(self._updated.total, self.group, layers=self._updated)))
        yield from self.wait()
