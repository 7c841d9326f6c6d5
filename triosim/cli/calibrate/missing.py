"""The command ``triosim calibrate missing``: lists the operators that a prediction leans on and nobody measured."""

from __future__ import annotations

import json
import sys
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.subject import TracePath, configured
from triosim.config import Option
from triosim.config.option import OUTPUT
from triosim.errors import OptionError
from triosim.reports.terminal.progress import Progress

simulation = LaterModule("simulation")
finished_run = LaterModule("results.finished_run")
model_files = LaterModule("compute.learned.model_files")
unmeasured = LaterModule("results.unmeasured")
operator_table = LaterModule("compute.fit.operator_table")
missing_table = LaterModule("reports.terminal.missing_table")

# fmt: off
OPTIONS = (
    o.CONFIG,
    o.SAVE_CONFIG,
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help=
        "Write these operators as a plan for 'triosim calibrate measure --plan'."),
    Option("most", "whole", 100, metavar="N", panel=OUTPUT, help="The number of operators, those of the largest error first."),
    o.FORMAT,
    o.QUIET,
)
# fmt: on


@o.takes(*OPTIONS, run=o.of_run("simulate"))
def command(trace: TracePath = None, **given: Any) -> None:
    """List the operators that a step's prediction leans on and nobody measured, the heaviest first.

    An operator counts by how much the step is expected to be off because of it. With --output they become a plan.

    [bold]Examples[/]

    [cyan]triosim calibrate missing llama3-8b -p fsdp -n 8 --gpu H100 -o plan.csv[/]
    [cyan]triosim calibrate measure --plan plan.csv -o measured.csv.gz[/]
    """
    run = configured("simulate", trace, given, OPTIONS, shown="calibrate missing")
    run.check_outputs(given["output"])
    with Progress(shown=not given["quiet"]) as progress:
        result = simulation.simulate_config(run.subject, run.config, progress=progress)
    assert result.recording is not None
    gpu = result.inputs["trace"]["gpu"]
    with model_files.using(run.config.models):
        measured = model_files.measured_calls(gpu)
    classes = finished_run.rank_classes(result.recording)
    every = unmeasured.unmeasured(classes, len(result.data.iterations), measured)
    if not every:
        raise OptionError("all operators of this step were measured", fix="predict another GPU, batch or parallelism")
    rows = every[: given["most"]]
    if given["output"] is not None:
        notes = [f"{result.title}: triosim calibrate measure --plan"]
        operator_table.write(unmeasured.as_plan(rows, gpu), given["output"], notes)
    run.save()
    if given["format"] == "json":
        sys.stdout.write(json.dumps(missing_table.as_values(rows), indent=2) + "\n")
    elif not given["quiet"]:
        show_on_terminal(missing_table.render(result, rows, every))
