"""The lines that ``--format csv`` prints of predictions, and reading them back instead of simulating again."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence

from triosim.errors import TraceError
from validation.steps.errors import Predicted
from validation.steps.rows import Prediction, Row

COLUMNS = ("table", "row", "quantity", "unit", "measured", "predicted", "error_percent", "low", "high")

RowKey = tuple[str, str, str]  # the table, the row's label and its quantity
#: What was predicted of a table's row and quantity.
Known = Mapping[RowKey, Prediction]


def key(table: str, row: Row) -> RowKey:
    """Return what a prediction is known by; rows of the same columns are predicted alike."""
    return table, row.label, row.quantity


def line(one: Predicted) -> tuple[str, ...]:
    """Return a prediction as a line has it."""
    figures = f"{one.row.measured:.6g}", f"{one.value:.6g}", f"{100 * one.error:.2f}"
    ends = ("" if end is None else f"{end:.6g}" for end in (one.low, one.high))
    return one.table, one.row.label, one.row.quantity, one.row.unit, *figures, *ends


def read(paths: Sequence[str]) -> Known:
    """Return what files of such lines have. Raises ``TraceError`` for a file that is none."""
    found: dict[RowKey, Prediction] = {}
    for path in paths:
        for key, one in _lines(path):
            ends = (float(one[end]) if one[end] else None for end in ("low", "high"))
            found[key] = Prediction(float(one["predicted"]), *ends)
    return found


def errors(path: str) -> dict[RowKey, float]:
    """Return the relative error of each line of a file. Raises ``TraceError`` for a file that is none."""
    return {key: float(one["error_percent"]) / 100 for key, one in _lines(path)}


def _lines(path: str) -> Iterator[tuple[RowKey, dict[str, str]]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file)
            if tuple(lines.fieldnames or ()) != COLUMNS:
                raise TraceError("not what --format csv prints", where=path, fix=f"its header is {','.join(COLUMNS)}")
            for one in lines:
                float(one["predicted"])
                yield (one["table"], one["row"], one["quantity"]), one
    except (OSError, ValueError, TypeError) as error:
        raise TraceError(f"cannot be read: {error}", where=path, fix="give what --format csv printed") from None
