"""Reads tables of comma-separated values, compressed or not, with comments; errors name file, line and column.

Lines that begin with # are comments, before the header too; empty lines are skipped.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from triosim.errors import TriosimError, nearest
from triosim.input_files.reading import head, read_text

#: The shortest and the longest time of an operator, in seconds.
SHORTEST, LONGEST = 1e-8, 1e5
#: The longest dimension of a tensor that fits into a memory.
LARGEST_SIZE = 10**12
_CELLS = "give every row as many cells as the header has"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A table's header, its file and line, and the line and cells of each row, as many as the header has."""

    header: list[str]
    where: str
    rows: list[tuple[int, list[str]]]

    def check_columns(self, known: Collection[str]) -> None:
        """Raise ``TriosimError`` for a column that is unknown, or there twice."""
        for number, name in enumerate(self.header):
            if name not in known:
                raise TriosimError(f"unknown column '{name}'", where=self.where, fix=nearest(name, known))
            if name in self.header[:number]:
                raise TriosimError(f"two columns '{name}'", where=self.where)

    def require_rows(self) -> None:
        """Raise ``TriosimError`` where there are no rows under the header."""
        if not self.rows:
            file = self.where.rpartition(":")[0]
            raise TriosimError("holds no rows", where=file, fix="give at least one row under the header")


def header_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the cells of a file's first line that is no comment; none where there is none, or no file."""
    try:
        lines = head(Path(path), 4096).decode("utf-8-sig", "replace").splitlines()
    except (OSError, ValueError):  # reading it says why
        return []
    return next((_cells(line) for line in lines if _is_row(line)), [])


def read(path: str | os.PathLike[str]) -> CsvTable:
    """Read a file. Raises ``TriosimError`` that names file, line and what would be right."""
    file = os.fspath(path)
    lines = read_text(Path(file), TriosimError).splitlines()
    if not any(map(str.strip, lines)):
        raise TriosimError("is empty", where=file, fix="give a table with a header and at least one row")
    first = next((number for number, line in enumerate(lines) if _is_row(line)), None)
    if first is None:
        raise TriosimError("holds nothing but comments", where=file, fix="give a header and at least one row")
    numbered = _rows(lines, first, file)
    where, header = f"{file}:{first + 1}", [cell.strip() for cell in next(numbered)[1]]
    if len(header) == 1:
        for separator, name in _SEPARATORS.items():
            if separator in lines[first]:
                raise TriosimError(f"its columns are separated by {name}", where=where, fix="separate them by commas")
    rows = []
    for line, cells in numbered:
        if not any(cells) or cells[0].startswith("#"):
            continue
        if len(cells) != len(header):
            raise TriosimError(f"{len(cells)} cells under {len(header)} columns", where=f"{file}:{line}", fix=_CELLS)
        rows.append((line, [cell.strip() for cell in cells]))
    return CsvTable(header, where, rows)


def _rows(lines: list[str], first: int, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line from ``first`` on. A cell in quotes may go over several lines."""
    reader = csv.reader(lines[first:])
    try:
        for cells in reader:
            yield first + reader.line_num, cells
    except csv.Error as error:
        fix = "is a quotation mark left open?"
        raise TriosimError(f"is no table of comma-separated values: {error}", f"{file}:{first + 1}", fix) from None


def seconds(text: str, column: str, where: str, factor: float = 1.0) -> float:
    """Return the seconds of a cell in units of ``factor`` seconds. Raises ``TriosimError`` for what no operator takes."""
    try:
        number = float(text)
    except ValueError:
        raise TriosimError(f"{column}: '{text}' is not a number", where=where) from None
    if not (math.isfinite(number) and number > 0.0):
        raise TriosimError(f"{column}: '{text}' is not a time above zero", where=where)
    if not SHORTEST <= number * factor <= LONGEST:
        raise TriosimError(
            f"{column}: '{text}' is {number * factor:.3g} s, which no operator takes",
            where=where,
            fix=f"times are from {SHORTEST * 1e9:g} ns to {LONGEST:g} s; is the unit right?",
        )
    return number * factor


def size(text: str, column: str, where: str) -> int:
    """Return the dimension of a cell, a whole number above zero: ``64`` or ``64.0``."""
    try:
        number = float(text)
    except ValueError:
        raise TriosimError(f"{column}: '{text}' is not a number", where=where) from None
    if not (0.0 < number < math.inf and number == math.floor(number)):
        raise TriosimError(f"{column}: '{text}' is not a whole number above zero", where=where)
    if number > LARGEST_SIZE:
        raise TriosimError(
            f"{column}: '{text}' is not a size of a tensor", where=where, fix=f"sizes are up to {LARGEST_SIZE:.0e}"
        )
    return int(number)


def _is_row(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _cells(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line]), [])]
