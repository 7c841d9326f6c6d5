"""The command ``triosim calibrate measure``: measures operators on the GPU or CPU at hand."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from triosim.errors import OptionError
from triosim.tracer.benchmarks.measure import MeasurementPlan
from triosim.tracer.benchmarks.measure import measure as run_benchmarks


def command(
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
    for name, value in (("--count", count), ("--seconds", seconds)):
        if value is not None and value < 1:
            raise OptionError(f"{value} is not above zero", where=name, fix="give 1 or more")
    plan = MeasurementPlan(_words(operators), _words(dtypes), count, seconds, seed)
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
