"""Eager 1F1B: twice as many forward passes ahead as 1F1B, so that a late activation from another node stalls nobody.

    triosim simulate TRACE -p pp=4 --micro-batches 8 --schedule examples/plugins/eager_1f1b.py:Eager1F1B --option ahead=2

A schedule is a table: for each rank of the pipeline, what it runs in which order. Zhuang et al., "On Optimizing the
Communication of Model Parallelism" (MLSys 2023), overlap the sends of 1F1B in this way, for the memory of more micro-batches.
"""

from __future__ import annotations

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators import Action, PipelineSchedule, ScheduleTable


class Eager1F1B(PipelineSchedule):
    options = (Option("ahead", "whole", 2, "How many forward passes a rank is ahead of the next one."),)

    def table(self, ranks: int, micro_batches: int) -> ScheduleTable:
        if micro_batches < ranks:
            raise OptionError(f"{micro_batches} micro-batches on {ranks} ranks", fix=f"use {ranks} or more")
        return ScheduleTable.of([self._row(rank, ranks, micro_batches) for rank in range(ranks)])

    def _row(self, rank: int, ranks: int, micro_batches: int) -> list[Action]:
        ahead = min(self.config.ahead * (ranks - 1 - rank), micro_batches)
        row = [Action(rank, "forward", index) for index in range(ahead)]
        for index in range(micro_batches):
            if ahead + index < micro_batches:
                row.append(Action(rank, "forward", ahead + index))
            row.append(Action(rank, "backward", index))
        return row
