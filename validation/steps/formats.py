"""The known formats of tables, and reading a table: its header tells the format."""

from __future__ import annotations

import csv
import gzip
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import validation.steps
from triosim.errors import TraceError, TriosimError
from validation.report import DataAbsent, data
from validation.steps.rows import Format, Record, Row


@cache
def formats() -> tuple[Format, ...]:
    """Every format of the modules here, by module and in the order in which it names them."""
    names = [module.name for module in pkgutil.iter_modules(validation.steps.__path__)]
    modules = [importlib.import_module(f"validation.steps.{name}") for name in sorted(names)]
    return tuple(one for module in modules for one in getattr(module, "FORMATS", ()))


def named(name: str) -> Format:
    """Return a format by its name."""
    return next(one for one in formats() if one.name == name)


def read(path: str | Path, refuse: Callable[[TriosimError, int], None] | None = None) -> tuple[Format, list[Row]]:
    """Return the rows of a file (csv, csv.gz). Raises ``TraceError`` for an unknown header, or no line below it.

    ``refuse`` is told of each broken row and its line, which is left out; without it the first one raises.
    """
    lines = csv.reader(_text(Path(path)).splitlines())
    header = [name.strip() for name in next(lines, [])]
    known = [one for one in formats() if one.columns and set(one.columns) <= set(header)]
    if not known:
        said = ",".join(header)
        raise TraceError(f"no known table has the header '{said[:200]}'", where=str(path), fix=_nearest(header))
    found = max(known, key=lambda one: len(one.columns))
    rows, none = [], True
    for line in lines:
        if not line:
            continue
        none = False
        try:
            rows.append(_row(found, header, line, str(path), lines.line_num))
        except TriosimError as error:
            if refuse is None:
                raise
            refuse(error, lines.line_num)
    if none:
        raise TraceError("no rows", where=str(path), fix="give one or more below the header")
    return found, rows


def shared(
    *only: str, refuse: Callable[[str, TriosimError, int], None] | None = None
) -> Iterator[tuple[Format, str, list[Row]]]:
    """Yield the format, the name and the rows of each table that is there; of these formats alone, or all.

    ``refuse`` is told of the table, the error and the line of each broken row; without it the first one raises.
    """
    for one in formats():
        if only and one.name not in only:
            continue
        for name in one.tables:
            try:
                path = data(name)
            except DataAbsent:
                continue
            table = path.name.partition(".")[0]
            yield one, table, read(path, None if refuse is None else partial(refuse, table))[1]
        if rows := one.built_in():
            yield one, one.name, rows


def _row(kind: Format, header: list[str], cells: list[str], path: str, line: int) -> Row:
    where = f"{path}:{line}"
    if len(cells) != len(header):
        raise TraceError(f"{len(cells)} columns", where=where, fix=f"give the {len(header)} of the header")
    found = kind.read(Record(dict(zip(header, cells, strict=True)), where, line))
    return replace(found, line=line, also=tuple(replace(one, line=line) for one in found.also))


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {error}", where=str(path), fix="give a csv or csv.gz file") from None


def _nearest(header: list[str]) -> str:
    """Say which columns the format that comes nearest has and this header does not."""
    near = max((one for one in formats() if one.columns), key=lambda one: len(set(one.columns) & set(header)))
    missing = [name for name in near.columns if name not in header]
    return f"of {near.name} these are missing: {', '.join(missing)}"
