"""ZB-H1 (Qi et al. 2024, "Zero Bubble Pipeline Parallelism"): gradients of parameters are computed when the rank is idle.

1F1B whose backward pass is split: the next rank waits for the gradient of the input alone. Rank r puts off the weight part
of r micro-batches, so that no rank holds more micro-batches than 1F1B's first one does.
"""

from __future__ import annotations

from triosim.extrapolators.core.schedule_table import Action, ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule


class ZeroBubble(PipelineSchedule):
    """The bubble is (p - 1) (F + I - W) for at least p micro-batches, where W takes no longer than F or I."""

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return 1F1B with the weight parts put off."""
        return ScheduleTable.of([_row(rank, ranks, micro_batches) for rank in range(ranks)])


def _row(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    ahead = min(ranks - 1 - rank, micro_batches)
    row = [Action(rank, "forward", index) for index in range(ahead)]
    for index in range(micro_batches):
        if ahead + index < micro_batches:
            row.append(Action(rank, "forward", ahead + index))
        row.append(Action(rank, "input", index))
        if index >= rank:
            row.append(Action(rank, "weight", index - rank))
    left = range(max(micro_batches - rank, 0), micro_batches)
    return [*row, *(Action(rank, "weight", index) for index in left)]
