"""The command ``triosim advise``: which changes of a launch file gain most, with the lines to change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, give_answer
from triosim.cli.launching import exporting
from triosim.cli.subject import TracePath, configured
from triosim.config import Option
from triosim.config.option import OUTPUT
from triosim.errors import OptionError
from triosim.reports.terminal.progress import Progress

advising = LaterModule("configuration_search.advice.advise")
jobs = LaterModule("launch_files.job")
reading = LaterModule("launch_files.reading")
shown = LaterModule("configuration_search.advice.terminal")

#: Options of a run that a job's changes have no use for.
_LEFT_OUT = ("iterations", "fail_on_oom", "links", "run_ahead", "timeline_ranks", "draws")
# fmt: off
OPTIONS = (
    o.CONFIG,
    replace(o.LIKE, help="The launch file of the job, as 'triosim simulate' takes it."),
    o.IGNORE_UNKNOWN,
    Option("top", "whole", 10, metavar="N", panel=OUTPUT, help="Show as many changes, those that gain most."),
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help="Write all changes that were tried as JSON."),
    o.FORMAT,
    o.QUIET,
)
# fmt: on


@o.takes(*OPTIONS, run=[option for option in o.of_run("simulate") if option.name not in _LEFT_OUT])
def command(trace: TracePath = None, **given: Any) -> None:
    """Show which changes of a launch file gain most: one option at a time, then two.

    Each with the step that it makes, how likely it is faster, its memory, and the lines of the file to change. The GPUs and the
    global batch stay as they are.

    [bold]Examples[/]

    [cyan]triosim advise llama3-70b --like job.toml --gpus 64 --topology "dgx-h100(gpus=64)"[/]
    """
    if given["like"] is None:
        raise OptionError("Missing option '--like'", fix="give a launch file; see 'triosim advise --help'")
    run = configured("simulate", trace, {**given, "save_config": None}, OPTIONS, shown="advise")
    run.check_outputs(given["output"])
    model = jobs.ModelSizes.of(run.subject, run.config)
    launch = reading.read_launch_file(given["like"], model, ignore_unknown=given["ignore_unknown"])
    node = exporting.node_of(run.config)
    with run.naming_places(), Progress(shown=not given["quiet"]) as progress:
        advice = advising.advise(run.subject, run.config, launch, node, progress.labelled)
    text = json.dumps(advice.to_dict(), indent=2, allow_nan=False) + "\n"
    give_answer(given, text, lambda: shown.render(advice, given["top"]))
