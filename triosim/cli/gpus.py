"""The command ``triosim gpus``: shows the GPU catalogue, or all that is known of one GPU."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim import gpus as catalogue
from triosim.cli import options as o
from triosim.cli.command import show_on_terminal
from triosim.reports.terminal import gpu_table


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", help="One of them, or a file of your own.", show_default=False)
    ] = None,
    format: o.Format = "table",
) -> None:
    """List the GPUs that are known, or show what is known of one.

    [bold]Examples[/]

    [cyan]triosim gpus[/]
    [cyan]triosim gpus 'NVIDIA A100-SXM4-40GB'[/]
    [cyan]triosim gpus H100 --format json[/]
    """
    found = None if name is None else catalogue.find(name)
    if format == "json":
        sys.stdout.write(gpu_table.as_json(found or catalogue.catalogue()))
    else:
        show_on_terminal(gpu_table.render(catalogue.catalogue()) if found is None else gpu_table.render_one(found))
