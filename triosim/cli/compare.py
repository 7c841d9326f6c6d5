"""The command ``triosim compare``: simulates all strategies on one number of GPUs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.subject import TracePath, configured, named_reports, with_reports
from triosim.config import COMMON
from triosim.errors import OptionError
from triosim.reports.terminal.progress import Progress

strategies = LaterModule("comparison.strategies")
tables = LaterModule("reports.terminal.comparison_table")

GPUS = replace(COMMON["gpus"], help="The number of GPUs.")
OPTIONS = (o.CONFIG, o.SAVE_CONFIG, GPUS, o.PLOT, o.WRITE, o.FORMAT, o.QUIET)


@o.takes(*OPTIONS, run=o.of_run("compare"))
def command(trace: TracePath = None, **given: Any) -> None:
    """Compare all strategies on one number of GPUs, the fastest first.

    Speed-up and efficiency compare samples per second with those of one GPU. Data parallelism gives each GPU the trace's
    batch, other strategies divide one batch among the GPUs; with --global-batch-size all have the same. An option of one
    parallelism (--schedule, of pp) is used by the strategies that have it, --tp-style by the combinations with tp.

    [bold]Examples[/]

    [cyan]triosim compare trace.json --gpus 8 --topology dgx-h100 --plot strategies.png[/]
    [cyan]triosim compare trace.json --gpus 8 --global-batch-size 1024 --format json[/]

    The first GPU is slow, pipelines run 1F1B, and a GPU costs 2.50 an hour:
    [cyan]triosim compare trace.json -n 8 --slow-gpus 0=1.5 --schedule 1f1b --price 2.5[/]
    """
    run = configured("compare", trace, given, OPTIONS)
    if run.config.gpus is None:
        raise OptionError("Missing option '--gpus' / '-n'", fix="see 'triosim compare --help'")
    plot = [] if given["plot"] is None else [("comparison-plot", given["plot"])]
    run, written = with_reports(run, [*named_reports(given["write"]), *plot], subject="comparison")
    with Progress(shown=not given["quiet"]) as progress:
        comparison = strategies.compare_config(
            run.subject,
            run.config.gpus,
            run.config,
            started=lambda strategy: progress.labelled(strategy.label),
            progress=progress,
        )
    for report in written:
        report.write(comparison)
    run.save()
    if given["format"] == "json":
        sys.stdout.write(comparison.to_json())
    elif not given["quiet"]:
        show_on_terminal(tables.render(comparison))
