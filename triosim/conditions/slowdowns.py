"""How much slower computation and communication are beside each other, from measured pairs: alone, and beside the other.

A table is a CSV file with a row for each measurement and the columns ``kind`` (``all_reduce``), ``alone`` and ``beside``, two
times in the same unit. The factor of a kind is the geometric mean of beside / alone; one below 1 counts as 1. Other columns
are for people, but all rows must be of one ``gpu``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from triosim.errors import TriosimError, nearest

COLUMNS = ("kind", "alone", "beside")
GPU = "gpu"  # a column that may stand beside them
LARGEST_FILE = 100_000_000  # bytes


def read(path: str, kinds: Collection[str]) -> Mapping[str, float]:
    """Return the factor of each kind in a table. Raises ``TriosimError`` that names file and line."""
    ratios: dict[str, list[float]] = {}
    for line, row in _rows(path):
        kind = row["kind"].strip()
        if kind not in kinds:
            raise TriosimError(f"there is no kind '{kind}' of communication", f"{path}:{line}", nearest(kind, kinds))
        alone, beside = (_seconds(row[name], f"{path}:{line}: {name}") for name in ("alone", "beside"))
        ratios.setdefault(kind, []).append(math.log(beside / alone))
    if not ratios:
        raise TriosimError("the table has no rows", where=path, fix="write a row for each measurement")
    return {kind: max(1.0, math.exp(math.fsum(found) / len(found))) for kind, found in ratios.items()}


def _rows(path: str) -> list[tuple[int, dict[str, str]]]:
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise TriosimError(f"larger than {LARGEST_FILE} bytes", where=path)
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                fix = f"begin with the line '{','.join(COLUMNS)}'"
                raise TriosimError(f"has no column '{missing[0]}'", where=path, fix=fix)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TriosimError(f"cannot be read ({getattr(error, 'strerror', None) or error})", where=path) from None
    _check_one_gpu(rows, path)
    return rows


def _check_one_gpu(rows: list[tuple[int, dict[str, str]]], path: str) -> None:
    """Raise ``TriosimError`` for measurements on several GPUs: their mean would be of none of them."""
    gpus = sorted({row[GPU] or "" for _, row in rows if GPU in row})
    if len(gpus) > 1:
        raise TriosimError(f"has rows of {' and '.join(gpus)}", where=path, fix="keep those of one GPU")


def _seconds(value: str | None, where: str) -> float:
    try:
        seconds = float(value or "")
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise TriosimError(f"'{value or ''}' is no time", where=where, fix="write a positive number")
    return seconds
