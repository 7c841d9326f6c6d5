"""The command line: finds a command by its name, runs it, and says in one line what went wrong.

Whatever the user can mend is one line on standard error and exit status 2; Ctrl-C is 130. A command's module is imported when
the command is asked for, so that each starts quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import typer

from triosim import __version__
from triosim.cli.command import LazyGroup
from triosim.errors import TriosimError, printable, shortened
from triosim.input_files import pipes

#: Characters of a line of error, without the name before it.
_LONGEST_LINE = 300 - len("triosim: ")


class Commands(LazyGroup):
    """The commands of ``triosim``, by name: their modules and first sentences."""

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {
        "simulate": ("triosim.cli.simulate", "Simulate one training step, or an inference pass, on many GPUs."),
        "compare": ("triosim.cli.compare", "Compare all strategies on one number of GPUs, the fastest first."),
        "search": (
            "triosim.cli.search",
            "Find the best configuration for a model and a cluster, and prove that no other one is better.",
        ),
        "advise": (
            "triosim.cli.launching.advise",
            "Show which changes of a launch file gain most: one option at a time, then two.",
        ),
        "memory": (
            "triosim.cli.memory",
            "Show the memory of a step: the peak, by category and module, what the allocator reserves, and whether it fits.",
        ),
        "schedule": (
            "triosim.cli.schedule",
            "Show a pipeline schedule by itself: a simulated step of identical stages, without communication.",
        ),
        "describe": (
            "triosim.cli.describe",
            "Write the trace of a training step from a model's name or config, with times predicted for a GPU.",
        ),
        "capture": (
            "triosim.cli.capture",
            "Run a training script until it has trained some steps, and write a trace of one of them.",
        ),
        "run": (
            "triosim.cli.live_run",
            "Run a training script, unchanged, to its end on GPUs that are not there: its own log shows the simulated times.",
        ),
        "convert": ("triosim.cli.convert", "Convert a trace to triosim's own format, or to a Chakra graph."),
        "report": (
            "triosim.cli.showing.report",
            "Write a page of a result, for people who were not at the terminal: one HTML file that opens without a network.",
        ),
        "doubt": (
            "triosim.cli.showing.doubt",
            "Show what the doubt about a result's step time comes from, and which measurements would narrow it.",
        ),
        "show": (
            "triosim.cli.showing.trace",
            "Show the content of a trace: model, GPU, batch, operators by kind, time by phase and layer, bytes by category.",
        ),
        "topology": ("triosim.cli.showing.topology", "Show a topology as a table, and draw it."),
        "gpus": ("triosim.cli.showing.gpus", "List the GPU catalogue, or show the data of one GPU."),
        "plugins": (
            "triosim.cli.showing.plugins",
            "List the names that options take: parts that ship with triosim, and plug-ins.",
        ),
        "calibrate": (
            "triosim.cli.calibrate",
            "Measure operators, fit models of operators and collectives to measurements, and evaluate the fits.",
        ),
    }


app = typer.Typer(
    name="triosim",
    cls=Commands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; whatever goes wrong is one line on standard error."""
    _replace_closed_streams()
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


def _replace_closed_streams() -> None:
    """Let what is written to an output that is closed from the start (``triosim ... >&-``) go nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _silence() -> None:
    """Let nothing be written any more when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: Exception) -> int:
    if isinstance(error, TriosimError):
        return _said(f"error: {pipes.renamed(str(error))}", error.exit_status)
    usage: Any = error
    if hasattr(usage, "format_message"):  # click's, which newer versions of typer bring along under another name
        context = getattr(usage, "ctx", None)
        hint = f"; see '{context.command_path} --help'" if context is not None else ""
        return _said(f"error: {' '.join(usage.format_message().split()).rstrip('.')}{hint}", usage.exit_code)
    if isinstance(error, MemoryError):
        return _said("error: not enough memory for this run", 2)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return _said(f"error: {error.filename}: is longer than a name may be", 2)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _said(f"internal error: {text}; please report it, with the traceback that TRIOSIM_DEBUG=1 shows", 1)


def _said(text: str, status: int) -> int:
    with suppress(OSError):  # a full disk behind standard error changes no exit status
        print(f"triosim: {printable(shortened(text, longest=_LONGEST_LINE))}", file=sys.stderr)
    return status
