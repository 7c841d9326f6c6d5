"""Files of operator times (a cycle simulator's, another GPU's, a guess) that replace those of the trace.

A CSV file with a header, or a YAML or JSON list of mappings, with the keys ``id``, ``operator``, ``layer`` and ``phase`` (any
of them, at least one) and ``seconds`` (a number) or ``time`` (with its unit: ``12.5 us``). An entry with an id or an operator
gives the time of each call that it matches; one with a layer alone (of a phase, where it names one) gives the sum of the
layer's operators, which keep their proportions. A layer's name also stands for the modules inside it. Of two entries
that match one operator, the later holds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triosim.compute import csv_table
from triosim.errors import TriosimError, nearest
from triosim.input_files import yaml_lines
from triosim.input_files.reading import parse_json, read_text
from triosim.operators.features import base_name
from triosim.trace import PHASES, Operator, Trace
from triosim.units import LONGEST_SECONDS, SHORTEST_SECONDS, parse_time

_KEYS = ("id", "operator", "layer", "phase", "seconds", "time")


@dataclass(frozen=True, slots=True)
class OperatorTimeEntry:
    """The seconds of the operators that an entry of the file matches; ``where`` names file and line."""

    seconds: float
    where: str
    id: int | None = None
    operator: str | None = None
    layer: str | None = None
    phase: str | None = None

    def matches(self, operator: Operator) -> bool:
        """Whether the entry gives the time of an operator."""
        return (
            (self.id is None or operator.id == self.id)
            and (self.operator is None or self.operator in (operator.name, base_name(operator.name)))
            and (self.layer is None or f"{operator.layer}.".startswith(f"{self.layer}."))
            and (self.phase is None or operator.phase == self.phase)
        )


def load(path: str | os.PathLike[str]) -> list[OperatorTimeEntry]:
    """Read a file of operator times. Raises ``TriosimError`` that names the line or entry and what would be right."""
    is_table = Path(path).suffix.lower() == ".csv" or len({*csv_table.header_of(path)} & {*_KEYS}) > 1
    rows = _csv_rows(path) if is_table else _list_rows(path)
    entries = [_entry(row, where) for where, row in rows]
    if not entries:
        raise TriosimError("holds no times", where=str(path), fix="give at least one entry")
    return entries


def apply(entries: Sequence[OperatorTimeEntry], trace: Trace, source: str | os.PathLike[str]) -> Trace:
    """Return the trace with the times of a file. Raises ``TriosimError`` where an entry matches nothing."""
    operators = list(trace.operators)
    for entry in entries:
        rows = [row for row, operator in enumerate(operators) if entry.matches(operator)]
        if not rows:
            raise TriosimError(_unmatched(entry), where=entry.where, fix=_suggestion(entry, trace.operators))
        total = math.fsum(operators[row].seconds for row in rows)
        for row in rows:
            if entry.id is not None or entry.operator is not None:
                seconds = entry.seconds
            elif total > 0:
                seconds = operators[row].seconds * entry.seconds / total
            else:
                seconds = entry.seconds / len(rows)
            operators[row] = replace(operators[row], seconds=seconds, busy_seconds=None)
    times = f"{trace.times}, with times from {source}"
    return replace(trace, operators=tuple(operators), times=times, step_seconds=None)


def _csv_rows(path: str | os.PathLike[str]) -> list[tuple[str, Mapping[str, Any]]]:
    table = csv_table.read(path)
    table.check_columns(_KEYS)
    return [
        (f"{path}:{line}", {name: cell for name, cell in zip(table.header, cells, strict=True) if cell})
        for line, cells in table.rows
    ]


def _list_rows(file: str | os.PathLike[str]) -> list[tuple[str, Mapping[str, Any]]]:
    path = str(file)
    text = read_text(Path(path), TriosimError)
    if path.lower().endswith(".json") or text.lstrip().startswith("["):
        content = parse_json(text, path, TriosimError)
    else:
        content, _ = yaml_lines.parse(text, path, TriosimError)
    if not isinstance(content, list):
        raise TriosimError("is not a list", where=path, fix="write entries such as '- {operator: conv2d, time: 12 us}'")
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, row in enumerate(content, start=1):
        where = f"{path}: entry {number}"
        if not isinstance(row, Mapping):
            raise TriosimError(f"{row!r:.60} is not a mapping", where=where, fix=f"keys: {', '.join(_KEYS)}")
        for name in row:
            if name not in _KEYS:
                raise TriosimError(f"unknown key '{name}'", where=where, fix=nearest(str(name), _KEYS))
        rows.append((where, row))
    return rows


def _entry(row: Mapping[str, Any], where: str) -> OperatorTimeEntry:
    if ("seconds" in row) == ("time" in row):
        raise TriosimError("needs either 'seconds' or 'time'", where=where, fix="write time: 12.5 us")
    try:
        seconds = parse_time(row["time"]) if "time" in row else float(row["seconds"])
    except (TypeError, ValueError, OverflowError):
        raise TriosimError(f"seconds: {row['seconds']!r} is not a number", where=where) from None
    except TriosimError as error:
        raise TriosimError(error.what, where=where, fix=error.fix) from None
    if not (seconds == 0 or SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS):
        fix = f"give 0, or {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}"
        raise TriosimError(f"a time of {seconds:g} seconds", where=where, fix=fix)
    phase = row.get("phase")
    if phase is not None and phase not in PHASES:
        raise TriosimError(f"unknown phase '{phase}'", where=where, fix=nearest(str(phase), PHASES))
    if not {"id", "operator", "layer"} & row.keys():
        raise TriosimError("names no operator", where=where, fix="give 'id', 'operator' or 'layer'")
    try:
        number = int(row["id"]) if "id" in row else None
    except (TypeError, ValueError):
        raise TriosimError(f"id: {row['id']!r} is not a whole number", where=where) from None
    operator, layer = (None if row.get(key) is None else str(row[key]) for key in ("operator", "layer"))
    return OperatorTimeEntry(seconds, where, number, operator, layer, phase)


def _unmatched(entry: OperatorTimeEntry) -> str:
    asked = {"id": entry.id, "operator": entry.operator, "layer": entry.layer, "phase": entry.phase}
    return "the trace has no operator with " + ", ".join(f"{k} '{v}'" for k, v in asked.items() if v is not None)


def _suggestion(entry: OperatorTimeEntry, operators: Sequence[Operator]) -> str:
    """Suggest a fix: the value nearest to the entry's first key that matches nothing in the trace."""
    names = {"operator": {base_name(o.name) for o in operators}, "layer": {o.layer for o in operators}}
    for key, known in names.items():
        said = getattr(entry, key)
        if said is not None and not any(OperatorTimeEntry(0.0, "", **{key: said}).matches(o) for o in operators):
            return nearest(said, known)
    if entry.id is not None and not any(o.id == entry.id for o in operators):
        return f"ids run from {min(o.id for o in operators)} to {max(o.id for o in operators)}"
    return "each key matches operators, but no operator matches all keys"
