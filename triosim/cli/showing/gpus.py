"""The command ``triosim gpus``: shows the GPU catalogue, or all that is known of one GPU."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from triosim import gpus as catalogue
from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal

gpu_table = LaterModule("reports.terminal.gpu_table")


@o.takes(o.FORMAT)
def command(
    name: Annotated[
        str | None, o.argument("NAME|FILE", "A GPU of the catalogue, also with what differs, or a YAML file.")
    ] = None,
    **given: Any,
) -> None:
    """List the GPU catalogue, or show the data of one GPU.

    [bold]Examples[/]

    [cyan]triosim gpus[/]
    [cyan]triosim gpus 'NVIDIA A100-SXM4-40GB'[/]
    [cyan]triosim gpus 'H100(power=500 W, bandwidth=2.4 TB/s)'[/]
    [cyan]triosim gpus H100 --format json[/]
    """
    found = None if name is None else catalogue.find(name)
    if given["format"] == "json":
        sys.stdout.write(gpu_table.as_json(found or catalogue.catalogue()))
    else:
        show_on_terminal(gpu_table.render(catalogue.catalogue()) if found is None else gpu_table.render_one(found))
