"""The command ``triosim schedule``: simulates a pipeline schedule, draws it, and writes it as a table to edit."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.config import COMMON, Option
from triosim.config.option import GENERAL
from triosim.errors import OptionError
from triosim.output_files import check_ending, check_outputs
from triosim.reports.terminal.progress import Progress

schedule_alone = LaterModule("comparison.schedule_alone")
csv_file = LaterModule("extrapolators.pipeline.schedules.csv_file")
pictures = LaterModule("reports.pictures.plot")
schedule_plot = LaterModule("reports.pictures.schedule_plot")
tables = LaterModule("reports.terminal.schedule_table")

# fmt: off
OPTIONS = (
    Option("stages", "whole", required=True, metavar="P", panel=GENERAL, help="The number of pipeline ranks."),
    Option("micro_batches", "whole", metavar="M", panel=GENERAL, help=
        "The number of micro-batches. By default as many as ranks, or as the schedule needs."),
    Option("virtual_stages", "whole", metavar="V", panel=GENERAL, help=
        "interleaved: the number of stages of a rank. By default 2."),
    replace(COMMON["options"], panel=GENERAL, help="An option of a plug-in's schedule. Repeatable."),
    Option("times", "text", "1,1,1", metavar="F,I,W", panel=GENERAL, help=
        "The seconds of a forward pass, and of the backward pass for the input and for the weights."),
    Option("output", metavar="FILE", short="-o", panel=GENERAL, help=
        "Write the schedule as a table (.csv), which --schedule reads."),
    replace(o.PLOT, panel=GENERAL),
    o.FORMAT,
    o.QUIET,
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    name: Annotated[
        str,
        o.argument(
            "NAME|FILE", "gpipe, 1f1b, interleaved, zero-bubble, dualpipe, file.py:Class, or a CSV file.", "schedule"
        ),
    ],
    **given: Any,
) -> None:
    """Show a pipeline schedule by itself: a simulated step of identical stages, without communication.

    [bold]Examples[/]

    [cyan]triosim schedule 1f1b --stages 4 --micro-batches 8 --plot 1f1b.png[/]
    [cyan]triosim schedule zero-bubble --stages 4 --micro-batches 8 --times 1,1.2,0.8[/]
    [cyan]triosim schedule interleaved --stages 4 --micro-batches 8 --virtual-stages 2 -o mine.csv[/]
    """
    output, plot = given["output"], given["plot"]
    check_outputs(output, plot, reading=(name,))
    if output is not None:
        check_ending(output, (".csv",), "a CSV file")
    if plot is not None:
        pictures.check_plot(plot)
    options = {key: given[key] for key in ("virtual_stages", "options")}
    times = _times(given["times"])
    with Progress(shown=not given["quiet"]) as progress:
        progress.said("ordering passes")
        run = schedule_alone.run_schedule(name, given["stages"], given["micro_batches"], times=times, **options)
    if output is not None:
        csv_file.write_table(run.schedule, output)
    if plot is not None:
        schedule_plot.write_schedule_plot(run, plot)
    if given["format"] == "json":
        sys.stdout.write(tables.as_json(run))
    elif not given["quiet"]:
        show_on_terminal(tables.render(run))


def _times(text: str) -> Any:
    try:
        forward, into, weight = (float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"'{text}' is not three numbers", where="--times", fix="write 1,1,1") from None
    if not all(0 < seconds < float("inf") for seconds in (forward, into, weight)):
        raise OptionError(f"{text} are not three positive times", where="--times", fix="write 1,1,1")
    return schedule_alone.ActionTimes(forward, into, weight)
