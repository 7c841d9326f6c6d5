"""The command ``triosim schedule``: simulates a pipeline schedule, draws it, and writes it as a table to edit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from triosim.cli import options as o
from triosim.comparison.schedule_alone import ActionTimes, run_schedule
from triosim.config import Option
from triosim.errors import OptionError, OutputError
from triosim.extrapolators.pipeline.schedules.csv_file import write_table
from triosim.output_files import check_outputs
from triosim.reports.pictures.plot import check_plot
from triosim.reports.pictures.schedule_plot import write_schedule_plot
from triosim.reports.terminal.schedule_table import as_json, render

OPTIONS = (
    Option("micro_batches", "whole", None, "By default as many as ranks, or as it needs.", metavar="M", panel=""),
    Option(
        "virtual_stages", "whole", None, "interleaved: how many stages a rank has. By default 2.", metavar="V", panel=""
    ),
    Option(
        "times",
        "text",
        "1,1,1",
        "Seconds: forward, backward for the input, for the weights.",
        metavar="F,I,W",
        panel="",
    ),
    Option("output", help="The schedule as a table (.csv), to change and use.", metavar="FILE", short="-o", panel=""),
    replace(o.PLOT, panel=""),
    o.FORMAT,
    o.QUIET,
)


@o.takes(*OPTIONS)
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="gpipe, 1f1b, interleaved, zero-bubble, dualpipe, file.py:Class, or a CSV file.",
            show_default=False,
            autocompletion=o.completing(o.schedule_names),
        ),
    ],
    stages: Annotated[
        int, typer.Option("--stages", metavar="P", show_default=False, help="How many ranks the pipeline has.")
    ],
    **given: Any,
) -> None:
    """Show a pipeline schedule by itself: a simulated step of identical stages, without communication.

    [bold]Examples[/]

    [cyan]triosim schedule 1f1b --stages 4 --micro-batches 8 --plot 1f1b.png[/]
    [cyan]triosim schedule zero-bubble --stages 4 --micro-batches 8 --times 1,1.2,0.8[/]
    [cyan]triosim schedule interleaved --stages 4 --micro-batches 8 --virtual-stages 2 -o mine.csv[/]
    """
    output, plot, format = given["output"], given["plot"], o.FORMAT.parse(given["format"])
    check_outputs(output, plot, reading=(name,))
    if output is not None and not output.endswith(".csv") and (Path(output).is_file() or not Path(output).exists()):
        raise OutputError("does not name a CSV file", where=f"--output {output}", fix="end it in .csv")
    if plot is not None:
        check_plot(plot)
    run = run_schedule(
        name,
        stages,
        given["micro_batches"],
        virtual_stages=given["virtual_stages"],
        times=_times(given["times"] or "1,1,1"),
    )
    if output is not None:
        write_table(run.schedule, output)
    if plot is not None:
        write_schedule_plot(run, plot)
    if format == "json":
        sys.stdout.write(as_json(run))
    elif not given["quiet"]:
        Console(highlight=False).print(render(run))


def _times(text: str) -> ActionTimes:
    try:
        forward, into, weight = (float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"'{text}' is not three numbers", where="--times", fix="write 1,1,1") from None
    if not all(0 < seconds < float("inf") for seconds in (forward, into, weight)):
        raise OptionError(f"{text} are not three times", where="--times", fix="give more than 0")
    return ActionTimes(forward, into, weight)
