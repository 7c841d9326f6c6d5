"""The command ``triosim convert``: converts a trace of any known format to triosim's own, or to a Chakra graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import Option, RunConfig
from triosim.errors import printable
from triosim.output_files import check_outputs
from triosim.reports.terminal.progress import Progress
from triosim.trace.formats import read, write
from triosim.trace.task_streams import TaskStreams

graph_writing = LaterModule("pipeline.graph_writing")
graphs = LaterModule("pipeline.graphs")
workload = LaterModule("chakra.workload")

TO = Option(
    "to",
    "choice",
    "json",
    choices=("json", "chakra"),
    metavar="FORMAT",
    help="What is written: json, triosim's own format, or chakra, a folder with the graph of the step.",
)


@o.takes(o.TRACE_FORMAT, TO)
def command(
    source: Annotated[str, o.argument("IN", "A trace in any known format.")],
    target: Annotated[
        str, o.argument("OUT", "A file in triosim's own format (.json or .json.gz), or a folder for graphs.")
    ],
    **given: Any,
) -> None:
    """Convert a trace to triosim's own format, or to a Chakra graph.

    [bold]Examples[/]

    [cyan]triosim convert profiler_output/ trace.json.gz[/]

    PyTorch's execution trace and profile as the graph of a rank, for ASTRA-sim and other tools:
    [cyan]triosim convert profiler_output/ graphs/ --to chakra[/]
    """
    config = RunConfig.of(trace_format=given["trace_format"])
    with Progress():
        what = _convert(source, target, config, to_chakra=given["to"] == "chakra")
    print(f"triosim: {printable(f'{what} written to {target}')}", file=sys.stderr)


def _convert(source: str, target: str, config: RunConfig, *, to_chakra: bool) -> str:
    """Write what was asked for, and return what it is, in words."""
    if to_chakra:
        graph_writing.write_step(source, config, Path(target))
        return "graphs of the step"
    check_outputs(target, reading=(source,))
    is_graphs = config.trace_format is None and workload.is_prefix(source)
    found = graphs.graph_streams(Path(source), config) if is_graphs else read(source, config.trace_format)
    write(found, target)
    if isinstance(found, TaskStreams):
        return f"task streams of {len(found.like):,} ranks"
    return f"trace of {found.model or 'a step'}, {len(found.operators):,} operators,"
