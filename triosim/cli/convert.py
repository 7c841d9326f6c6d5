"""The command ``triosim convert``: converts a trace of any known format to triosim's own."""

from __future__ import annotations

from typing import Annotated

import typer

from triosim.cli import options as o
from triosim.output_files import check_outputs
from triosim.trace.formats import read, write


def command(
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
    check_outputs(target, reading=(source,))
    write(read(source, trace_format), target)
