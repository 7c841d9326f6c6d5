"""The command ``triosim search``: finds the best configuration for a model and a cluster, with proof that none is better."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.subject import ConfiguredRun, TracePath, configured
from triosim.config import COMMON, Option
from triosim.config.option import OUTPUT, PARALLELISM, TIMES
from triosim.errors import OptionError
from triosim.output_files import writing_text
from triosim.reports.terminal.progress import Progress
from triosim.units import format_time

if TYPE_CHECKING:
    from triosim.configuration_search.exact import Evaluate, Searched
    from triosim.configuration_search.spaces.space import Space

declaration = LaterModule("configuration_search.spaces.declaration")
evaluation = LaterModule("configuration_search.evaluation")
exact = LaterModule("configuration_search.exact")
objectives = LaterModule("configuration_search.objectives")
pictures = LaterModule("configuration_search.answer.picture")
plots = LaterModule("reports.pictures.plot")
report = LaterModule("configuration_search.answer.report")
rules = LaterModule("configuration_search.spaces.rules")
scripts = LaterModule("configuration_search.spaces.script")
studies = LaterModule("configuration_search.study")
subjects = LaterModule("configuration_search.spaces.subject")
terminal = LaterModule("configuration_search.answer.terminal")
workers = LaterModule("configuration_search.workers")

SEARCH = "Search"
#: How many points that share work one process weighs after the other.
_POINTS_OF_A_RUN = 8
#: Options of a run that are not the same at all points, or of which a search has no use.
_LEFT_OUT = ("gpus", "gpu", "batch_size", "iterations", "fail_on_oom", "links", "run_ahead")

# fmt: off
OPTIONS = (
    o.CONFIG,
    Option("gpus", metavar="N,N", short="-n", panel=PARALLELISM, help=
        "The number of GPUs, or several: 32,64. By default all GPUs of the topology."),
    replace(COMMON["gpu"], kind="text", metavar="NAME,NAME", panel=TIMES, help="The GPU, or several: H100,H200."),
    Option("script", metavar="'FILE ARG ...'", panel=SEARCH, help=
        "A training script with its arguments instead of a trace or model: captured at each point without a GPU, as --gpus "
        "ranks would run it."),
    Option("vary_argument", "object", metavar="NAME=V,V", repeatable=True, panel=SEARCH, help=
        "An argument of the script and its values: --tp=1,2,4. Repeatable."),
    Option("vary", "object", metavar="NAME=V,V", repeatable=True, panel=SEARCH, help=
        "An option and its values: tp=1,2,4, recompute=none,full, data_parallel=ddp,zero1 or micro_batches=1*pp,2*pp. "
        "Repeatable. By default those that the model and the cluster have room for."),
    Option("space", metavar="FILE", panel=SEARCH, help="A YAML file of options that vary, with lists of values under 'vary'."),
    Option("without_rule", "object", metavar="NAME", repeatable=True, panel=SEARCH, help=
        "A rule that points need not keep: node (tp within a node), heads, vocabulary, layers, ... Repeatable."),
    Option("objective", default="step-time", metavar="NAME,NAME", panel=SEARCH, help=
        "What is best: step-time, p90-step-time, tokens-per-second, cost, run-cost=TOKENS, energy, memory-headroom or "
        "fewest-gpus=RATE. Of several, the points that no other is better than in all."),
    Option("within", default="0", metavar="SHARE", panel=SEARCH, help=
        "Simulate all points within this share of the best: 2%, say."),
    Option("top", "whole", 10, metavar="N", panel=SEARCH, help="Simulate as many of the best points, in their order."),
    Option("memory_margin", metavar="SHARE", panel=SEARCH, help=
        "By how much more memory than predicted a point must fit. By default the largest error of predicted steps, 1%."),
    Option("study", metavar="FILE", panel=SEARCH, help=
        "A file that keeps what is found, at once. The search goes on where it ended."),
    Option("show", metavar="FILE", panel=SEARCH, help="Show what a study has found, and search no further."),
    Option("jobs", "whole", metavar="N", short="-j", panel=SEARCH, help=
        "Points that are worked on at once. By default as many as there are cores."),
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help="Write the answer as JSON."),
    Option("commands", "flag", False, panel=OUTPUT, help="Show the command of every point that is shown."),
    Option("plot", metavar="FILE", panel=OUTPUT, help="Draw the best points' steps, and every point's time and memory."),
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
    [cyan]triosim search --script "train.py --layers 8" --vary-argument "--tp=1,2,4" --gpus 8[/]
    [cyan]triosim search --config run.yaml --vary tp=1,2,4,8 --vary micro_batch_size=1,2,4 --vary recompute=none,full[/]
    """
    chosen = objectives.Objectives.read(given["objective"], _share(given["within"], "--within"))
    if given["plot"] is not None:
        plots.check_plot(given["plot"])
    if given["show"] is not None:
        _answer(_shown(given["show"], chosen), given)
        return
    run, varied = _subject(trace, given)
    run.check_outputs(given["output"], given["study"], given["plot"])
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        space = _space(run, varied, given, folder)
        validity = rules.validity_of(space)
        if not given["quiet"]:
            print(f"triosim: {_counted(validity)}", file=sys.stderr)
        with _evaluating(space, given) as (weigh, simulate), Progress(shown=not given["quiet"]) as progress:
            found = exact.Search(space, validity, chosen, weigh, simulate, given["top"], _teller(progress)).run()
    _answer(found, given)
    if found.interrupted:
        raise KeyboardInterrupt


