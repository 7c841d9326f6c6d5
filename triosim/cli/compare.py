"""The command ``triosim compare``: simulates all strategies on one number of GPUs, or Chakra graphs on several systems."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triosim.cli import by_rules
from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.subject import ConfiguredRun, TracePath, configured, named_reports, with_reports
from triosim.config import COMMON, Option
from triosim.config.option import SYSTEM
from triosim.errors import OptionError
from triosim.reports.terminal.progress import Progress

jobs = LaterModule("comparison.jobs")
strategies = LaterModule("comparison.strategies")
tables = LaterModule("reports.terminal.comparison_table")
workload = LaterModule("chakra.workload")
graphs = LaterModule("comparison.graphs")
graph_tables = LaterModule("reports.terminal.graph_comparison_table")

#: The reports that have an option of their own, by that option.
_REPORTS = {"plot": "comparison-plot", "report": "comparison-page"}

GPUS = replace(COMMON["gpus"], help="The number of GPUs.")
# fmt: off
TOPOLOGIES = Option("topology", "object", metavar="NAME", short="-t", panel=SYSTEM, repeatable=True, help=
    f"{COMMON['topology'].help} With Chakra graphs also a folder with ASTRA-sim's files; repeatable, for each system.")
# fmt: on
LIKE = replace(
    o.LIKE,
    repeatable=True,
    kind="object",
    help="The launch file of a job, which is compared with others instead of strategies. Repeatable.",
)
OPTIONS = (
    *(o.CONFIG, o.SAVE_CONFIG, LIKE, o.IGNORE_UNKNOWN, GPUS, TOPOLOGIES, o.PLOT, o.REPORT, o.WRITE, o.FORMAT, o.QUIET),
    *by_rules.OPTIONS,
)
RUN = [option for option in o.of_run("compare") if option.name != TOPOLOGIES.name]


@o.takes(*OPTIONS, run=RUN)
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

    The jobs of two launch files:
    [cyan]triosim compare llama3-70b --like a.toml --like b.toml --gpus 64[/]

    Chakra graphs on two systems, on the engine and by ASTRA-sim's rules:
    [cyan]triosim compare graphs/ -t dgx-h100 -t astra/ --rules astra-sim[/]
    """
    if given["rules"] is None:
        by_rules.refuse_without_rules(given)
    systems = given["topology"] or []
    if trace is not None and workload.is_prefix(trace):
        _compare_graphs(trace, systems, given)
        return
    if len(systems) > 1:
        raise OptionError(
            f"{len(systems)} topologies", where="--topology", fix="give one; strategies are compared on it"
        )
    if given["rules"] is not None:
        raise OptionError("has no effect without Chakra graphs", where="--rules", fix="leave it out")
    given = {**given, "topology": next(iter(systems), None)}
    paths = given["like"] or []
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise OptionError(f"'{twice}' is given twice", where="--like", fix="name each job once")
    runs = [configured("compare", trace, {**given, "like": path}, OPTIONS) for path in paths or [None]]
    if not paths and runs[0].config.gpus is None:
        raise OptionError("Missing option '--gpus' / '-n'", fix="see 'triosim compare --help'")
    if len(paths) > 1 and given["save_config"] is not None:
        raise OptionError("several jobs have no options in common", where="--save-config", fix="leave it out")
    named = [(report, given[option]) for option, report in _REPORTS.items() if given[option] is not None]
    run, written = with_reports(runs[0], [*named_reports(given["write"]), *named], subject="comparison")
    with Progress(shown=not given["quiet"]) as progress:
        comparison = _compared(run, dict(zip(paths, [run, *runs[1:]], strict=False)), progress)
    for report in written:
        report.write(comparison)
    run.save()
    if given["format"] == "json":
        sys.stdout.write(comparison.to_json())
    elif not given["quiet"]:
        show_on_terminal(tables.render(comparison))


def _compared(run: ConfiguredRun, launch_files: Mapping[str, ConfiguredRun], progress: Progress) -> Any:
    """Return the comparison of all strategies, or of the jobs of launch files."""
    if launch_files:
        compared = {path: jobs.ComparedJob(one.config, one.naming_places) for path, one in launch_files.items()}
        return jobs.compare_jobs(run.subject, compared, progress.labelled, progress)
    return strategies.compare_config(
        run.subject,
        run.config.gpus,
        run.config,
        started=lambda strategy: progress.labelled(strategy.label),
        progress=progress,
    )


def _compare_graphs(prefix: str, systems: list[str], given: Mapping[str, Any]) -> None:
    """Compare graphs on several systems."""
    for name in ("plot", "report", "write", "save_config", "like", "gpus"):
        if given[name]:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError("has no effect on Chakra graphs", where=flag, fix="leave it out")
    config = configured("compare", prefix, {**given, "topology": None}, OPTIONS).config
    rules = None if given["rules"] is None else by_rules.settings_of(given)
    with Progress(shown=not given["quiet"]) as progress:
        found = graphs.compare_graphs(
            Path(prefix), systems, config, rules, started=progress.labelled, progress=progress
        )
    if given["format"] == "json":
        sys.stdout.write(found.to_json())
    elif not given["quiet"]:
        show_on_terminal(graph_tables.render(found))
