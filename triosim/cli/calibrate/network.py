"""The command ``triosim calibrate network``: fits collectives to measured ones, and writes a calibrated topology."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.calibrate.options import COLLECTIVE
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.errors import printable
from triosim.reports.terminal.progress import Progress

fit = LaterModule("networks.calibration.fit.run")
topologies = LaterModule("networks.topology")
sections = LaterModule("pipeline.system")

# fmt: off
OPTIONS = (
    Option("topology", required=True, metavar="NAME", short="-t", panel=GENERAL, help=
        "The topology that was measured: a name or a file."),
    Option("output", required=True, metavar="FILE", short="-o", panel=GENERAL, help="The file of the calibrated topology."),
    COLLECTIVE,
    Option("gpu", metavar="NAME", panel=GENERAL, help="The GPU whose rows to use, if a table has several."),
    Option("online", "flag", False, panel=GENERAL, help=
        "Adjust the topology's own calibration to the rows, one by one, instead of fitting a new one."),
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    data: Annotated[list[str], o.argument("DATA...", "Tables of measured collectives, output of nccl-tests.")],
    **given: Any,
) -> None:
    """Fit the times of collectives to measurements, and write a topology with this calibration.

    Says the errors on sizes that were held out. Kinds that DATA do not have keep what the topology had.

    [bold]Examples[/]

    [cyan]triosim calibrate network nccl.csv --topology dgx-h100 -o cluster.yaml[/]
    [cyan]triosim calibrate network all_reduce.txt all_gather.txt -t 'switch(8, bandwidth=100 GB/s)' -o box.yaml[/]
    """

    def progress(text: str) -> None:
        print(printable(f"triosim: {text}"), file=sys.stderr)

    topology, output = given["topology"], given["output"]
    sections.check_sections(topologies.Topology.load(topology))  # they are copied into the output
    chosen = {name: given[name] for name in ("collective", "gpu", "online")}
    with Progress() as shown:
        shown.said("fitting")
        fit.calibrate(data, topology, output, **chosen, progress=progress)
    progress(f"wrote {output}; use it: triosim simulate TRACE --parallel ddp --topology {output}")