def _subject(trace: str | None, given: Mapping[str, Any]) -> tuple[ConfiguredRun, list[str]]:
    """Return the subject with the options that all points share, and those of ``--vary``, --gpus and --gpu among them."""
    varied = list(given["vary"] or ())
    fixed = dict(given)
    for name in ("gpus", "gpu"):
        if given[name] is not None and len(declaration.split_values(given[name])) > 1:
            varied.append(f"{name}={given[name]}")
            fixed[name] = None
    if given["script"] is not None and trace is not None:
        raise OptionError(f"'{trace}' is given besides a script", where="--script", fix="leave out one of them")
    trace = given["script"] or trace
    names = [option for option in OPTIONS if option.name not in ("gpus", "gpu")]
    return configured("simulate", trace, {**fixed, "save_config": None}, names, shown="search"), varied


def _space(run: ConfiguredRun, varied: list[str], given: Mapping[str, Any], folder: str) -> Space:
    """Return the space that is asked for; what is captured of a script goes into a folder."""
    declared = declaration.of_texts(varied, given["without_rule"] or ())
    if given["space"] is not None:
        declared = declaration.read_space(given["space"]).merged(declared)
    margin = {} if given["memory_margin"] is None else {"margin": _share(given["memory_margin"], "--memory-margin")}
    arguments = scripts.varied_arguments(given["vary_argument"]) if given["vary_argument"] else {}
    if given["script"] is not None:
        declared = declared.merged(declaration.of_arguments(arguments))
        script = scripts.Script.read(given["script"]).varying(tuple(arguments), folder)
        subject = subjects.subject_of_script(script)
    elif arguments:
        raise OptionError("there is no script whose arguments could vary", where="--vary-argument", fix="give --script")
    else:
        subject = subjects.subject_of(run.subject, run.config)
    space: Space = declaration.space_of(subject, run.config, declared, **margin)
    return space


def _share(text: str, where: str) -> float:
    """Return a share of 0 or more: 2%, or 0.02."""
    number = text.removesuffix("%")
    try:
        share = float(number) / (100.0 if number != text else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise OptionError(f"'{text}' is not a share", where=where, fix="give one such as 2%")
    return share


@contextmanager
def _evaluating(space: Space, given: Mapping[str, Any]) -> Iterator[tuple[Evaluate, Evaluate]]:
    """Give what weighs and simulates points, in as many processes as asked for, from and into the study if there is one."""
    tasks = evaluation.Weigh(space), evaluation.Simulate(space)
    with workers.processes(*tasks, jobs=given["jobs"] or _cores()) as (weigh, simulate):
        weigh = partial(weigh, run=_POINTS_OF_A_RUN)
        if given["study"] is None:
            yield weigh, simulate
            return
        with studies.opened(given["study"], space.fingerprint) as study:
            yield partial(study.evaluate, weigh), partial(study.evaluate, simulate, is_enough=_is_timed)


def _is_timed(outcome: Any) -> bool:
    return bool(outcome.state != "excluded")


def _shown(path: str, chosen: Any) -> Searched:
    """Return what a study has found so far."""
    with studies.shown(path) as study:
        space = declaration.space_of_fingerprint(study.space)
        outcomes = {one.key: one for one in study.outcomes()}
    found: Searched = exact.searched_by_study(space, chosen, outcomes)
    return found


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answer(found: Searched, given: Mapping[str, Any]) -> None:
    """Write, draw and show the answer."""
    if given["plot"] is not None:
        pictures.write_picture(found, given["plot"])
    if given["output"] is not None:
        with writing_text(given["output"]) as file:
            file.write(report.as_json(found))
    if given["format"] == "json":
        sys.stdout.write(report.as_json(found))
    elif not given["quiet"]:
        show_on_terminal(terminal.render(found, commands=given["commands"]))


def _counted(validity: Any) -> str:
    invalid = ", ".join(f"{count:,} by '{name}'" for name, count in validity.invalid.items())
    return f"{validity.points:,} points, {len(validity.valid):,} of them valid" + (
        f"; invalid: {invalid}" if invalid else ""
    )


def _teller(progress: Progress) -> Callable[[str, int, int], None]:
    """Return what shows how far a search is: points per second, and the time that is left at most."""
    began: dict[str, float] = {}

    def tell(phase: str, done: int, total: int) -> None:
        seconds = time.monotonic() - began.setdefault(phase, time.monotonic())
        rate = done / seconds if seconds else 0.0
        left = f", {format_time((total - done) / rate)} left at most" if rate else ""
        progress.said(f"{phase}: {done:,} of {total:,} points, {rate:.1f} per second{left}")

    return tell
