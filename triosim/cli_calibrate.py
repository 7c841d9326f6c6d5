"""The commands under ``triosim calibrate``: fit the operator models to tables, and judge fitted models on other tables."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from triosim import cli_options as o
from triosim.cli_command import QuickCommand, QuickGroup

app = typer.Typer(cls=QuickGroup, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]})

OperatorName = Annotated[
    str | None,
    typer.Option(
        "--operator",
        metavar="NAME",
        show_default=False,
        help="softmax or layer_norm, where a table's columns and name do not say.",
    ),
]


@app.callback()
def calibrate() -> None:
    """Fit the operator models to measured tables, or judge them on such tables."""


@app.command(cls=QuickCommand)
def compute(
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Tables of measured operators.")],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="NAME", help="The GPU that was measured; 'all' takes every row of tables that name theirs."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", show_default=False, help="Where the fitted models go; GPU.npz otherwise."
        ),
    ] = None,
    operator: OperatorName = None,
) -> None:
    """Fit the operator models to tables, with errors from cross-validation.

    What is written is used where TRIOSIM_MODELS names it, before what ships with triosim.

    [bold]Examples[/]

    [cyan]triosim calibrate compute gemm.csv attention.csv.gz --gpu H100 -o h100.npz[/]
    """
    from triosim.compute import calibration_run as fitting
    from triosim.output import check_outputs

    path = output or f"{gpu.replace('/', '_')}.npz"
    if not fitting.is_folder(path):
        check_outputs(path)

    def progress(text: str) -> None:
        print(f"triosim: {text}", file=sys.stderr)

    fitting.run(data, gpu, path, operator, progress)


@app.command(cls=QuickCommand)
def evaluate(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of measured operators (.csv, .csv.gz).")],
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="The GPU whose rows are judged.")],
    models: Annotated[
        str | None,
        typer.Option(
            "--models", metavar="FILE", show_default=False, help="Fitted models to judge, not the shipped ones."
        ),
    ] = None,
    operator: OperatorName = None,
    format: o.Format = "table",
) -> None:
    """Show how far the fitted models are off on the rows of a table.

    [bold]Examples[/]

    [cyan]triosim calibrate evaluate gemm_bf16_h100.csv.gz --gpu H100[/]
    [cyan]triosim calibrate evaluate bmm_fp32_multi_gpu.csv.gz --gpu 'Tesla T4' --format json[/]
    """
    import json

    from triosim.compute import evaluation, stored, tables

    measured = tables.read(table, operator)
    target = evaluation.gpu_in(measured, gpu)
    rows = evaluation.rows_of(measured, target)
    predicted, model = evaluation.predict(rows.shapes, target, stored.load(models) if models else ())
    total = evaluation.statistics(predicted, rows.seconds)
    classes = evaluation.by_class(predicted, rows.seconds)
    if format == "json":
        known = {"gpu": target.name, "operator": rows.shapes.family, "dtype": rows.shapes.dtype, "model": model}
        by_class = {name: one.as_dict() for name, one in classes.items()}
        print(json.dumps({**total.as_dict(), **known, "classes": by_class}, indent=2))
        return
    from rich.console import Console

    from triosim.reports.terminal import table as made_table

    made = made_table(f"{model} on {target.name}", "rows", "number", "MAPE", "median", "95th percentile", "within 10%")
    for name, one in (("all", total), *classes.items()):
        figures = (one.mape_percent, one.median_percent, one.p95_percent, one.within_10_percent)
        made.add_row(name, str(one.rows), *(f"{figure:.2f} %" for figure in figures))
    Console(highlight=False).print(made)
