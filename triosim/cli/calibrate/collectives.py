"""The command ``triosim calibrate collectives``: measures collectives between the processes of a launcher."""

from __future__ import annotations

import os
import sys
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import GENERAL

collectives = LaterModule("tracer.benchmarks.collectives")

# fmt: off
OPTIONS = (
    Option("output", required=True, metavar="FILE", short="-o", panel=GENERAL, help=
        "The table of measured collectives; an existing one gets more rows."),
    Option("collectives", metavar="A,B,...", panel=GENERAL, help=
        "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast. By default all."),
    Option("least", "bytes", "1 KiB", metavar="SIZE", panel=GENERAL, unit="bytes", help="The smallest size."),
    Option("most", "bytes", "1 GiB", metavar="SIZE", panel=GENERAL, unit="bytes", help="The largest size."),
    Option("overlap", "flag", False, panel=GENERAL, help=
        "Also measure how much collectives from 1 MiB on and matrix products beside them slow each other."),
)
# fmt: on


@o.takes(*OPTIONS)
def command(**given: Any) -> None:
    """Measure collectives with torch.distributed, between the processes that torchrun has started.

    Each size is twice the one before. After Ctrl-C the same command goes on.

    [bold]Examples[/]

    [cyan]torchrun --nproc-per-node 8 --no-python triosim calibrate collectives -o measured.csv[/]
    [cyan]triosim calibrate network measured.csv --topology dgx-h100 -o cluster.yaml[/]
    """
    names = [word.strip() for word in (given["collectives"] or "").split(",") if word.strip()]
    plan = collectives.CollectivesPlan(names, int(given["least"]), int(given["most"]), given["overlap"])
    rows = collectives.measure(plan, given["output"])
    if os.environ.get("RANK", "0") == "0":
        print(f"triosim: {rows} rows in {given['output']}", file=sys.stderr)
