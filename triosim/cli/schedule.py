"""The command ``triosim schedule``: what a pipeline schedule costs, its picture, and its table to change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from triosim.cli import options as o
from triosim.comparison.schedule_alone import Times, run_schedule
from triosim.errors import OptionError, OutputError
from triosim.extrapolators.pipeline.schedules.csv_file import write_table
from triosim.output_files import check_outputs
from triosim.reports.pictures.plot import check_plot
from triosim.reports.pictures.schedule_plot import write_schedule_plot
from triosim.reports.terminal.schedule_table import as_json, render


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="gpipe, 1f1b, interleaved, zero-bubble, dualpipe, or a CSV file.",
            show_default=False,
            autocompletion=o.completing(o.schedule_names),
        ),
    ],
    stages: Annotated[
        int, typer.Option("--stages", metavar="P", show_default=False, help="How many ranks the pipeline has.")
    ],
    micro_batches: Annotated[
        int | None,
        typer.Option(
            "--micro-batches", metavar="M", show_default=False, help="By default as many as ranks, or as it needs."
        ),
    ] = None,
    virtual_stages: Annotated[
        int | None,
        typer.Option(
            "--virtual-stages",
            metavar="V",
            show_default=False,
            help="interleaved: how many stages a rank has. By default 2.",
        ),
    ] = None,
    times: Annotated[
        str, typer.Option("--times", metavar="F,I,W", help="Seconds: forward, backward for the input, for the weights.")
    ] = "1,1,1",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="The schedule as a table (.csv), to change and use.",
        ),
    ] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", show_default=False, help="A picture (png, svg, pdf).")
    ] = None,
    format: o.Format = "table",
    quiet: o.Quiet = False,
) -> None:
    """Show a pipeline schedule by itself: a simulated step of stages that are all alike, without communication.

    [bold]Examples[/]

    [cyan]triosim schedule 1f1b --stages 4 --micro-batches 8 --plot 1f1b.png[/]
    [cyan]triosim schedule zero-bubble --stages 4 --micro-batches 8 --times 1,1.2,0.8[/]
    [cyan]triosim schedule interleaved --stages 4 --micro-batches 8 --virtual-stages 2 -o mine.csv[/]
    """
    check_outputs(output, plot, reading=(name,))
    if output is not None and not output.endswith(".csv") and (Path(output).is_file() or not Path(output).exists()):
        raise OutputError("is no name of a table", where=f"--output {output}", fix="end it in .csv")
    if plot is not None:
        check_plot(plot)
    run = run_schedule(name, stages, micro_batches, virtual_stages=virtual_stages, times=_times(times))
    if output is not None:
        write_table(run.schedule, output)
    if plot is not None:
        write_schedule_plot(run, plot)
    if format == "json":
        sys.stdout.write(as_json(run))
    elif not quiet:
        Console(highlight=False).print(render(run))


def _times(text: str) -> Times:
    try:
        forward, into, weight = (float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"'{text}' is not three numbers", where="--times", fix="write 1,1,1") from None
    if not all(0 < seconds < float("inf") for seconds in (forward, into, weight)):
        raise OptionError(f"{text} are not three times", where="--times", fix="give more than 0")
    return Times(forward, into, weight)
