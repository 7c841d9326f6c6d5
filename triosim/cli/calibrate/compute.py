"""The command ``triosim calibrate compute``: fits the operator models to measured operators."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.calibrate.options import CACHE, OPERATOR
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.errors import printable
from triosim.reports.terminal.progress import Progress

calibration_run = LaterModule("compute.fit.calibration_run")

# fmt: off
OPTIONS = (
    Option("gpu", metavar="NAME", panel=GENERAL, help=
        "The GPU that was measured (a name or a YAML file), if the files do not say or have several."),
    Option("output", metavar="FILE", short="-o", panel=GENERAL, help=
        "The file of the fitted models (.npz), or a folder. By default GPU.npz."),
    OPERATOR,
    CACHE,
)
# fmt: on


@o.takes(*OPTIONS)
def command(
    data: Annotated[list[str], o.argument("DATA...", "Traces, and tables of measured operators.")], **given: Any
) -> None:
    """Fit the operator models to measured operators, with errors from cross-validation.

    Files are traces in any format, tables that 'triosim calibrate measure' wrote, and tables of one operator.
    What is written is used where --models or TRIOSIM_MODELS names it, before what ships with triosim.

    [bold]Examples[/]

    [cyan]triosim calibrate compute run/ -o h100.npz[/]
    [cyan]triosim calibrate compute measured.csv.gz gemm.csv --gpu H100 -o h100.npz[/]
    """

    def progress(text: str) -> None:
        print(printable(f"triosim: {text}"), file=sys.stderr)

    with Progress() as shown:
        shown.said("fitting")
        path = calibration_run.run(data, given["gpu"], given["output"], given["operator"], progress, given["cache"])
    progress(f"wrote {path}; use it: triosim simulate TRACE --models {path}")
