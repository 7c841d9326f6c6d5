"""The command ``triosim calibrate network``: fits collectives to measured ones, and writes a calibrated topology."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim.cli.calibrate.options import Collective
from triosim.networks.calibration.fit import run
from triosim.networks.topology import Topology
from triosim.pipeline.system import check_sections


def command(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...", help="Tables of measured collectives, output of nccl-tests.", show_default=False
        ),
    ],
    topology: Annotated[
        str,
        typer.Option(
            "--topology", "-t", metavar="NAME", show_default=False, help="What was measured: a name or a file."
        ),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Where the calibrated topology goes."),
    ],
    collective: Collective = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", show_default=False, help="Which GPU's rows, of a table about several."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Move the calibration that the topology has towards the rows, one by one.")
    ] = False,
) -> None:
    """Fit collectives to measured ones, and write a topology on which they take as long, alone on an idle machine.

    Says the errors on sizes that were held out. Kinds that DATA do not have keep what the topology had.

    [bold]Examples[/]

    [cyan]triosim calibrate network nccl.csv --topology dgx-h100 -o cluster.yaml[/]
    [cyan]triosim calibrate network all_reduce.txt all_gather.txt -t 'switch(8, bandwidth=100 GB/s)' -o box.yaml[/]
    """

    def progress(text: str) -> None:
        print(f"triosim: {text}", file=sys.stderr)

    check_sections(Topology.load(topology))  # they are copied into the output
    run.calibrate(data, topology, output, collective=collective, gpu=gpu, online=online, progress=progress)
    progress(f"wrote {output}; use it: triosim simulate TRACE --parallel ddp --topology {output}")
