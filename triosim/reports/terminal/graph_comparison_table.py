"""One workload of Chakra graphs on several systems as a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from triosim.comparison.graphs import GraphComparison, notes_of
from triosim.reports.terminal.tables import note_lines, percent, table
from triosim.units import format_time


def render(comparison: GraphComparison) -> RenderableType:
    """Return a comparison as something that rich can show."""
    rows, reasons = [], []
    for run in comparison.runs:
        if run.step is None:
            reasons.append(Text(f"{run.system}, {run.rules}, cannot run: {run.reason}", style="dim"))
            continue
        step, speed_up = run.step, comparison.speed_up(run)
        waiting = step.exposed_waiting_s
        parts = (step.compute_s, step.communication_s, step.exposed_communication_s - (waiting or 0.0), waiting)
        shares = ["" if part is None else percent(part, step.step_time_s) for part in parts]
        gain = "" if speed_up is None else f"{speed_up:.2f}x"
        rows.append((run.system, run.rules, format_time(step.step_time_s), *shares, gain))
    title = f"{comparison.graphs} on several systems"
    made = table(title, "system", "rules", "step", "comp.", "comm.", "exp.", "wait", "gain", rows=rows)
    legend = (
        "comp., comm., exp., wait: computing, communication, exposed communication, and waiting for partners without computing "
        "(by ASTRA-sim's rules in exp.), mean over the ranks; gain: over the first"
    )
    return Group(made, *reasons, Text(legend, style="dim"), *note_lines(list(notes_of(comparison))))
