"""A pipeline schedule that ran, as a table and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from triosim.reports.terminal.tables import table

if TYPE_CHECKING:
    from rich.table import Table

    from triosim.comparison.schedule_alone import ScheduleRun


def render(run: ScheduleRun) -> Table:
    """Return a table of the ranks."""
    schedule = run.schedule
    rows = [
        (
            str(rank),
            ", ".join(map(str, schedule.stages_of(rank))),
            f"{busy:g}",
            f"{run.bubble(rank):g}",
            f"{run.bubble(rank) / run.seconds:.1%}",
            f"{run.held(rank):g}",
        )
        for rank, busy in enumerate(run.busy)
    ]
    return table(
        f"{run.name}: {len(schedule.rows)} ranks, {schedule.stages} stages, {schedule.micro_batches} micro-batches",
        *("rank", "stages", "busy s", "bubble s", "of the step", "micro-batches held"),
        rows=rows,
        legend=f"a step takes {run.seconds:g} s; held: the most micro-batches whose activations are in memory at once",
    )


def as_json(run: ScheduleRun) -> str:
    """Return the same figures, and when each action ran."""
    found = {
        "schedule": run.name,
        "step_time_s": run.seconds,
        "ranks": [
            {
                "rank": rank,
                "stages": list(run.schedule.stages_of(rank)),
                "busy_s": busy,
                "bubble_s": run.bubble(rank),
                "micro_batches_held": run.held(rank),
            }
            for rank, busy in enumerate(run.busy)
        ],
        "actions": [
            {"rank": one.rank, "slot": one.slot, "action": str(one.action), "start_s": one.start, "end_s": one.end}
            for one in run.ran
        ],
    }
    return json.dumps(found, indent=2) + "\n"
