"""The command ``triosim topology``: shows a topology as a table, and draws it."""

from __future__ import annotations

from typing import Annotated

import typer

from triosim.cli.command import show_on_terminal
from triosim.networks.topology import Topology
from triosim.output_files import check_outputs
from triosim.pipeline.system import check_sections
from triosim.reports.pictures.plot import check_plot
from triosim.reports.pictures.topology_picture import draw
from triosim.reports.terminal.topology_table import render


def command(
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
    check_outputs(output, reading=(name,))
    if output is not None:
        check_plot(output)
    system = Topology.load(name, gpus=gpus)
    check_sections(system)
    if output is not None:
        draw(system, output)
    show_on_terminal(render(system))
