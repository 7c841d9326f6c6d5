"""The tables of baidu-research/DeepBench: matrix products in float32 and half precision, on a GPU that each row names.

The matrices are stored by columns: (M, K) times (K, N) is ``linear`` of N rows and M features. "16 bit inputs" are products of
half precision that add up in float32, on tensor cores where the GPU has them.
"""

from __future__ import annotations

import os

import numpy as np

from triosim.compute import csv_table
from triosim.compute.families import FamilyCalls
from triosim.compute.fit.family_tables import FamilyTable, check_rate
from triosim.errors import TriosimError

_FLOAT, _HALF = "Float", "16 bit inputs"
_SIZES = {"m": "N", "n": "M", "k": "K"}
_TIME = "Time (msec)"
_MILLISECOND = 1e-3


def recognises(path: str | os.PathLike[str]) -> bool:
    """Whether a file is such a table, by its first line."""
    return {_TIME, "A Transpose", *_SIZES.values()} <= {*csv_table.header_of(path)}


def read(path: str | os.PathLike[str]) -> list[FamilyTable]:
    """Read a table: a part for each precision. Raises ``TriosimError`` that names file, line and what would be right."""
    file = os.fspath(path)
    sheet = csv_table.read(file)
    sheet.require_rows()
    for name in ("precision", "gpu"):
        if name not in sheet.header:
            raise TriosimError(f"has no column {name}", where=sheet.where, fix="DeepBench's tables have it")
    parts: dict[str, list[int]] = {}
    cells = [dict(zip(sheet.header, row, strict=True)) for _, row in sheet.rows]
    for number, row in enumerate(cells):
        parts.setdefault(_dtype(row["precision"], f"{file}:{sheet.rows[number][0]}"), []).append(number)
    found = []
    lines = np.array([line for line, _ in sheet.rows])
    for dtype, rows in parts.items():
        columns = {"b": np.ones(len(rows))}
        for name, said in _SIZES.items():
            sizes = [csv_table.size(cells[row][said], said, f"{file}:{lines[row]}") for row in rows]
            columns[name] = np.array(sizes, dtype=np.float64)
        times = [csv_table.seconds(cells[row][_TIME], _TIME, f"{file}:{lines[row]}", _MILLISECOND) for row in rows]
        check_rate(columns, np.array(times), [f"{file}:{lines[row]}" for row in rows])
        gpus = np.array([cells[row]["gpu"] for row in rows])
        found.append(FamilyTable(FamilyCalls("product", dtype, columns), np.array(times), gpus, file, lines[rows]))
    return found


def _dtype(precision: str, where: str) -> str:
    if precision != _FLOAT and not precision.startswith(_HALF):
        raise TriosimError(f"precision: '{precision}' is not known", where=where, fix=f"known: {_FLOAT}, {_HALF}")
    return "float32" if precision == _FLOAT else "float16"
