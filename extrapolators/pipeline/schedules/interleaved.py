"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2): each rank has v stages, which lie p stages apart."""

from __future__ import annotations

from triosim.errors import OptionError
from triosim.extrapolators.core.flags import EP_OVERLAP, VIRTUAL_STAGES
from triosim.extrapolators.core.schedule_table import Action, ScheduleTable, in_turn
from triosim.extrapolators.pipeline.schedule import PipelineSchedule


class Interleaved(PipelineSchedule):
    """The bubble is 1/v of 1F1B's; v times as much is sent.

    Micro-batches go through in groups of p: a rank runs a group in one of its stages, then in the next. With ``ep_overlap``
    passes run side by side after one more forward pass, as in Megatron-Core (``combined_1f1b``).
    """

    options = (VIRTUAL_STAGES, EP_OVERLAP)

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        """Return 1F1B over groups of micro-batches."""
        stages = self._stages_of_a_rank()
        if micro_batches % ranks:
            raise OptionError(
                f"{micro_batches} micro-batches are not divisible by {ranks} pipeline ranks",
                where="schedule interleaved",
                fix=f"use a multiple of {ranks}",
            )
        groups = range(0, micro_batches, ranks)
        order = [(turn, first + i) for first in groups for turn in range(stages) for i in range(ranks)]
        rows, overlap = [], self.config.ep_overlap
        for rank in range(ranks):
            forward = [Action(turn * ranks + rank, "forward", index) for turn, index in order]
            backward = [Action((stages - 1 - turn) * ranks + rank, "backward", index) for turn, index in order]
            ahead = 2 * (ranks - 1 - rank) + (stages - 1) * ranks + overlap
            rows.append(in_turn(forward, backward, ahead=ahead, side_by_side=overlap))
        return ScheduleTable(tuple(rows))

    def _stages_of_a_rank(self) -> int:
        stages: int = 2 if self.config.virtual_stages is None else self.config.virtual_stages
        if stages < 2:
            raise OptionError(f"{stages} a rank", where="virtual stages", fix="give 2 or more, or choose 1f1b")
        return stages
