"""What one rank does when a parameter is about to be used, a gradient is ready, or the step ends.

Data-parallel strategies (dp, ddp, fsdp, zero) are reactions: they leave the operators alone and communicate around them.
A reaction is made for each rank. Its methods are generators that yield tasks, and are answered with their handles; one that
is not overridden costs nothing.
"""

from __future__ import annotations

from triosim.extrapolators.program import Block, Gradient
from triosim.tasks import Communicator, Handle, TaskStream, Wait


class Reaction:
    """Does nothing; override what a strategy reacts to.

    ``group`` are the ranks that have the same parameters, ``rank`` is this one; ``pending`` are the handles that the
    optimizer waits for.
    """

    #: Whether this rank updates its parameters itself.
    runs_optimizer: bool = True

    def __init__(self, group: Communicator, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.pending: list[Handle] = []

    @property
    def alone(self) -> bool:
        """Whether there is nobody to communicate with."""
        return len(self.group.ranks) == 1

    def step_begins(self) -> TaskStream | None:
        """Before the first micro-batch."""

    def parameters_needed(self, block: Block) -> TaskStream | None:
        """A block of the forward or backward pass is about to use its parameters."""

    def forward_ends(self) -> TaskStream | None:
        """After the forward pass of a micro-batch."""

    def gradient_ready(self, gradient: Gradient) -> TaskStream | None:
        """A gradient is complete: its last contribution, in the last micro-batch, has been computed."""

    def before_optimizer(self) -> TaskStream | None:
        """After the last backward pass. By default the optimizer waits for what is pending."""
        return self.wait() if self.pending else None

    def after_optimizer(self) -> TaskStream | None:
        """After the parameters have been updated."""

    def wait(self) -> TaskStream:
        """What is computed from here on waits for what is pending."""
        handles, self.pending = tuple(self.pending), []
        yield Wait(handles)
