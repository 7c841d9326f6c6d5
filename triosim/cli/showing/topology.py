"""The command ``triosim topology``: shows a topology as a table, and draws it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.config import COMMON, Option
from triosim.config.option import GENERAL
from triosim.output_files import check_outputs
from triosim.reports.terminal.progress import Progress

topologies = LaterModule("networks.topology")
sections = LaterModule("pipeline.system")
pictures = LaterModule("reports.pictures.plot")
topology_picture = LaterModule("reports.pictures.topology_picture")
tables = LaterModule("reports.terminal.topology_table")

OPTIONS = (
    replace(COMMON["gpus"], panel=GENERAL, help="The number of GPUs, if the name does not give it."),
    Option("output", metavar="FILE", short="-o", panel=GENERAL, help="A picture (png, svg, pdf)."),
)


@o.takes(*OPTIONS)
def command(name: Annotated[str, o.argument("NAME|FILE", "A name or a YAML file.", "topology")], **given: Any) -> None:
    """Show a topology as a table, and draw it.

    [bold]Examples[/]

    [cyan]triosim topology dgx-1-v100 --output dgx1.png[/]
    [cyan]triosim topology 'mesh(4x2, bandwidth=65 GB/s)'[/]
    [cyan]triosim topology cluster.yaml[/]
    """
    output = given["output"]
    check_outputs(output, reading=(name,))
    if output is not None:
        pictures.check_plot(output)
    with Progress() as progress:
        progress.said("building links")
        topology = topologies.Topology.load(name, gpus=given["gpus"])
        sections.check_sections(topology)
    if output is not None:
        topology_picture.draw(topology, output)
    show_on_terminal(tables.render(topology))
