"""The command ``triosim memory``: shows what the memory of a step consists of, on one GPU or on many, and whether it fits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.cli.subject import ConfiguredRun, TracePath, configured
from triosim.config import COMMON, Option, unread
from triosim.config.option import MODEL, OUTPUT, SYSTEM
from triosim.errors import OptionError, TraceError
from triosim.reports.terminal.progress import Progress
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams

if TYPE_CHECKING:
    from rich.console import RenderableType

    from triosim.memory import MemoryReport
    from triosim.memory.world_memory import WorldMemory

memory = LaterModule("memory")
settings = LaterModule("memory.allocator.settings")
rank_memory = LaterModule("pipeline.rank_memory")
reading = LaterModule("pipeline.reading")
pictures = LaterModule("reports.pictures.plot")
memory_plot = LaterModule("reports.pictures.memory_plot")
memory_page = LaterModule("reports.page.memory")
document = LaterModule("reports.page.document")
memory_table = LaterModule("reports.terminal.memory_table")
tables = LaterModule("reports.terminal.tables")
snapshots = LaterModule("memory.snapshot")
memory_json = LaterModule("reports.files.memory_json")

#: The exit status of ``--fail-on-oom`` for a step that does not fit.
DOES_NOT_FIT = 3

#: Options that say which trace is looked at, and nothing of many GPUs.
_OF_TRACE = {"trace_format", *(name for name, option in COMMON.items() if option.panel == MODEL)}

# fmt: off
OPTIONS = (
    o.CONFIG,
    o.SAVE_CONFIG,
    o.LIKE,
    o.IGNORE_UNKNOWN,
    Option("gpu", "file", metavar="NAME", panel=SYSTEM, help="The GPU that the step runs on. By default the trace's."),
    Option("capacity", "bytes", least=1_000_000, metavar="SIZE", panel=SYSTEM, unit="bytes", help=
        "The memory of a GPU, if not the catalogue's: 80GiB."),
    Option("context", "bytes", least=1000, metavar="SIZE", panel=SYSTEM, unit="bytes", help=
        "The part of a GPU's memory that the CUDA context takes."),
    Option("allocator", default="", metavar="CONF", panel=SYSTEM, help=
        "Settings of the caching allocator, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True."),
    Option("workspace", "flag", True, flag="--workspace/--no-workspace", panel=SYSTEM, help=
        "Count cuBLAS's workspaces as memory in use."),
    Option("fail_on_oom", "flag", False, panel=SYSTEM, help=f"Exit with status {DOES_NOT_FIT} if the step does not fit."),
    Option("rank", "whole", least=0, metavar="N", panel=OUTPUT, help="The rank to show. By default the one that needs most."),
    Option("depth", "whole", metavar="N", panel=OUTPUT, help="The number of parts of a module's path to show."),
    o.PLOT,
    o.REPORT,
    Option("snapshot", metavar="FILE", panel=OUTPUT, help="A snapshot that pytorch.org/memory_viz opens (.pickle)."),
    o.FORMAT,
    o.QUIET,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of a step as it is shown: the report of one ``rank`` (None where there is but one), and tables of all.

    ``world`` is the memory of all ranks, where the step was extrapolated to many.
    """

    report: MemoryReport
    rank: int | None
    fits: bool
    to_json: Callable[[], str]
    tables: list[RenderableType]
    world: WorldMemory | None = None
    notes: tuple[str, ...] = ()


