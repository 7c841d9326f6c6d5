"""The tables of ``triosim calibrate missing``: predicted operators by what the step is expected to be off because of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from triosim.reports.terminal.tables import percent, shorten, table
from triosim.results.result import Result
from triosim.results.unmeasured import UnmeasuredOperator
from triosim.trace import Operator
from triosim.units import format_time

#: Rows that a person reads.
_MOST = 20


def render(result: Result, rows: Sequence[UnmeasuredOperator], every: Sequence[UnmeasuredOperator]) -> Table:
    """Return the operators of the largest errors; ``rows`` are those of a plan, of ``every`` predicted one."""
    step, whole = result.step_time_s, math.fsum(row.error_s for row in every)
    shown = math.fsum(row.error_s for row in rows)
    made = table(
        f"Operators of {result.title} that nobody measured: {len(every)}",
        *("operator", "inputs", "runs", "time", "of step", "error"),
        main=("time",),
        rows=[
            (
                shorten(row.operator.name.removeprefix("aten::"), 20),
                shorten(_shapes(row.operator), 21),
                f"{row.count:g}",
                format_time(row.seconds),
                percent(row.seconds, step),
                percent(row.error_s, row.seconds),
            )
            for row in rows[:_MOST]
        ],
        legend=f"the first {len(rows)} are {percent(shown, whole)} of the expected error of all; runs, time: of a step on the "
        "average GPU; error: of that time",
    )
    made.columns[1].justify = "left"
    return made


def as_values(rows: Sequence[UnmeasuredOperator]) -> list[dict[str, Any]]:
    """Return the operators as plain values."""
    return [
        {
            "operator": row.operator.name,
            "phase": row.operator.phase,
            "inputs": [list(tensor.shape) for tensor in row.operator.inputs],
            "dtype": row.operator.inputs[0].dtype if row.operator.inputs else "",
            "predicted_by": row.operator.predicted_by,
            "count": row.count,
            "seconds": row.seconds,
            "error_s": row.error_s,
        }
        for row in rows
    ]


def _shapes(operator: Operator) -> str:
    return " ".join("x".join(map(str, tensor.shape)) or "scalar" for tensor in operator.inputs)
