"""The command ``triosim memory``: what the memory of a step consists of, on one GPU or on each of many, and whether it fits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import options as o
from triosim.config import RunConfig, unread
from triosim.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from triosim.memory import MemoryReport
    from triosim.trace import Trace
    from triosim.trace.task_streams import TaskStreams

#: The exit status of ``--fail-on-oom`` for a step that does not fit.
DOES_NOT_FIT = 3


def memory(
    trace: o.TracePath,
    trace_format: o.TraceFormat = None,
    parallel: o.Parallel = "single",
    gpus: o.Gpus = None,
    batch_size: o.BatchSize = None,
    global_batch_size: o.GlobalBatchSize = None,
    inference: o.Inference = False,
    micro_batches: o.MicroBatches = None,
    stages: o.Stages = None,
    schedule: o.Schedule = "gpipe",
    virtual_stages: o.VirtualStages = None,
    tp_style: o.TpStyle = "gather",
    sequence_parallel: o.SequenceParallel = False,
    dp_style: o.DpStyle = "all-reduce",
    bucket_size: o.BucketSize = "25 MiB",
    first_bucket_size: o.FirstBucketSize = "1 MiB",
    gradient_dtype: o.GradientDtype = None,
    recompute: o.Recompute = "none",
    option: o.PluginOptions = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="NAME", show_default=False, help="The GPU that must hold it. By default the trace's."
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity", metavar="SIZE", show_default=False, help="Its memory, if not the catalogue's: 80GiB."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="SIZE", show_default=False, help="What of it the CUDA context takes."),
    ] = None,
    allocator: Annotated[
        str,
        typer.Option(
            "--allocator",
            metavar="CONF",
            show_default=False,
            help="As in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.",
        ),
    ] = "",
    workspace: Annotated[bool, typer.Option(help="Count the workspaces of cuBLAS.")] = True,
    rank: Annotated[
        int | None,
        typer.Option("--rank", metavar="N", show_default=False, help="Which rank. By default the one that needs most."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", metavar="N", show_default=False, help="How many parts of a module's path to tell apart."
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", show_default=False, help="A picture over the step (png, svg, pdf)."),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            show_default=False,
            help="A snapshot that pytorch.org/memory_viz opens (.pickle).",
        ),
    ] = None,
    format: o.Format = "table",
    fail_on_oom: Annotated[
        bool, typer.Option("--fail-on-oom", help=f"Exit with status {DOES_NOT_FIT} where it does not fit.")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Show the memory of a step: the peak, by category and module, what the allocator reserves, and whether it fits.

    With [cyan]--parallel[/] and the options beside it, of every rank of that step on many GPUs.

    [bold]Examples[/]

    [cyan]triosim memory trace.json --gpu H100 --plot memory.png[/]
    [cyan]triosim memory trace.json --capacity 24GiB --allocator expandable_segments:True[/]
    [cyan]triosim memory trace.json -p fsdp=8,pp=4 --schedule 1f1b --recompute full --gpu H100[/]
    [cyan]triosim memory streams.json.gz --rank 8 --snapshot memory.pickle[/]
    """
    from triosim.output_files import check_outputs

    check_outputs(plot, snapshot, reading=(trace, gpu))
    if plot is not None:
        from triosim.reports.pictures.plot import check_plot

        check_plot(plot)
    if snapshot is not None:
        from triosim.memory.snapshot import check_snapshot

        check_snapshot(snapshot)
    if depth is not None and depth < 1:
        raise OptionError(f"{depth} is no depth", where="--depth", fix="give 1 or more")
    from triosim.memory import analyse
    from triosim.memory.allocator.settings import parse
    from triosim.trace.formats import read
    from triosim.trace.task_streams import TaskStreams

    settings = parse(allocator)
    sizes = _bytes(capacity, "--capacity"), _bytes(context, "--context")
    choices: dict[str, Any] = {
        "batch_size": batch_size,
        "global_batch_size": global_batch_size,
        "training": not inference,
        "micro_batches": micro_batches,
        "stages": None if stages is None else tuple(name.strip() for name in stages.split(",")),
        "schedule": schedule,
        "virtual_stages": virtual_stages,
        "tp_style": tp_style,
        "sequence_parallel": sequence_parallel,
        "dp_style": dp_style,
        "bucket_size": bucket_size,
        "first_bucket_size": first_bucket_size,
        "gradient_dtype": gradient_dtype,
        "recompute": recompute,
    }
    world = None
    if parallel != "single" or gpus is not None or option or _chosen(choices):
        from triosim.pipeline.rank_memory import rank_memory

        world = rank_memory(
            trace,
            parallel,
            gpus=gpus,
            gpu=gpu,
            trace_format=trace_format,
            options=o.key_values(option or ()),
            **choices,
        )
        notes = tuple(unread(RunConfig.of(**choices), world.declared))
        worst = world.checked(rank)
        report = world.report(worst, capacity=sizes[0], context=sizes[1], settings=settings, workspace=workspace)
        _write(report, plot, snapshot, worst)
        if format == "json":
            from triosim.reports.files.memory_json import world_as_json

            sys.stdout.write(world_as_json(world, report, worst, notes))
        elif not quiet:
            from triosim.reports.terminal.memory_table import render_world

            _show([render_world(world, report, notes)], report, worst, depth)
        if fail_on_oom and not (report.fits and world.fits_in(report.capacity - report.context)):
            raise typer.Exit(DOES_NOT_FIT)
        return
    found: Trace | TaskStreams = read(trace, trace_format)
    traces, like = _ranks(found, rank)
    reports = {
        number: analyse(one, gpu, capacity=sizes[0], context=sizes[1], settings=settings, workspace=workspace)
        for number, one in traces.items()
    }
    worst = max(reports, key=lambda number: (reports[number].peak_reserved, -number))
    report = reports[worst]
    shown = worst if isinstance(found, TaskStreams) else None
    _write(report, plot, snapshot, shown)
    if format == "json":
        from triosim.reports.files.memory_json import as_json

        sys.stdout.write(as_json(reports, like))
    elif not quiet:
        from triosim.reports.terminal.memory_table import render_ranks

        _show([render_ranks(reports, like)] if len(reports) > 1 else [], report, shown, depth)
    if fail_on_oom and not all(one.fits for one in reports.values()):
        raise typer.Exit(DOES_NOT_FIT)


