"""GPipe (Huang et al. 2019): all micro-batches forward, then all backward."""

from __future__ import annotations

from triosim.extrapolators.core.schedule_table import Action, ActionPhase, ScheduleTable
from triosim.extrapolators.pipeline.schedule import PipelineSchedule


class GPipe(PipelineSchedule):
    """The bubble is (p - 1) of a micro-batch's forward and backward pass; each rank holds all micro-batches."""

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return all forward passes, then all backward passes."""
        phases: tuple[ActionPhase, ...] = ("forward", "backward")
        return ScheduleTable.of(
            [
                [Action(rank, phase, index) for phase in phases for index in range(micro_batches)]
                for rank in range(ranks)
            ]
        )
