"""The command ``triosim search``: finds the best configuration for a model and a cluster, with proof that none is better."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, give_answer
from triosim.cli.launching import exporting
from triosim.cli.monitoring import check_monitor, monitored_search
from triosim.cli.subject import TracePath, configured
from triosim.config import COMMON, Option
from triosim.config.option import OUTPUT, PARALLELISM, TIMES
from triosim.configuration_search.options import SEARCH, SearchOptions
from triosim.errors import OptionError
from triosim.input_files.yaml_lines import split_arguments
from triosim.reports.terminal.progress import Progress
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.configuration_search.answer.terminal import FrontTable
    from triosim.configuration_search.exact import Searched, Tell
    from triosim.configuration_search.outcome import Outcome

document = LaterModule("reports.page.document")
like = LaterModule("configuration_search.spaces.like")
pages = LaterModule("configuration_search.answer.page")
pictures = LaterModule("configuration_search.answer.picture")
plots = LaterModule("reports.pictures.plot")
report = LaterModule("configuration_search.answer.report")
rules = LaterModule("configuration_search.spaces.rules")
searches = LaterModule("configuration_search.search")
terminal = LaterModule("configuration_search.answer.terminal")

#: Options of a run that are not the same at all points, or of which a search has no use.
_LEFT_OUT = ("gpus", "gpu", "batch_size", "iterations", "fail_on_oom", "links", "run_ahead")

# fmt: off
OPTIONS = (
    o.CONFIG,
    replace(o.LIKE, help=
        "A launch file of the job to search for, as 'triosim simulate' takes it: its model, batch and dtypes stay, and how it "
        "is divided varies, unless --vary says what does."),
    o.IGNORE_UNKNOWN,
    Option("gpus", metavar="N,N", short="-n", panel=PARALLELISM, help=
        "The number of GPUs, or several: 32,64. By default all GPUs of the topology."),
    replace(COMMON["gpu"], kind="text", metavar="NAME,NAME", panel=TIMES, help="The GPU, or several: H100,H200."),
    *SEARCH,
    Option("show", metavar="FILE", panel=SEARCH[0].panel, help="Show what a study has found, and search no further."),
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help="Write the answer as JSON."),
    *o.EXPORT,
    Option("commands", "flag", False, panel=OUTPUT, help="Show the command of every point that is shown."),
    Option("plot", metavar="FILE", panel=OUTPUT, help="Draw the best points' steps, and every point's time and memory."),
    o.REPORT,
    *o.MONITOR,
    o.FORMAT,
    o.QUIET,
)
# fmt: on


@o.takes(*OPTIONS, run=[option for option in o.of_run("simulate") if option.name not in _LEFT_OUT])
def command(trace: TracePath = None, **given: Any) -> None:
    """Find the best configuration for a model and a cluster, and prove that no other one is better.

    Points that do not fit the GPUs' memory are never timed, the others are simulated in the order of what their steps take at
    least, until none that is left can be better than the best that was found.

    [bold]Examples[/]

    [cyan]triosim search llama3-70b --gpus 64 --topology "dgx-h100(gpus=64)" --global-batch-size 256 --seq 8192[/]
    [cyan]triosim search trace.json --gpus 8,16,32 --objective cost --study study.db --jobs 4[/]
    [cyan]triosim search llama3-70b --like job.toml --gpus 64[/]
    [cyan]triosim search --script "train.py --layers 8" --vary-argument "--tp=1,2,4" --gpus 8[/]
    [cyan]triosim search llama3-8b --gpus 64 --global-batch-size 256 --export launch --for megatron[/]
    [cyan]triosim search llama3-8b --gpus 16 -p fsdp=16 --vary "bucket_size=1 MB..200 MB" --sampler tpe --budget 60s[/]
    [cyan]triosim search --config run.yaml --vary tp=1,2,4,8 --vary micro_batch_size=1,2,4 --vary recompute=none,full[/]
    """
    options = SearchOptions.of(given)
    objectives = searches.objectives_of(options)
    if given["plot"] is not None:
        plots.check_plot(given["plot"])
    check_monitor(given)
    exporting.check_export(given["export"], given["frameworks"])
    if given["report"] is not None:
        document.check_page(given["report"])
    if given["show"] is not None:
        _answer(searches.search_of_study(given["show"], objectives), given)
        return
    options, fixed = _several(options, given)
    names = [option for option in OPTIONS if option.name not in ("gpus", "gpu")]
    run = configured("simulate", trace or options.script, {**fixed, "save_config": None}, names, shown="search")
    declared = searches.declaration_of(options)
    if run.like is not None:
        several = [name for name in ("gpus", "gpu") if name in declared.axes]
        if several:
            raise OptionError("a launch file is of one cluster", where=f"--{several[0]}", fix="give one value")
        with run.naming_places():
            common = like.of_all_points(run.subject, run.config, declared=bool(declared.axes))
        run = replace(run, config=common)
    run.check_outputs(given["output"], options.study, given["plot"], given["report"])
    if options.script is not None and given["export"] is not None:
        raise OptionError("a script has no options to export", where="--export", fix="leave it out")
    exporting.check_model(run, given["frameworks"])
    subject = trace if options.script is not None else run.subject
    with run.naming_places(), searches.declared_space(subject, run.config, declared, options) as space:
        validity = None if options.sampler else rules.validity_of(space)
        if validity is not None and not given["quiet"]:
            print(f"triosim: {_counted(validity)}", file=sys.stderr)
        with Progress(shown=not given["quiet"]) as progress, monitored_search(given) as watch:
            jobs = options.jobs or searches.cores()
            tell = _teller(progress, partial(terminal.front_table, space, searches.objectives_of(options)), watch)
            found = searches.run_search(space, validity, options, tell, jobs=jobs)
    _answer(found, given)
    if found.interrupted:
        raise KeyboardInterrupt


def _several(options: SearchOptions, given: Mapping[str, Any]) -> tuple[SearchOptions, dict[str, Any]]:
    """Return the options of the search, of which --gpus and --gpu vary if they are several, and those of the run."""
    several = [name for name in ("gpus", "gpu") if given[name] is not None and len(split_arguments(given[name])) > 1]
    varied = [*(options.vary or ()), *(f"{name}={given[name]}" for name in several)]
    return replace(options, vary=varied), {**given, **dict.fromkeys(several)}


def _answer(found: Searched, given: Mapping[str, Any]) -> None:
    """Write, draw and show the answer."""
    if given["plot"] is not None:
        pictures.write_picture(found, given["plot"])
    if given["report"] is not None:
        pages.write_search_page(found, given["report"])
    if given["export"] is not None:
        exporting.export_best(found, given["export"], given["frameworks"])
    give_answer(given, report.as_json(found), lambda: [terminal.render(found, commands=given["commands"])])


def _counted(validity: Any) -> str:
    invalid = ", ".join(f"{count:,} by '{name}'" for name, count in validity.invalid.items())
    points = "1 point" if validity.points == 1 else f"{validity.points:,} points"
    return f"{points}, {len(validity.valid):,} of them valid" + (f"; invalid: {invalid}" if invalid else "")


def _teller(progress: Progress, table: Callable[[Sequence[Outcome]], FrontTable], watch: Callable[..., None]) -> Tell:
    """Return what shows how far a search is: points per second, the time that is left at most, and the best step so far.

    The monitor is given a ``table`` of the best points.
    """
    began: dict[str, float] = {}

    def tell(phase: str, done: int, total: int, front: Sequence[Outcome]) -> None:
        seconds = time.monotonic() - began.setdefault(phase, time.monotonic())
        rate = done / seconds if seconds else 0.0
        left = f", {format_time((total - done) / rate)} left at most" if rate else ""
        best = front[0].figures if front else None
        step = "" if best is None else f", best {format_time(best.step_time_s)}"
        watch(phase, done, total, lambda: table(front))
        progress.said(f"{phase}: {done:,} of {total:,} points, {rate:.1f} per second{left}{step}")

    return tell
