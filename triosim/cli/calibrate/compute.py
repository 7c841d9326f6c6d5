"""The command ``triosim calibrate compute``: fits the operator models to measured operators."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim.cli.calibrate.options import Cache, OperatorName
from triosim.compute.fit import calibration_run


def command(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA...", help="Traces, and tables of measured operators.", show_default=False),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            show_default=False,
            help="The GPU that was measured, where a file does not say: a name, or a YAML file; of several GPUs, which one.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Where the fitted models go: a file that ends in .npz, or a folder; GPU.npz otherwise.",
        ),
    ] = None,
    operator: OperatorName = None,
    cache: Cache = None,
) -> None:
    """Fit the operator models to measured operators, with errors from cross-validation.

    Files are traces in any format, tables that 'triosim calibrate measure' wrote, and tables of one operator.
    What is written is used where TRIOSIM_MODELS names it, before what ships with triosim.

    [bold]Examples[/]

    [cyan]triosim calibrate compute run/ -o h100.npz[/]
    [cyan]triosim calibrate compute measured.csv.gz gemm.csv --gpu H100 -o h100.npz[/]
    """

    def progress(text: str) -> None:
        print(f"triosim: {text}", file=sys.stderr)

    path = calibration_run.run(data, gpu, output, operator, progress, cache)
    progress(f"wrote {path}; use it: TRIOSIM_MODELS={path} triosim simulate TRACE --compute-model auto")
