"""1F1B (PipeDream-Flush, Narayanan et al. 2021): after a warm-up, forward and backward passes alternate."""

from __future__ import annotations

from triosim.extrapolators.core.flags import EP_OVERLAP
from triosim.extrapolators.core.schedule_table import Action, ScheduleTable, in_turn
from triosim.extrapolators.pipeline.schedule import PipelineSchedule


class OneForwardOneBackward(PipelineSchedule):
    """The bubble is GPipe's; rank r of p holds at most p - r micro-batches.

    With ``ep_overlap`` passes run side by side, twice as many after the warm-up's first, so that neither of a pair waits for
    the other one's on the next rank.
    """

    options = (EP_OVERLAP,)

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return the passes of each rank in turn, once p - 1 - r forward passes have run."""
        overlap = self.config.ep_overlap
        rows = []
        for rank in range(ranks):
            forward = [Action(rank, "forward", index) for index in range(micro_batches)]
            backward = [Action(rank, "backward", index) for index in range(micro_batches)]
            ahead = ranks - 1 - rank
            rows.append(in_turn(forward, backward, ahead=2 * ahead + 1 if overlap else ahead, side_by_side=overlap))
        return ScheduleTable(tuple(rows))
