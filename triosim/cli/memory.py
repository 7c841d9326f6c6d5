"""The command ``triosim memory``: shows what the memory of a step consists of, on one GPU or on many, and whether it fits."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group

from triosim.cli import options as o
from triosim.cli.subject import ConfiguredRun, TracePath, configured
from triosim.config import COMMON, Option, unread
from triosim.config.option import MODEL, OUTPUT, SYSTEM
from triosim.errors import OptionError
from triosim.memory import MemoryReport, analyse
from triosim.memory.allocator.settings import AllocatorSettings, parse
from triosim.memory.snapshot import check_snapshot, write_snapshot
from triosim.output_files import check_outputs
from triosim.pipeline.rank_memory import memory_of_config
from triosim.pipeline.reading import content_of, is_described
from triosim.reports.files.memory_json import as_json, world_as_json
from triosim.reports.pictures.memory_plot import write_memory_plot
from triosim.reports.pictures.plot import check_plot
from triosim.reports.terminal.memory_table import render, render_ranks, render_world
from triosim.reports.terminal.tables import spaced
from triosim.trace import Trace
from triosim.trace.task_streams import TaskStreams

if TYPE_CHECKING:
    from rich.console import RenderableType

#: The exit status of ``--fail-on-oom`` for a step that does not fit.
DOES_NOT_FIT = 3

#: Options that say which trace is looked at, and nothing of many GPUs.
_OF_TRACE = {"trace_format", *(name for name, option in COMMON.items() if option.panel == MODEL)}

CAPACITY = Option(
    "capacity", "bytes", None, "Its memory, if not the catalogue's: 80GiB.", metavar="SIZE", panel=SYSTEM, unit="bytes"
)
CONTEXT = Option(
    "context", "bytes", None, "What of it the CUDA context takes.", metavar="SIZE", panel=SYSTEM, unit="bytes"
)
DEPTH = Option("depth", "whole", None, "How many parts of a module's path to tell apart.", metavar="N", panel=OUTPUT)
OPTIONS = (
    o.CONFIG,
    o.SAVE_CONFIG,
    Option("gpu", help="The GPU that must hold it. By default the trace's.", metavar="NAME", panel=SYSTEM),
    CAPACITY,
    CONTEXT,
    Option(
        "allocator",
        default="",
        help="As in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.",
        metavar="CONF",
        panel=SYSTEM,
    ),
    Option(
        "workspace", "flag", True, "Count the workspaces of cuBLAS.", flag="--workspace/--no-workspace", panel=SYSTEM
    ),
    Option("fail_on_oom", "flag", False, f"Exit with status {DOES_NOT_FIT} where it does not fit.", panel=SYSTEM),
    Option(
        "rank", "whole", None, "Which rank. By default the one that needs most.", least=0, metavar="N", panel=OUTPUT
    ),
    DEPTH,
    o.PLOT,
    Option("snapshot", help="A snapshot that pytorch.org/memory_viz opens (.pickle).", metavar="FILE", panel=OUTPUT),
    o.FORMAT,
    o.QUIET,
)


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How memory is looked at: which GPU with which allocator, which rank, and what is shown or written of it."""

    gpu: str | None
    capacity: float | None
    context: float | None
    settings: AllocatorSettings
    workspace: bool
    rank: int | None
    depth: int | None
    plot: str | None
    snapshot: str | None
    format: str
    quiet: bool

    @classmethod
    def of(cls, given: Mapping[str, Any], gpu: str | None) -> MemoryOptions:
        """Return what the command line asks for. Raises ``TriosimError`` for what cannot be."""
        plot, snapshot = given["plot"], given["snapshot"]
        if plot is not None:
            check_plot(plot)
        if snapshot is not None:
            check_snapshot(snapshot)
        return cls(
            gpu=gpu,
            capacity=CAPACITY.parse(given["capacity"]),
            context=CONTEXT.parse(given["context"]),
            settings=parse(given["allocator"] or ""),
            workspace=given["workspace"] is not False,
            rank=given["rank"],
            depth=DEPTH.parse(given["depth"]),
            plot=plot,
            snapshot=snapshot,
            format=o.FORMAT.parse(given["format"]),
            quiet=bool(given["quiet"]),
        )

    def write(self, report: MemoryReport, rank: int | None) -> None:
        """Write the files that are asked for."""
        if self.plot is not None:
            write_memory_plot(report, self.plot, rank)
        if self.snapshot is not None:
            write_snapshot(report.usage.lifetimes, report.attempt, self.snapshot)

    def show(self, ranks: list[RenderableType], report: MemoryReport, rank: int | None) -> None:
        """Print one rank's memory, and tables of all ranks."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "…" still shows the rest
        Console(highlight=False).print(Group(*spaced([render(report, rank, self.depth), *ranks])))


@o.takes(*o.of_run("memory", OPTIONS))
def command(trace: TracePath = None, **given: Any) -> None:
    """Show the memory of a step: the peak, by category and module, what the allocator reserves, and whether it fits.

    With [cyan]--parallel[/] and the options beside it, of every rank of that step on many GPUs.

    [bold]Examples[/]

    [cyan]triosim memory trace.json --gpu H100 --plot memory.png[/]
    [cyan]triosim memory trace.json --capacity 24GiB --allocator expandable_segments:True[/]
    [cyan]triosim memory trace.json -p fsdp=8,pp=4 --schedule 1f1b --recompute full --gpu H100[/]
    [cyan]triosim memory streams.json.gz --rank 8 --snapshot memory.pickle[/]
    """
    run = configured("memory", trace, given, OPTIONS)
    check_outputs(given["plot"], given["snapshot"], given["save_config"], reading=run.files)
    view = MemoryOptions.of(given, run.config.gpu)
    fits = _of_many(run, view) if _is_planned(run) else _of_one(run, view)
    run.save(given["save_config"])
    if given["fail_on_oom"] and not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _is_planned(run: ConfiguredRun) -> bool:
    """Whether a user says anything of how a step is parallelised or divided."""
    common = {name for name, option in COMMON.items() if "memory" in option.commands} - _OF_TRACE
    return any(run.config.is_given(name) for name in (*common, *run.config.parts))


def _of_many(run: ConfiguredRun, view: MemoryOptions) -> bool:
    """Show the memory of every rank of a step on many GPUs; return whether all fit."""
    world = memory_of_config(run.subject, run.config)
    notes = tuple(unread(run.config, world.declared, described=is_described(run.subject, run.config)))
    worst = world.fullest.rank if view.rank is None else view.rank
    report = world.report(
        worst, capacity=view.capacity, context=view.context, settings=view.settings, workspace=view.workspace
    )
    view.write(report, worst)
    if view.format == "json":
        sys.stdout.write(world_as_json(world, report, worst, notes))
    elif not view.quiet:
        view.show([render_world(world, report, notes)], report, worst)
    return report.fits and world.fullest.peak_bytes <= report.capacity - report.context


def _of_one(run: ConfiguredRun, view: MemoryOptions) -> bool:
    """Show the memory of a step on one GPU, or of the ranks that were captured; return whether it fits."""
    found = content_of(run.subject, run.config)
    traces, like = _ranks(found, view.rank)
    reports = {
        number: analyse(
            one,
            view.gpu,
            capacity=view.capacity,
            context=view.context,
            settings=view.settings,
            workspace=view.workspace,
        )
        for number, one in traces.items()
    }
    worst = max(reports, key=lambda number: (reports[number].peak_reserved, -number))
    report = reports[worst]
    shown = worst if isinstance(found, TaskStreams) else None
    view.write(report, shown)
    if view.format == "json":
        sys.stdout.write(as_json(reports, like))
    elif not view.quiet:
        view.show([render_ranks(reports, like)] if len(reports) > 1 else [], report, shown)
    return all(one.fits for one in reports.values())


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
