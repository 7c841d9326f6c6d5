"""The command ``triosim show``: summarises a trace, or the task streams of a distributed step."""

from __future__ import annotations

from typing import Annotated

import typer

from triosim.cli import options as o
from triosim.cli.command import show_on_terminal
from triosim.reports.terminal import streams_table, trace_table
from triosim.trace import Trace
from triosim.trace.formats import read


def command(
    trace: Annotated[
        str,
        typer.Argument(metavar="TRACE", help="A trace in any known format: a file or a folder.", show_default=False),
    ],
    trace_format: o.TraceFormat = None,
) -> None:
    """Show what a trace holds: model, GPU, batch, operators by kind, time by phase and layer, bytes by category.

    Of the task streams of a distributed step: the ranks, their groups, and what they communicate.

    [bold]Example[/]

    [cyan]triosim show trace.json[/]
    """
    found = read(trace, trace_format)
    show_on_terminal(trace_table.render(found) if isinstance(found, Trace) else streams_table.render(found))
