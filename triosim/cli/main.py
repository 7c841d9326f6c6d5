"""The command line: each command checks its output paths, calls what the Python API calls, and shows what comes back.

Whatever the user can mend is one line on standard error and exit status 2; Ctrl-C is 130. A command
imports the parts that it needs when it runs, so that each starts quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from triosim import __version__
from triosim.cli import calibrate as cli_calibrate
from triosim.cli import capture as cli_capture
from triosim.cli import compare as cli_compare
from triosim.cli import describe as cli_describe
from triosim.cli import memory as cli_memory
from triosim.cli import options as o
from triosim.cli import run_options as cli_run
from triosim.cli import schedule as cli_schedule
from triosim.cli.command import QuickCommand, QuickGroup, check_plot, show_on_terminal
from triosim.errors import TriosimError

app = typer.Typer(
    name="triosim",
    cls=QuickGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(cli_calibrate.app, name="calibrate")
app.command(cls=QuickCommand)(cli_compare.compare)
app.command(cls=QuickCommand)(cli_memory.memory)
app.command(cls=QuickCommand)(cli_schedule.schedule)
app.command(cls=QuickCommand)(cli_describe.describe)
app.command(cls=cli_capture.CaptureCommand)(cli_capture.capture)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"triosim {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Predict the time of deep-network training on many GPUs from a trace of one GPU.

    [bold]Examples[/]

    [cyan]triosim simulate trace.json --parallel ddp --gpus 8 --topology dgx-h100[/]
    [cyan]triosim compare trace.json --gpus 8 --plot strategies.png[/]
    [cyan]triosim show trace.json[/]
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(cls=QuickCommand)
@cli_run.takes(cli_run.OPTIONS)
def simulate(
    trace: o.TracePath,
    output: str | None,
    csv: str | None,
    timeline: str | None,
    plot: str | None,
    links: bool,
    link_plot: str | None,
    by_layer: bool,
    what_if: bool,
    format: str,
    quiet: bool,
    **options: Any,
) -> None:
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

    The task streams of a distributed script, as 'triosim capture --fake --world 64' wrote them:
    [cyan]triosim simulate streams.json.gz --topology dgx-h100[/]
    """
    from triosim.output_files import check_outputs

    inputs = (options[name] for name in ("topology", "operator_times", "schedule"))
    check_outputs(output, csv, timeline, plot, link_plot, reading=(trace, *inputs))
    check_plot(plot)
    if link_plot is not None:
        from triosim.reports.pictures.link_plot import check_link_plot

        check_link_plot(link_plot, options["network"])
    from triosim.reports.terminal.progress import Progress

    with Progress(shown=not quiet) as progress:
        run: Any
        if what_if:
            from triosim.comparison.what_if import what_if as run_what_if

            run = partial(run_what_if, started=progress.labelled)
        else:
            from triosim.simulation import simulate as run
        result = run(
            trace,
            **cli_run.arguments_of(options),
            timeline=timeline is not None or plot is not None,
            links=links or link_plot is not None,
            progress=progress,
        )
    for path, write in (
        (output, result.save),
        (csv, result.to_csv),
        (timeline, result.save_timeline),
        (plot, result.plot),
        (link_plot, result.plot_links),
    ):
        if path is not None:
            write(path)
    if format == "json":
        sys.stdout.write(result.to_json())
    elif not quiet:
        from triosim.reports.terminal.result_tables import render

        show_on_terminal(render(result.data, result.title, by_layer=by_layer))


@app.command(cls=QuickCommand)
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A trace in any known format.", show_default=False)],
    target: Annotated[
        str,
        typer.Argument(metavar="OUT", help="A file in triosim's own format (.json or .json.gz).", show_default=False),
    ],
    trace_format: o.TraceFormat = None,
) -> None:
    """Convert a trace to triosim's own format.

    [bold]Example[/]

    [cyan]triosim convert profiler_output/ trace.json.gz[/]
    """
    from triosim.output_files import check_outputs

    check_outputs(target, reading=(source,))
    from triosim.trace.formats import read, write

    write(read(source, trace_format), target)


