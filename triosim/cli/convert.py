"""The command ``triosim convert``: converts a trace of any known format to triosim's own."""

from __future__ import annotations

from typing import Annotated, Any

from triosim.cli import options as o
from triosim.output_files import check_outputs
from triosim.trace.formats import read, write


@o.takes(o.TRACE_FORMAT)
def command(
    source: Annotated[str, o.argument("IN", "A trace in any known format.")],
    target: Annotated[str, o.argument("OUT", "A file in triosim's own format (.json or .json.gz).")],
    **given: Any,
) -> None:
    """Convert a trace to triosim's own format.

    [bold]Example[/]

    [cyan]triosim convert profiler_output/ trace.json.gz[/]
    """
    check_outputs(target, reading=(source,))
    write(read(source, given["trace_format"]), target)
