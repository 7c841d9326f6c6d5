"""The command ``triosim show``: summarises a trace, or the task streams of a distributed step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.errors import TraceError
from triosim.reports.terminal.progress import Progress
from triosim.trace import Trace
from triosim.trace.formats import read

catalogue = LaterModule("models.catalogue")
workload = LaterModule("chakra.workload")
network_file = LaterModule("chakra.inputs.network_file")
graph_table = LaterModule("reports.terminal.graph_table")
trace_table = LaterModule("reports.terminal.trace_table")
streams_table = LaterModule("reports.terminal.streams_table")


@o.takes(o.TRACE_FORMAT)
def command(
    trace: Annotated[str, o.argument("TRACE", "A trace in any known format: a file or a folder.")], **given: Any
) -> None:
    """Show the content of a trace: model, GPU, batch, operators by kind, time by phase and layer, bytes by category.

    Of the task streams of a distributed step: the ranks, their groups, and what they communicate. Of Chakra graphs, a folder or
    'folder/stem' of stem.RANK.et: the nodes of each type, and what is communicated in which group.

    [bold]Example[/]

    [cyan]triosim show trace.json[/]
    """
    if not Path(trace).exists() and trace in catalogue.MODELS:
        raise TraceError("is the name of a model, not a trace", where=trace, fix=f"write one: triosim describe {trace}")
    if given["trace_format"] is None and workload.is_prefix(trace):
        with Progress():
            shown = graph_table.render(trace, workload.read_workload(Path(trace), lenient=True))
        show_on_terminal(shown)
        return
    if Path(trace).suffix in (".yml", ".yaml") and network_file.is_network(Path(trace)):
        fix = "give it to a run: triosim simulate PREFIX --topology " + trace
        raise TraceError("is a network of ASTRA-sim's, not a trace", where=trace, fix=fix)
    with Progress():
        found = read(trace, given["trace_format"])
        shown = trace_table.render(found) if isinstance(found, Trace) else streams_table.render(found)
    show_on_terminal(shown)
