"""The command ``triosim simulate``: simulates a training step, or an inference pass, on many GPUs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from triosim.cli import by_rules
from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.launching import exporting
from triosim.cli.monitoring import monitored
from triosim.cli.subject import ConfiguredRun, TracePath, WrittenReport, configured, named_reports, with_reports
from triosim.config import Option
from triosim.config.option import OUTPUT
from triosim.errors import OptionError
from triosim.output_files import check_folder
from triosim.reports.terminal.progress import Progress

simulation = LaterModule("simulation")
graph_writing = LaterModule("pipeline.graph_writing")
what_if = LaterModule("comparison.what_if")
remedies = LaterModule("comparison.remedies")
comparison_table = LaterModule("reports.terminal.comparison_table")
link_plot = LaterModule("reports.pictures.link_plot")
tables = LaterModule("reports.terminal.result_tables")
reports = LaterModule("results.report")
recorded = LaterModule("reports.page.recorded")

#: The reports that have an option of their own, by that option.
_REPORTS = {
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "timeline": "timeline",
    "kineto": "kineto",
    "plot": "plot",
    "link_plot": "link-plot",
    "report": "page",
}

# fmt: off
#: What is done with the result.
OPTIONS = (
    o.CONFIG,
    o.SAVE_CONFIG,
    o.LIKE,
    o.IGNORE_UNKNOWN,
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help="Write the whole result as JSON, by layer and rank too."),
    Option("csv", metavar="FILE", panel=OUTPUT, help="Write every figure as a row of a CSV file."),
    Option("parquet", metavar="FILE", panel=OUTPUT, help="The same rows as a Parquet file."),
    Option("arrow", metavar="FILE", panel=OUTPUT, help="The same rows as an Arrow file (Feather)."),
    Option("timeline", metavar="FILE", panel=OUTPUT, help=
        "A timeline for ui.perfetto.dev or chrome://tracing (.json or .json.gz)."),
    Option("kineto", metavar="FOLDER", panel=OUTPUT, help=
        "A profile of every rank as PyTorch's profiler writes it (Kineto), for HolisticTraceAnalysis and others."),
    o.PLOT,
    Option("link_plot", metavar="FILE", panel=OUTPUT, help=
        "A heat map of the links: on the topology, and over time (png, svg, pdf)."),
    o.REPORT,
    Option("record", "flag", False, panel=OUTPUT, help=
        "Keep the timeline, the links' loads and the memory over time in --output, for 'triosim report'."),
    o.WRITE,
    Option("chakra", metavar="FOLDER", panel=OUTPUT, help=
        "Write the step as Chakra graphs, with the files that ASTRA-sim reads beside them."),
    *o.EXPORT,
    Option("by_layer", "flag", False, panel=OUTPUT, help="Show exposed communication by layer and axis."),
    Option("what_if", "flag", False, panel=OUTPUT, help=
        "Run again with the GPUs, and each kind of link, twice as fast; show what that saves."),
    *o.MONITOR,
    o.FORMAT,
    o.QUIET,
    *by_rules.OPTIONS,
)
# fmt: on


@o.takes(*OPTIONS, run=o.of_run("simulate"))
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

    The job that a launch file describes, and launch files of a run:
    [cyan]triosim simulate llama3-70b --like job.toml --gpus 64[/]
    [cyan]triosim simulate llama3-70b --seq 8192 -p fsdp=8,tp=8 --export launch --for torchtitan[/]

    A study of ASTRA-sim's, by its own rules:
    [cyan]triosim simulate graphs/ --rules astra-sim -t network.yml --system system.json --groups comm_group.json[/]

    The task streams of a distributed script, as 'triosim capture --fake --world 64' wrote them:
    [cyan]triosim simulate streams.json.gz --topology dgx-h100[/]
    """
    if given["rules"] is not None:
        by_rules.simulate_by_rules(trace, given)
        return
    by_rules.refuse_without_rules(given)
    exporting.check_export(given["export"], given["frameworks"])
    run = configured("simulate", trace, given, OPTIONS)
    exporting.check_model(run, given["frameworks"])
    named = [(report, given[option]) for option, report in _REPORTS.items() if given[option] is not None]
    run, written = with_reports(run, [*named, *named_reports(given["write"])], given["output"])
    if given["link_plot"] is not None and isinstance(run.config.network, str):
        link_plot.check_link_plot(given["link_plot"], run.config.network)
    if given["record"] and given["output"] is None:
        raise OptionError("has no file to keep it in", where="--record", fix="add --output result.json.gz")
    kept = {name for report in written for name in reports.records(report.kind)}
    kept |= {"timeline", "links"} if given["record"] else set()
    if run.config.timeline_ranks is not None and "timeline" not in kept:
        raise OptionError("has no effect without --timeline or --kineto", where="--timeline-ranks", fix="leave it out")
    run = run.with_options(**dict.fromkeys(kept, True))
    if given["chakra"] is not None:
        check_folder(given["chakra"], graph_writing.GRAPHS, "*.et")
    with run.naming_places(), Progress(shown=not given["quiet"]) as progress, monitored(progress, given) as watched:
        simulate = simulation.simulate_config
        if given["what_if"]:
            simulate = partial(what_if.what_if_config, started=progress.labelled)
        result = simulate(run.subject, run.config, progress=watched)
    _hand_out(result, run, written, given)


def _hand_out(result: Any, run: ConfiguredRun, written: Sequence[WrittenReport], given: Mapping[str, Any]) -> None:
    """Write a result to the files that were asked for, and show it."""
    if given["record"]:
        result = recorded.with_recorded(result)
    if given["output"] is not None:
        result.save(given["output"])
    for report in written:
        report.write(result)
    if given["chakra"] is not None:
        graph_writing.write_step(run.subject, run.config, Path(given["chakra"]))
    run.save()
    if given["export"] is not None:
        exporting.export_run(run, result, given["export"], given["frameworks"])
    if given["format"] == "json":
        sys.stdout.write(result.to_json())
    elif not given["quiet"]:
        show_on_terminal(tables.render(result.data, result.title, by_layer=given["by_layer"]))
        if remedies.does_not_fit(result):
            _show_what_would_fit(result, run)


def _show_what_would_fit(result: Any, run: ConfiguredRun) -> None:
    """Say what would make a step fit, or what was tried."""
    most = remedies.MOST_SECONDS
    waiting = f"looking for what fits, for about {most:g} s of processor time (--quiet does not)"
    with Progress(redirected=waiting) as progress:
        found = remedies.remedies_config(
            run.subject, run.config, lambda options: progress.said(f"{waiting}: {options}"), seconds=most
        )
    show_on_terminal(*comparison_table.render_remedies(found, result.step_time_s))
    if found.stopped:  # as one line, to be copied
        print(remedies.search_command(run.subject, run.config, result.data.global_batch_size))
