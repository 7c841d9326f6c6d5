"""The interface of memory trackers, which follow what a rank allocates and frees in its training loop.

The loop reports the operators that run; the program has the lifetimes of their results. Hooks report their own allocations:
gathered parameters, buffers that are sent from, shares of gradients.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import InstructionList, PostedReceive, ScheduledAction
    from triosim.trace import Category


class MemoryTracker:
    """Ignores all reports, as in a simulation; derive from it to count.

    The gradient of a parameter has the key ``("gradient", storage)``, from when it is first added to until it is freed.
    """

    def allocate(
        self, key: Hashable, nbytes: float, category: Category, layer: str = "", *, stream: str = "compute"
    ) -> None:
        """Allocate ``nbytes`` under a key, unless there is an allocation under it already."""

    def free(self, key: Hashable) -> None:
        """Free the allocation under a key, if there is one."""

    def receive_posted(self, posted: PostedReceive) -> None:
        """A receive from another stage is posted."""

    def action_begins(self, act: ScheduledAction) -> None:
        """An action of the schedule begins; the tensors that it receives have arrived."""

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Operators ``first`` to ``end`` - 1 of a list ran for a micro-batch (-1: the optimizer's)."""


UNTRACKED = MemoryTracker()
