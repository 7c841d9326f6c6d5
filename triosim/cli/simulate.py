"""The command ``triosim simulate``: simulates a training step, or an inference pass, on many GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import loaded, show_on_terminal
from triosim.cli.subject import ConfiguredRun, TracePath, configured
from triosim.config import Option
from triosim.config.option import OUTPUT
from triosim.output_files import check_outputs
from triosim.plugins import file_of
from triosim.reports.terminal.progress import Progress
from triosim.results import report as reports
from triosim.results.result import Result
from triosim.simulation import simulate_config


def _file(name: str, help: str, short: str = "") -> Option:
    return Option(name, help=help, metavar="FILE", panel=OUTPUT, short=short)


#: The reports that have an option of their own, by that option.
_REPORTS = {"csv": "csv", "timeline": "timeline", "plot": "plot", "link_plot": "link-plot"}

#: What is done with the result.
OPTIONS = (
    o.CONFIG,
    o.SAVE_CONFIG,
    _file("output", "Write the whole result as JSON, by layer and rank too.", "-o"),
    _file("csv", "Write every figure as a row of a CSV file."),
    _file("timeline", "A timeline for ui.perfetto.dev or chrome://tracing (.json or .json.gz)."),
    o.PLOT,
    _file("link_plot", "A heat map of the links: on the topology, and over time (png, svg, pdf)."),
    o.WRITE,
    Option("by_layer", "flag", False, "Show exposed communication by layer and axis.", panel=OUTPUT),
    Option(
        "what_if",
        "flag",
        False,
        "Run again with the GPUs, and each kind of link, twice as fast; show what that saves.",
        panel=OUTPUT,
    ),
    o.FORMAT,
    o.QUIET,
)


@o.takes(*o.of_run("simulate", OPTIONS))
def command(trace: TracePath = None, **given: Any) -> None:
    """Simulate one training step, or an inference pass, on many GPUs.

    [bold]Examples[/]

    Data parallelism on the eight GPUs of a DGX H100:
    [cyan]triosim simulate trace.json --parallel ddp --gpus 8 --topology dgx-h100[/]

    Four pipeline stages, two replicas of them, 16 micro-batches, and a timeline to look at:
    [cyan]triosim simulate trace.json -p dp=2,pp=4 --micro-batches 16 --timeline run.json.gz[/]

    What if the links were half as fast?
    [cyan]triosim simulate trace.json -p ddp -n 8 -t 'switch(8, bandwidth=225 GB/s)'[/]

    Which links are hot and when, whose communication is exposed, and what faster parts would save:
    [cyan]triosim simulate trace.json -p tp -n 8 --links --by-layer --what-if --link-plot links.png[/]

    Only JSON, for another program:
    [cyan]triosim simulate trace.json -p tp -n 4 --format json | jq .step_time_s[/]

    A model that is described by its name, in micro-batches of one sample, without a trace:
    [cyan]triosim simulate llama3-8b --seq 8192 --micro-batch-size 1 -p fsdp=8[/]

    The options of an earlier run, with another schedule:
    [cyan]triosim simulate --config result.json --schedule 1f1b[/]

    The task streams of a distributed script, as 'triosim capture --fake --world 64' wrote them:
    [cyan]triosim simulate streams.json.gz --topology dgx-h100[/]
    """
    format = o.FORMAT.parse(given["format"])
    written = tuple(_reports(given))
    run = configured("simulate", trace, given, OPTIONS)
    reading = (*run.files, *(file_of(report) for report, _ in written))
    check_outputs(given["output"], given["save_config"], *(path for _, path in written), reading=reading)
    for report, path in written:
        reports.check(reports.find(report), path)
    if given["link_plot"] is not None and isinstance(run.config.network, str):
        loaded("triosim.reports.pictures.link_plot:check_link_plot")(given["link_plot"], run.config.network)
    recorded = {name for report, _ in written for name in reports.records(reports.find(report))}
    run = run.with_options(**dict.fromkeys(recorded, True))
    result = _simulated(run, what_if=bool(given["what_if"]), quiet=bool(given["quiet"]))
    run.save(given["save_config"])
    if given["output"] is not None:
        result.save(given["output"])
    for report, path in written:
        result.write(report, path)
    if format == "json":
        sys.stdout.write(result.to_json())
    elif not given["quiet"]:
        render = loaded("triosim.reports.terminal.result_tables:render")
        show_on_terminal(render(result.data, result.title, by_layer=bool(given["by_layer"])))


def _reports(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the reports that are asked for, with the files that they are written to."""
    for option, report in _REPORTS.items():
        if given[option] is not None:
            yield report, given[option]
    yield from o.reports(given["write"])


def _simulated(run: ConfiguredRun, *, what_if: bool, quiet: bool) -> Result:
    with Progress(shown=not quiet) as progress:
        simulated: Callable[..., Result] = simulate_config
        if what_if:
            simulated = partial(loaded("triosim.comparison.what_if:what_if_config"), started=progress.labelled)
        return simulated(run.subject, run.config, progress=progress)
