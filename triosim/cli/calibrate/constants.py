"""The command ``triosim calibrate constants``: lists the constants that predictions rest on."""

from __future__ import annotations

import json
import sys
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal

fitted_constants = LaterModule("cli.calibrate.fitted_constants")
tables = LaterModule("reports.terminal.tables")

OPTIONS = (o.FORMAT,)
_LEGEND = (
    "fit, left out: mean error of what a constant was fitted to, and of sources, sizes or GPUs that were left out; "
    "--format json also says what each rests on"
)


@o.takes(*OPTIONS)
def command(**given: Any) -> None:
    """List the constants that predictions rest on: value, unit, what they rest on, and what fits them again.

    Beside the error of each fit stands that of sources, model sizes or GPUs that were left out of it.

    [bold]Examples[/]

    [cyan]triosim calibrate constants[/]
    [cyan]triosim calibrate constants --format json[/]
    """
    if given["format"] == "json":
        sys.stdout.write(json.dumps(fitted_constants.as_values(), indent=2) + "\n")
        return
    found = fitted_constants.fitted_constants()
    rows = [
        (one.name, f"{one.value:.4g} {one.unit}", _percent(one.fit), _percent(one.left_out), one.script)
        for one in found
    ]
    title, columns = (
        f"Constants that predictions rest on: {len(found)}",
        ("value", "fit", "left out", "fitted again by"),
    )
    made = tables.table(title, "constant", *columns, rows=rows, legend=_LEGEND)
    made.columns[-1].justify = "left"
    show_on_terminal(made)


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"
