"""The command ``triosim compare``: all strategies on one number of GPUs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from triosim.cli import options as o
from triosim.cli import run_options as cli_run
from triosim.cli.command import check_plot, show_on_terminal


@cli_run.takes(tuple(option for option in cli_run.OPTIONS if option.compare))
def compare(
    trace: o.TracePath,
    gpus: Annotated[int, typer.Option("--gpus", "-n", metavar="N", help="How many GPUs.", show_default=False)],
    plot: str | None,
    format: str,
    quiet: bool,
    **options: Any,
) -> None:
    """Compare all strategies on one number of GPUs, the fastest first.

    Speed-up and efficiency are those of the samples per second against one GPU: data parallelism gives each GPU the
    trace's batch, the others divide the work of one batch. Give --global-batch-size to hold the batch fixed. What an
    option is about (--schedule: pp) is where it holds; --tp-style is that of the combinations.

    [bold]Examples[/]

    [cyan]triosim compare trace.json --gpus 8 --topology dgx-h100 --plot strategies.png[/]
    [cyan]triosim compare trace.json --gpus 8 --global-batch-size 1024 --format json[/]

    One GPU is slow, pipelines run 1F1B, and a GPU costs 2.50 an hour:
    [cyan]triosim compare trace.json -n 8 --slow-gpus 3=1.5 --schedule 1f1b --price 2.5[/]
    """
    from triosim.output_files import check_outputs

    check_outputs(plot, reading=(trace, *(options[name] for name in ("topology", "operator_times", "schedule"))))
    check_plot(plot)
    from triosim.comparison.strategies import compare as run_comparison
    from triosim.reports.terminal.progress import Progress

    with Progress(shown=not quiet) as progress:
        comparison = run_comparison(
            trace,
            gpus,
            started=lambda strategy: progress.labelled(strategy.label),
            progress=progress,
            **cli_run.arguments_of(options),
        )
    if plot is not None:
        comparison.plot(plot)
    if format == "json":
        sys.stdout.write(comparison.to_json())
    elif not quiet:
        from triosim.reports.terminal.comparison_table import render

        show_on_terminal(render(comparison))
