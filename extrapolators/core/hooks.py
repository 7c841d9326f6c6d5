"""Parameter and gradient hooks, which a rank calls when a parameter is about to be used, a gradient is ready, or the step ends.

Data-parallel methods (dp, ddp, fsdp, zero) do not change operators: they communicate in hooks, as PyTorch's DDP and FSDP do.
Each rank has hooks of its own. A hook is a generator that yields tasks and is answered with their handles; one that is not
overridden costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.memory import UNTRACKED, MemoryTracker
from triosim.extrapolators.core.mesh import GroupAxes
from triosim.extrapolators.core.program import Block, Gradient, HooksFactory, Program, RankHooksFactory, Stage
from triosim.tasks import COMMUNICATION_STREAM, AllReduce, Communicator, Handle, Layers, TaskStream, Wait
from triosim.trace import Tensor


@dataclass(frozen=True, slots=True)
class RankContext:
    """The rank that hooks belong to, its communicator along the axes of the parallelism, and the tracker of its memory.

    ``before`` are the rank's hooks of other parallelisms that are called before these.
    """

    group: Communicator
    rank: int
    memory: MemoryTracker = UNTRACKED
    before: tuple[TrainingHooks, ...] = ()


class TrainingHooks:
    """The hooks of one rank. This class does nothing: override what a method needs.

    ``group`` are the ranks that have the same parameters, ``rank`` is this one; ``pending`` are the handles that the
    optimizer waits for. The hooks report to ``memory`` what they allocate and free.
    """

    #: Whether this rank updates its parameters itself.
    runs_optimizer: bool = True
    #: The ids of the parameters for whose gradients ``gradient_ready`` is called; None for all. Ranks of one stage that share
    #: the set also share their list of instructions.
    hooked_parameters: frozenset[int] | None = None
    #: Whether ``gradient_ready`` is called in each micro-batch; by default in the last one alone, when gradients are complete.
    each_micro_batch: bool = False

    def __init__(self, context: RankContext) -> None:
        self.group = context.group
        self.rank = context.rank
        self.memory = context.memory
        self._before = context.before
        self.pending: list[Handle] = []

    @property
    def alone(self) -> bool:
        """Whether the rank has nobody to communicate with."""
        return len(self.group.ranks) == 1

    def resident_bytes(self, parameter: Tensor) -> float:
        """Return the bytes of a parameter that the rank holds all the time: by default all."""
        return float(parameter.nbytes)

    def accumulated_bytes(self, gradient: Gradient) -> float:
        """Return the bytes in which a gradient is added up: by default as it is reduced."""
        return gradient.nbytes

    def reduces_each_time(self, gradient: Gradient) -> bool:
        """Whether a gradient is reduced in each micro-batch, so that the rank adds up no whole gradients."""
        return self.each_micro_batch

    def kept_in(self, category: str) -> str | None:
        """Return the tier of the memory that a category of tensors is kept in; by default None: the GPU's."""

    def gradients_reduced(
        self, layers: Layers, nbytes: float, reduced: Handle | None, freed: tuple[Hashable, ...]
    ) -> TaskStream | None:
        """Another parallelism's hooks reduce gradients; see ``announce``."""

    def announce(
        self, layers: Layers, nbytes: float, reduced: Handle | None = None, freed: tuple[Hashable, ...] = ()
    ) -> TaskStream:
        """Tell the rank's other hooks that gradients are reduced once a task is over, or are there now without one.

        ``layers`` are those that are reduced together, one object in all micro-batches, and ``nbytes`` those that the rank
        keeps of them, in the allocations ``freed`` where another memory takes them.
        """
        for hooks in self._before:
            yield from hooks.gradients_reduced(layers, nbytes, reduced, freed) or ()

    def step_begins(self) -> TaskStream | None:
        """Before the first micro-batch."""

    def parameters_needed(self, block: Block) -> TaskStream | None:
        """A block of the forward or backward pass is about to use its parameters."""

    def parameter_key(self, block: Block) -> Hashable:
        """Return a key of the parameters that a block uses, by default one of its own.

        ``parameters_needed`` is not called for a block whose key is equal to that of the block before it.
        """
        return object()

    def forward_ends(self) -> TaskStream | None:
        """After the forward pass of a micro-batch."""

    def gradient_ready(self, gradient: Gradient) -> TaskStream | None:
        """A gradient is complete: its last contribution, in the last (or ``each_micro_batch``), has been computed."""

    def before_optimizer(self) -> TaskStream | None:
        """After the last backward pass. By default the optimizer waits for the pending handles."""
        return self.wait() if self.pending else None

    def after_optimizer(self) -> TaskStream | None:
        """After the parameters have been updated."""

    def wait(self) -> TaskStream:
        """Let the computation wait for the pending handles."""
        handles, self.pending = tuple(self.pending), []
        yield Wait(handles)


