"""What parallelisms say of a rank's memory: to a tracker, which follows its training loop, or as a footprint.

The training loop reports to a tracker the operators that run; the program has the lifetimes of their results. Hooks report
their own allocations: gathered parameters, buffers that are sent from, shares of gradients. A footprint is declared by a
parallelism that writes the tasks of a rank itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import InstructionList, PostedReceive, ScheduledAction
    from triosim.extrapolators.core.program import TransferKey
    from triosim.trace import Category


@dataclass(frozen=True, slots=True)
class StoreActivations:
    """The tensors of some ``storages`` are copied to a memory of a ``tier``; the GPU goes on, and ``Await`` waits for it.

    They are on the GPU until that.
    """

    key: TransferKey
    tier: str
    nbytes: float
    storages: frozenset[int]
    layer: str = ""


@dataclass(frozen=True, slots=True)
class LoadActivations(StoreActivations):
    """The same tensors are copied back, and take memory on the GPU from now on."""


class MemoryTracker:
    """Ignores all reports, as in a simulation; derive from it to count.

    The gradient of a parameter has the key ``("gradient", storage)``, from when it is first added to until it is freed.
    """

    def allocate(
        self,
        key: Hashable,
        nbytes: float,
        category: Category,
        layer: str = "",
        *,
        stream: str = "compute",
        tier: str | None = None,
    ) -> None:
        """Allocate ``nbytes`` under a key, unless there is an allocation under it already: on the GPU, or on a ``tier``."""

    def free(self, key: Hashable) -> None:
        """Free the allocation under a key, if there is one."""

    def receive_posted(self, posted: PostedReceive) -> None:
        """A receive from another stage is posted."""

    def action_begins(self, act: ScheduledAction) -> None:
        """An action of the schedule begins; the tensors that it receives have arrived."""

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Operators ``first`` to ``end`` - 1 of a list ran for a micro-batch (-1: the optimizer's)."""


UNTRACKED = MemoryTracker()


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """A rank's memory in terms of a training step: by default, the whole step and no more.

    ``trains`` says whether the rank runs the forward and backward passes, ``updates`` whether it runs the optimizer and keeps
    its states. ``share`` is the part that it keeps of each parameter and of the program's optimizer states. ``buffers`` are
    what it holds all the time besides: a name, the category and the bytes of each.
    """

    trains: bool = True
    updates: bool = True
    share: float = 1.0
    buffers: tuple[tuple[str, Category, float], ...] = ()
