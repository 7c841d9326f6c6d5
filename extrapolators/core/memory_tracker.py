"""The ledger: what a rank has in memory while it goes through its loop, told by those who take and give it back.

A loop tells which operators run; what these make and how long it lives is known from the program. A reaction tells what it
takes beside them: whole parameters that were gathered, buffers that are sent from, shares of gradients.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triosim.extrapolators.core.lowering import InstructionList, PostedReceive, ScheduledAction
    from triosim.trace import Category


class MemoryTracker:
    """Writes nothing down, as in a simulation; derive from it to count.

    A gradient of a parameter has the key ``("gradient", storage)``, from when it is first added to until somebody releases it.
    """

    def allocate(
        self, key: Hashable, nbytes: float, category: Category, layer: str = "", *, stream: str = "compute"
    ) -> None:
        """Take ``nbytes`` under a key; nothing where something is held under it."""

    def free(self, key: Hashable) -> None:
        """Give back what is held under a key; nothing where there is none."""

    def receive_posted(self, posted: PostedReceive) -> None:
        """A tensor of another stage may come from now on."""

    def action_begins(self, act: ScheduledAction) -> None:
        """An action of the schedule begins; what it receives is there."""

    def operators_ran(self, script: InstructionList, first: int, end: int, micro_batch: int) -> None:
        """Some operators of a script ran for a micro-batch (-1: the optimizer's)."""


#: What reactions write into in a simulation.
UNTRACKED = MemoryTracker()
