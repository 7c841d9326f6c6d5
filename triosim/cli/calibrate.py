"""The commands under ``triosim calibrate``: measure operators, fit models to what was measured, and judge fitted models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triosim.cli import options as o
from triosim.cli.command import QuickCommand, QuickGroup

if TYPE_CHECKING:
    from triosim.compute.fit.evaluation import Evaluation, Statistics

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
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="warm|cold",
        show_default=False,
        **o.one_of("--cache", ("warm", "cold")),
        help="Which rows to take of operators that were measured both ways; by default warm forward, cold otherwise.",
    ),
]


Collective = Annotated[
    str | None,
    typer.Option(
        "--collective",
        metavar="NAME",
        show_default=False,
        help="Which collective DATA are about, where they do not say.",
    ),
]


@app.callback()
def calibrate() -> None:
    """Measure operators, fit models of operators and collectives to what was measured, or judge them on it."""


@app.command(cls=QuickCommand)
def compute(
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
    from triosim.compute.fit import calibration_run as fitting

    def progress(text: str) -> None:
        print(f"triosim: {text}", file=sys.stderr)

    path = fitting.run(data, gpu, output, operator, progress, cache)
    progress(f"wrote {path}; use it: TRIOSIM_MODELS={path} triosim simulate TRACE --compute-model auto")


@app.command(cls=QuickCommand)
def evaluate(
    table: Annotated[
        str, typer.Argument(metavar="DATA", help="A table of measured operators, or a trace.", show_default=False)
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="NAME", show_default=False, help="The GPU whose rows are judged, where DATA does not say."
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="FILE",
            show_default=False,
            help="Fitted models to judge, a file or a folder, before the shipped ones.",
        ),
    ] = None,
    operator: OperatorName = None,
    cache: Cache = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME",
            show_default=False,
            help="DATA are collectives, judged on this topology.",
        ),
    ] = None,
    collective: Collective = None,
    format: o.Format = "table",
) -> None:
    """Show how far the fitted models are off on measured operators or, with --topology, on measured collectives.

    [bold]Examples[/]

    [cyan]triosim calibrate evaluate gemm_bf16_h100.csv.gz --gpu H100[/]
    [cyan]triosim calibrate evaluate run/ --models h100.npz[/]
    [cyan]triosim calibrate evaluate bmm_fp32_multi_gpu.csv.gz --gpu 'Tesla T4' --format json[/]
    [cyan]triosim calibrate evaluate all_reduce.txt --topology dgx-h100[/]
    """
    if topology is not None:
        _evaluate_collectives(table, topology, collective, gpu, format)
        return
    from triosim.compute.fit import calibration_run as fitting
    from triosim.compute.fit import evaluation
    from triosim.compute.learned import model_files

    if models is not None:
        model_files.check(models)
    measured = fitting.measurements([table], gpu, operator, cache)
    target = fitting.single_gpu(measured, table)
    (rows,) = fitting.as_operators(measured)
    one_operator = {(part.shapes.family, part.shapes.dtype) for part, _ in measured.tables}
    with model_files.using(models):
        for line in (*fitting.unknown([rows]), *evaluation.already_fitted(rows, one_operator)):
            print(f"triosim: {line}", file=sys.stderr)
        judged = evaluation.evaluate(rows)
    family, dtype = next(iter(one_operator)) if one_operator else ("all", None)
    _show(judged, target.name, family, dtype, format)


def _evaluate_collectives(table: str, topology: str, collective: str | None, gpu: str | None, format: str) -> None:
    from triosim.networks.calibration.fit import run

    name, total, kinds = run.evaluate(table, topology, collective, gpu)
    if format == "json":
        _print_json(run.as_json(name, total, kinds))
        return
    rows = {"all": total.total}
    rows |= {word: one for word, one in (("1 MiB and more", total.large), ("below", total.small)) if one is not None}
    for kind, judged in kinds.items():
        both = (("from 1 MiB", judged.large), ("below", judged.small))
        rows |= {f"{kind} {word}": one for word, one in both if one is not None}
    _print_table(f"collectives on {name}", rows)


@app.command(cls=QuickCommand)
def network(
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
    from triosim.networks.calibration.fit import run

    def progress(text: str) -> None:
        print(f"triosim: {text}", file=sys.stderr)

    run.calibrate(data, topology, output, collective=collective, gpu=gpu, online=online, progress=progress)
    progress(f"wrote {output}; use it: triosim simulate TRACE --parallel ddp --topology {output}")


@app.command(cls=QuickCommand)
def measure(
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", show_default=False, help="The table, gone on with if it is there."
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="cpu|cuda", show_default=False, help="By default the GPU, where there is one."
        ),
    ] = None,
    operators: Annotated[
        str | None,
        typer.Option("--operators", metavar="A,B,...", show_default=False, help="Which operators; all by default."),
    ] = None,
    dtypes: Annotated[str, typer.Option("--dtypes", metavar="A,B,...", help="In which dtypes.")] = "float32,bfloat16",
    count: Annotated[int, typer.Option("--count", metavar="N", help="Sizes of each operator and dtype.")] = 100,
    seconds: Annotated[
        int | None,
        typer.Option("--seconds", metavar="LIMIT", show_default=False, help="Stop after so long; go on another time."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed draws other sizes.")] = 0,
) -> None:
    """Measure operators on the GPU (or CPU) at hand, for 'triosim calibrate compute'.

    Sizes are drawn log-uniformly. Each operator is run with a warm and with a cold cache, forward and backward.
    After Ctrl-C, or a limit, the table holds what was measured, and the same command goes on.

    [bold]Examples[/]

    [cyan]triosim calibrate measure -o measured.csv.gz --seconds 1800[/]
    [cyan]triosim calibrate measure -o gemm.csv.gz --operators linear,bmm --dtypes bfloat16 --count 500[/]
    """
    from triosim.errors import OptionError
    from triosim.tracer.benchmarks.measure import Plan
    from triosim.tracer.benchmarks.measure import measure as run_benchmarks

    for name, value in (("--count", count), ("--seconds", seconds)):
        if value is not None and value < 1:
            raise OptionError(f"{value} is not above zero", where=name, fix="give 1 or more")
    plan = Plan(_words(operators), _words(dtypes), count, seconds, seed)
    with _Bar() as bar:
        outcome = run_benchmarks(plan, output, device, bar)
    for line in outcome.skipped:
        print(f"triosim: {line}", file=sys.stderr)
    print(f"triosim: {outcome.rows} rows in {output}, {outcome.new} of them new", file=sys.stderr)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


class _Bar:
    """A progress bar on standard error, where a person looks."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.add_task("measuring", total=None)
            self._bar.start()
        return self

    def __call__(self, done: int, total: int, label: str) -> None:
        if self._bar is not None:
            self._bar.update(0, completed=done, total=total, description=label)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _show(judged: Evaluation, gpu: str, operator: str, dtype: str | None, format: str) -> None:
    if format == "json":
        kinds = {name: {**one.as_dict(), "model": judged.models[name]} for name, one in judged.kinds.items()}
        sums = {"measured_seconds": judged.measured_seconds, "predicted_seconds": judged.predicted_seconds}
        known = {"gpu": gpu, "operator": operator, **({"dtype": dtype} if dtype else {}), "model": judged.model}
        classes = {"classes": _as_dicts(judged.classes), "kinds": kinds}
        _print_json({**judged.total.as_dict(), **known, **sums, **classes})
        return
    from triosim.units import format_time

    rows = {"all": judged.total, **judged.classes}
    rows |= {f"{name} ({judged.models[name]})": one for name, one in judged.kinds.items()}
    together = f"{format_time(judged.measured_seconds)} measured, {format_time(judged.predicted_seconds)} predicted"
    _print_table(f"auto on {gpu}: all operators together {together}", rows)


def _as_dicts(several: dict[str, Statistics]) -> dict[str, dict[str, float]]:
    return {name: one.as_dict() for name, one in several.items()}


def _print_json(content: dict[str, Any]) -> None:
    import json

    print(json.dumps(content, indent=2))


def _print_table(title: str, rows: dict[str, Statistics]) -> None:
    from rich.console import Console

    from triosim.reports.terminal.result_tables import table as made_table

    made = made_table(title, "rows", "number", "MAPE", "median", "95th percentile", "within 10%")
    for name, one in rows.items():
        figures = (one.mape_percent, one.median_percent, one.p95_percent, one.within_10_percent)
        made.add_row(name, str(one.rows), *(f"{figure:.2f} %" for figure in figures))
    Console(highlight=False).print(made)
