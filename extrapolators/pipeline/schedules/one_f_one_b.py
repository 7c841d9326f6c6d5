"""1F1B (PipeDream-Flush, Narayanan et al. 2021): after a warm-up, forward and backward passes alternate."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.extrapolators.core.schedule_table import Action, ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule


class OneForwardOneBackward(PipelineSchedule):
    """The bubble is GPipe's; rank r of p holds at most p - r micro-batches."""

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return the passes of each rank in turn, once p - 1 - r forward passes have run."""
        return ScheduleTable.of(
            [
                in_turn(
                    [Action(rank, "forward", index) for index in range(micro_batches)],
                    [Action(rank, "backward", index) for index in range(micro_batches)],
                    ahead=ranks - 1 - rank,
                )
                for rank in range(ranks)
            ]
        )


def in_turn(forward: Sequence[Action], backward: Sequence[Action], *, ahead: int) -> list[Action]:
    """Return the first ``ahead`` forward passes, then one forward and one backward in turn, then the other backward passes."""
    ahead = min(ahead, len(forward))
    pairs = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(action for pair in pairs for action in pair), *backward[len(forward) - ahead :]]
