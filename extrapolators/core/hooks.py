"""What one rank does when a parameter is about to be used, a gradient is ready, or the step ends.

Data-parallel strategies (dp, ddp, fsdp, zero) are reactions: they leave the operators alone and communicate around them.
A reaction is made for each rank. Its methods are generators that yield tasks, and are answered with their handles; one that
is not overridden costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

from triosim.errors import TraceError
from triosim.extrapolators.core.memory_ledger import NOTHING, Ledger
from triosim.extrapolators.core.mesh import Along
from triosim.extrapolators.core.program import Block, Gradient, Program, ReactionMaker, Stage
from triosim.tasks import Communicator, Handle, Layers, TaskStream, Wait
from triosim.trace import Tensor


class Reaction:
    """Does nothing; override what a strategy reacts to.

    ``group`` are the ranks that have the same parameters, ``rank`` is this one; ``pending`` are the handles that the
    optimizer waits for. ``ledger`` is told what memory the reaction takes and gives back.
    """

    #: Whether this rank updates its parameters itself.
    runs_optimizer: bool = True
    #: The gradients that ``gradient_ready`` does something for, by the parameter's id; None for all. It is not called for
    #: the others, which saves time: ranks of one stage that share the set also share their script.
    acts_on: frozenset[int] | None = None
    #: Whether ``gradient_ready`` is called in each micro-batch; by default in the last one alone, when gradients are complete.
    each_micro_batch: bool = False

    def __init__(self, group: Communicator, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.pending: list[Handle] = []
        self.ledger: Ledger = NOTHING

    @property
    def alone(self) -> bool:
        """Whether there is nobody to communicate with."""
        return len(self.group.ranks) == 1

    def keeps(self, parameter: Tensor) -> float:
        """Return how many bytes of a parameter the rank has all the time: by default the whole."""
        return float(parameter.nbytes)

    def accumulates(self, gradient: Gradient) -> float:
        """Return the bytes in which a gradient is added up: by default as it is reduced."""
        return gradient.nbytes

    def step_begins(self) -> TaskStream | None:
        """Before the first micro-batch."""

    def parameters_needed(self, block: Block) -> TaskStream | None:
        """A block of the forward or backward pass is about to use its parameters."""

    def needs(self, block: Block) -> Hashable:
        """Return what of the parameters a block uses: ``parameters_needed`` is not called where the block before it in an
        action uses the same. By default each block uses something of its own.
        """
        return id(block)

    def forward_ends(self) -> TaskStream | None:
        """After the forward pass of a micro-batch."""

    def gradient_ready(self, gradient: Gradient) -> TaskStream | None:
        """A gradient is complete: its last contribution, in the last (or ``each_micro_batch``), has been computed."""

    def before_optimizer(self) -> TaskStream | None:
        """After the last backward pass. By default the optimizer waits for what is pending."""
        return self.wait() if self.pending else None

    def after_optimizer(self) -> TaskStream | None:
        """After the parameters have been updated."""

    def wait(self) -> TaskStream:
        """What is computed from here on waits for what is pending."""
        handles, self.pending = tuple(self.pending), []
        yield Wait(handles)


def layers_of(gradients: Iterable[Gradient]) -> Layers:
    """Return the layers of some gradients with their bytes, for the collective that reduces them together."""
    nbytes: dict[str, float] = {}
    for gradient in gradients:
        nbytes[gradient.layer] = nbytes.get(gradient.layer, 0.0) + gradient.nbytes
    return Layers(nbytes)


def reacting(program: Program, along: Along, make: ReactionMaker) -> Program:
    """Return the program with one more reaction, along an axis or several taken as one."""
    return replace(program, reactions=(*program.reactions, (along, make)))


def reducing(program: Program, axes: tuple[str, ...], make: Callable[[bool], ReactionMaker]) -> Program:
    """Return the program that reacts to gradients along data axes; to those of experts among the ranks that have the same.

    ``make`` is asked for the reaction to the one and to the other kind: whether they are experts'.
    """

    def of(experts: bool) -> ReactionMaker:
        made = make(experts)

        def some(stage: Stage, gradients: tuple[Gradient, ...]) -> Callable[[Communicator, int], Reaction]:
            return made(stage, tuple(g for g in gradients if (g.parameter.storage in program.experts) == experts))

        return some

    for experts in (False, True) if program.experts else (False,):
        program = reacting(program, program.with_same(axes, experts=experts), of(experts))
    return program


def require_gradients(program: Program) -> None:
    """Raise ``TraceError`` where a training trace shows no gradient, so that nothing would be reduced."""
    if not program.training or any(stage.gradients() for stage in program.stages):
        return
    missing = "gradient of a parameter" if any(stage.backward for stage in program.stages) else "backward pass"
    raise TraceError(
        f"the trace shows no {missing}, so data parallelism would reduce nothing",
        fix="capture a training step, or simulate inference",
    )