@o.takes(*OPTIONS, run=o.of_run("memory"))
def command(trace: TracePath = None, **given: Any) -> None:
    """Show the memory of a step: the peak, by category and module, what the allocator reserves, and whether it fits.

    With [cyan]--parallel[/], or another option of that heading, it is that of every rank of the step on many GPUs.

    [bold]Examples[/]

    [cyan]triosim memory trace.json --gpu H100 --plot memory.png[/]
    [cyan]triosim memory trace.json --capacity 24GiB --allocator expandable_segments:True[/]
    [cyan]triosim memory trace.json -p fsdp=8,pp=4 --schedule 1f1b --recompute full --gpu H100[/]
    [cyan]triosim memory llama3-70b --like job.toml --gpus 64[/]
    [cyan]triosim memory streams.json.gz --rank 8 --snapshot memory.pickle[/]
    """
    run = configured("memory", trace, given, OPTIONS)
    plot, snapshot = given["plot"], given["snapshot"]
    run.check_outputs(plot, snapshot, given["report"])
    if given["report"] is not None:
        document.check_page(given["report"])
    if plot is not None:
        pictures.check_plot(plot)
    if snapshot is not None:
        snapshots.check_snapshot(snapshot)
    gpu_memory = {name: given[name] for name in ("capacity", "context", "workspace")}
    gpu_memory["settings"] = settings.parse(given["allocator"])
    with run.naming_places(), Progress(shown=not given["quiet"]):
        view = (_of_many if _is_planned(run) else _of_one)(run, given["rank"], gpu_memory)
    if plot is not None:
        memory_plot.write_memory_plot(view.report, plot, view.rank)
    if given["report"] is not None:
        memory_page.write_memory_page(view.report, given["report"], view.rank, view.world, view.notes)
    if snapshot is not None:
        snapshots.write_snapshot(view.report.usage.lifetimes, view.report.attempt, snapshot)
    run.save()
    if given["format"] == "json":
        sys.stdout.write(view.to_json())
    elif not given["quiet"]:
        shown = [memory_table.render(view.report, view.rank, given["depth"]), *view.tables]
        show_on_terminal(*tables.spaced(shown))
    if given["fail_on_oom"] and not view.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _is_planned(run: ConfiguredRun) -> bool:
    """Whether a user says anything of how a step is parallelised or divided."""
    common = {name for name, option in COMMON.items() if "memory" in option.commands} - _OF_TRACE
    return any(run.config.is_given(name) for name in (*common, *run.config.parts))


def _of_many(run: ConfiguredRun, rank: int | None, gpu_memory: Mapping[str, Any]) -> MemoryView:
    """Return the memory of every rank of a step on many GPUs."""
    world = rank_memory.memory_of_config(run.subject, run.config)
    notes = tuple(unread(run.config, world.declared, described=reading.is_described(run.subject, run.config)))
    shown = world.fullest.rank if rank is None else rank
    report = world.report(shown, **gpu_memory)
    fits = report.fits and world.fullest.peak_bytes <= report.capacity - report.context
    to_json = partial(memory_json.world_as_json, world, report, shown, notes)
    return MemoryView(report, shown, fits, to_json, [memory_table.render_world(world, report, notes)], world, notes)


def _of_one(run: ConfiguredRun, rank: int | None, gpu_memory: Mapping[str, Any]) -> MemoryView:
    """Return the memory of a step on one GPU, or of the ranks that were captured."""
    found = reading.content_of(run.subject, run.config)
    traces, like = _ranks(found, rank)
    if not any(trace.names_tensors for trace in traces.values()):
        what = "its operators name no tensors, so that their memory is not known"
        raise TraceError(what, where=run.subject, fix="give a trace with tensors, as 'triosim capture' writes it")
    reports = {number: memory.analyse(one, run.config.gpu, **gpu_memory) for number, one in traces.items()}
    worst = max(reports, key=lambda number: (reports[number].peak_reserved, -number))
    every = [memory_table.render_ranks(reports, like)] if len(reports) > 1 else []
    fits = all(one.fits for one in reports.values())
    shown = None if isinstance(found, Trace) else worst
    return MemoryView(reports[worst], shown, fits, partial(memory_json.as_json, reports, like), every)


def _ranks(found: Trace | TaskStreams, rank: int | None) -> tuple[dict[int, Trace], tuple[int, ...]]:
    """Return the traces to look at, by captured rank, and which of them each rank of the world is like."""
    if isinstance(found, Trace):
        if rank not in (None, 0):
            raise OptionError("the trace is of one GPU", where="--rank", fix="leave it out")
        return {0: found}, (0,)
    if rank is None:
        return dict(found.traces), found.like
    if not 0 <= rank < found.world:
        raise OptionError(f"there is no rank {rank}", where="--rank", fix=f"give one from 0 to {found.world - 1}")
    return {found.like[rank]: found.traces[found.like[rank]]}, found.like