def _ranks(found: Trace | TaskStreams, rank: int | None) -> tuple[dict[int, Trace], tuple[int, ...]]:
    """Return the traces to look at, by captured rank, and which of them each rank of the world is like."""
    from triosim.trace import Trace

    if isinstance(found, Trace):
        if rank not in (None, 0):
            raise OptionError("the trace is of one GPU", where="--rank", fix="leave it out")
        return {0: found}, (0,)
    if rank is None:
        return dict(found.traces), found.like
    if not 0 <= rank < found.world:
        raise OptionError(f"there is no rank {rank}", where="--rank", fix=f"give one from 0 to {found.world - 1}")
    return {found.like[rank]: found.traces[found.like[rank]]}, found.like


def _bytes(text: str | None, option: str) -> float | None:
    from triosim.units import parse_bytes

    if text is None:
        return None
    number = parse_bytes(text)
    if not number >= 0:
        raise OptionError(f"'{text}' is no size of a memory", where=option, fix="give one such as 80GiB")
    return number


def _chosen(choices: Mapping[str, object]) -> bool:
    """Whether a user says anything of how a step is parallelised or divided."""
    config = RunConfig.of(**choices)
    return any(config.is_given(name) for name in choices)


def _write(report: MemoryReport, plot: str | None, snapshot: str | None, rank: int | None) -> None:
    if plot is not None:
        from triosim.reports.pictures.memory_plot import write_memory_plot

        write_memory_plot(report, plot, rank)
    if snapshot is not None:
        from triosim.memory.snapshot import write_snapshot

        write_snapshot(report.usage.lifetimes, report.attempt, snapshot)


def _show(ranks: list[RenderableType], report: MemoryReport, rank: int | None, depth: int | None) -> None:
    import io

    from rich.console import Console, Group

    from triosim.reports.terminal.memory_table import render
    from triosim.reports.terminal.result_tables import spaced

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "…" still shows the rest
    Console(highlight=False).print(Group(*spaced([render(report, rank, depth), *ranks])))