class ReduceOnce(TrainingHooks):
    """All-reduces ``nbytes`` once, after the last backward pass, and lets the optimizer wait."""

    def __init__(
        self, context: RankContext, nbytes: float, layers: Layers | None = None, stream: str = COMMUNICATION_STREAM
    ) -> None:
        super().__init__(context)
        self._nbytes, self._layers, self._stream = nbytes, layers, stream

    def before_optimizer(self) -> TaskStream:
        """Reduce the gradients."""
        if self._nbytes and not self.alone:
            reduced = yield AllReduce(self._nbytes, self.group, stream=self._stream, layers=self._layers)
            if self._layers is not None:
                yield from self.announce(self._layers, self._nbytes, reduced)
            yield Wait((reduced,))


def layers_of(gradients: Iterable[Gradient]) -> Layers:
    """Return the layers of some gradients with their bytes, for the collective that reduces them together."""
    nbytes: dict[str, float] = {}
    for gradient in gradients:
        nbytes[gradient.layer] = nbytes.get(gradient.layer, 0.0) + gradient.nbytes
    return Layers(nbytes)


def with_hooks(program: Program, axes: GroupAxes, make: HooksFactory) -> Program:
    """Return the program with the hooks of one more parallelism, along an axis or several taken as one."""
    return replace(program, hooks=(*program.hooks, (axes, make)))


def with_gradient_hooks(program: Program, axes: tuple[str, ...], make: Callable[[bool], HooksFactory]) -> Program:
    """Return the program with hooks for the gradients along data axes.

    Where a program has experts, it gets two: ``make(False)`` for the gradients of dense parameters, and ``make(True)`` for
    those of experts, which are reduced among the ranks that hold the same experts.
    """

    def factory(experts: bool) -> HooksFactory:
        of_all = make(experts)

        def of_kind(stage: Stage, gradients: tuple[Gradient, ...]) -> RankHooksFactory:
            return of_all(stage, tuple(g for g in gradients if (g.parameter.storage in program.experts) == experts))

        return of_kind

    for experts in (False, True) if program.experts else (False,):
        program = with_hooks(program, program.replica_axes(axes, experts=experts), factory(experts))
    return program


def require_training(program: Program, where: str, why: str, fix: str = "leave out --inference") -> None:
    """Raise ``OptionError`` for inference, which ``why`` rules out, and what ``require_gradients`` raises."""
    if not program.training:
        raise OptionError(why, where=where, fix=fix)
    require_gradients(program)


def require_gradients(program: Program) -> None:
    """Raise ``TraceError`` where a training trace shows no gradient, so that nothing would be reduced."""
    if not program.training or any(map(_has_gradients, program.stages)):
        return
    missing = "gradient of a parameter" if any(stage.backward for stage in program.stages) else "backward pass"
    raise TraceError(
        f"the trace shows no {missing}, so data parallelism would reduce nothing",
        fix="capture a training step, or simulate inference",
    )


def _has_gradients(stage: Stage) -> bool:
    """Whether the backward pass completes the gradient of a parameter."""
    uses = [use for block in stage.forward for use in block.tensors.uses]
    users, parameters = {use.operator for use in uses}, {use.tensor.id for use in uses}
    return any(
        any(parameter in parameters for _, _, parameter in block.tensors.written)
        or any(forward in users for _, _, forward in block.tensors.differentiated)
        for block in stage.backward
    )
