"""The memory tracker: is told what a rank allocates and frees while it goes through its training loop.

The loop says which operators run; what these make and how long it lives is known from the program. Hooks say what they allocate
beside them: gathered parameters, buffers that are sent from, shares of gradients.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import InstructionList, PostedReceive, ScheduledAction
    from triosim.trace import Category


class MemoryTracker:
    """Ignores what it is told, as in a simulation; derive from it to count.

    A gradient of a parameter has the key ``("gradient", storage)``, from when it is first added to until somebody releases it.
    """

    def allocate(
        self, key: Hashable, nbytes: float, category: Category, layer: str = "", *, stream: str = "compute"
    ) -> None:
        """Allocate ``nbytes`` under a key, unless there is an allocation under it already."""

    def free(self, key: Hashable) -> None:
        """Free what is allocated under a key, if anything is."""

    def receive_posted(self, posted: PostedReceive) -> None:
        """A tensor of another stage may come from now on."""

    def action_begins(self, act: ScheduledAction) -> None:
        """An action of the schedule begins; what it receives is there."""

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Some operators of a script ran for a micro-batch (-1: the optimizer's)."""


#: The tracker of a simulation.
UNTRACKED = MemoryTracker()
