"""The command ``triosim calibrate measure``: measures operators on the GPU or CPU at hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.errors import OptionError
from triosim.output_files import check_outputs

benchmarks = LaterModule("tracer.benchmarks.measure")

# fmt: off
OPTIONS = (
    Option("output", required=True, metavar="FILE", short="-o", panel=GENERAL, help=
        "The table of measured operators; an existing one gets more rows."),
    Option("device", metavar="cpu|cuda", panel=GENERAL, help="The device to measure. By default the GPU, if there is one."),
    Option("operators", metavar="A,B,...", panel=GENERAL, help="The operators to measure. By default all."),
    Option("dtypes", default="float32,bfloat16", metavar="A,B,...", panel=GENERAL, help="The dtypes to measure."),
    Option("count", "whole", 100, metavar="N", panel=GENERAL, help="The number of sizes of each operator and dtype."),
    Option("seconds", "whole", metavar="LIMIT", panel=GENERAL, help="The most seconds to measure; a later run continues."),
    Option("plan", metavar="FILE", panel=GENERAL, help=
        "Measure the operators that 'triosim calibrate missing' wrote, and no drawn ones."),
    Option("seed", "whole", 0, least=0, metavar="N", panel=GENERAL, help="The seed of the drawn sizes."),
)
# fmt: on
#: What says which operators are drawn.
_OF_DRAWN = ("operators", "dtypes", "count", "seed")


@o.takes(*OPTIONS)
def command(**given: Any) -> None:
    """Measure operators on the GPU (or CPU) at hand, for 'triosim calibrate compute'.

    Sizes are drawn log-uniformly, or come from a plan. Each operator is run with a warm and with a cold cache.
    After Ctrl-C, or a limit, the table holds what was measured, and the same command goes on.

    [bold]Examples[/]

    [cyan]triosim calibrate measure -o measured.csv.gz --seconds 1800[/]
    [cyan]triosim calibrate measure -o gemm.csv.gz --operators linear,bmm --dtypes bfloat16 --count 500[/]
    [cyan]triosim calibrate measure -o measured.csv.gz --plan plan.csv[/]
    """
    if given["plan"] is not None:
        _check_plan(given)
    plan = benchmarks.MeasurementPlan(
        _words(given["operators"]),
        _words(given["dtypes"]),
        given["count"],
        given["seconds"],
        given["seed"],
        file=given["plan"],
    )
    output = given["output"]
    with _Bar() as bar:
        outcome = benchmarks.measure(plan, output, given["device"], bar)
    for line in outcome.skipped:
        print(f"triosim: {line}", file=sys.stderr)
    print(f"triosim: {outcome.rows} rows in {output}, {outcome.new} of them new", file=sys.stderr)


def _check_plan(given: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for options of drawn operators beside a plan, ``OutputError`` where the plan is the table."""
    for option in OPTIONS:
        if option.name in _OF_DRAWN and given[option.name] != option.default:
            raise OptionError("has no effect with --plan", where=f"--{option.name}", fix="leave one of them out")
    check_outputs(given["output"], reading=[given["plan"]])


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


class _Bar:
    """A progress bar on standard error, if that is a terminal."""

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