@app.command(cls=QuickCommand)
def show(trace: o.TracePath, trace_format: o.TraceFormat = None) -> None:
    """Show what a trace holds: model, GPU, batch, operators by kind, time by phase and layer, bytes by category.

    Of the task streams of a distributed step: the ranks, their groups, and what they communicate.

    [bold]Example[/]

    [cyan]triosim show trace.json[/]
    """
    from triosim.reports.terminal import streams_table, trace_table
    from triosim.trace import Trace
    from triosim.trace.formats import read

    found = read(trace, trace_format)
    show_on_terminal(trace_table.render(found) if isinstance(found, Trace) else streams_table.render(found))


@app.command(cls=QuickCommand)
def topology(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A name or a YAML file.", show_default=False)],
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", "-n", metavar="N", show_default=False, help="How many, where the name leaves it open."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="A picture (png, svg, pdf)."),
    ] = None,
) -> None:
    """Show a topology as a table, and draw it.

    [bold]Examples[/]

    [cyan]triosim topology dgx-1-v100 --output dgx1.png[/]
    [cyan]triosim topology 'mesh(4x2, bandwidth=65 GB/s)'[/]
    [cyan]triosim topology cluster.yaml[/]
    """
    from triosim.output_files import check_outputs

    check_outputs(output, reading=(name,))
    check_plot(output)
    from triosim.conditions.sections import check_sections
    from triosim.networks.topology import Topology
    from triosim.reports.terminal.topology_table import render

    system = Topology.load(name, gpus=gpus)
    check_sections(system)
    if output is not None:
        from triosim.reports.pictures.topology_picture import draw

        draw(system, output)
    show_on_terminal(render(system))


@app.command(cls=QuickCommand)
def gpus(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="One of them, or a file of your own.", show_default=False),
    ] = None,
    format: o.Format = "table",
) -> None:
    """List the GPUs that are known, or show what is known of one.

    [bold]Examples[/]

    [cyan]triosim gpus[/]
    [cyan]triosim gpus 'NVIDIA A100-SXM4-40GB'[/]
    [cyan]triosim gpus H100 --format json[/]
    """
    from triosim import gpus as catalogue
    from triosim.reports.terminal import gpu_table

    found = None if name is None else catalogue.find(name)
    if format == "json":
        sys.stdout.write(gpu_table.as_json(found or catalogue.catalogue()))
    else:
        show_on_terminal(gpu_table.render(catalogue.catalogue()) if found is None else gpu_table.render_one(found))


@app.command(cls=QuickCommand)
def plugins() -> None:
    """List what --parallel, --network, --collective and --compute-model can name, and the trace formats.

    Installed packages add to it by entry points; a file is named as [cyan]file.py:Class[/].
    """
    from triosim import plugins as found
    from triosim.reports.terminal.result_tables import table

    made = table("What can be named", "kind", "names")
    for group in found.GROUPS:
        made.add_row(group.replace("_", " "), ", ".join(found.names(group)))
    made.columns[1].justify = "left"
    show_on_terminal(made)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; whatever goes wrong is one line on standard error."""
    try:
        status = app(None if arguments is None else list(arguments), prog_name="triosim", standalone_mode=False)
        sys.stdout.flush()
        if status == 130:  # what newer versions of typer make of Ctrl-C
            return _said("interrupted", 130)
        return status if isinstance(status, int) else 0
    except BrokenPipeError:  # what reads the output has gone, as `head` does
        _silence()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _said("interrupted", 130)
    except Exception as error:
        if os.environ.get("TRIOSIM_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            _silence()  # files that we write say by themselves what is wrong with them; this is standard output
            return _said(f"error: standard output: could not be written: {error.strerror}", 2)
        return _failed(error)


def _silence() -> None:
    """Let nothing be written any more when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception) -> int:
    if isinstance(error, TriosimError):
        return _said(f"error: {error}", error.exit_status)
    usage: Any = error
    if hasattr(usage, "format_message"):  # click's, which newer versions of typer bring along under another name
        context = getattr(usage, "ctx", None)
        hint = f"; see '{context.command_path} --help'" if context is not None else ""
        return _said(f"error: {' '.join(usage.format_message().split()).rstrip('.')}{hint}", usage.exit_code)
    if isinstance(error, MemoryError):
        return _said("error: not enough memory for this run", 2)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _said(f"internal error: {text}; please report it, with the traceback that TRIOSIM_DEBUG=1 shows", 1)


def _said(text: str, status: int) -> int:
    print(f"triosim: {text}", file=sys.stderr)
    return status
