"""Files of operator times (a cycle simulator's, another GPU's, a guess) that replace those of the trace.

A CSV file with a header, or a YAML or JSON list of mappings, with the keys ``id``, ``operator``, ``layer`` and ``phase`` (any
of them, at least one) and ``seconds`` (a number) or ``time`` (with its unit: ``12.5 us``). An entry with an id or an operator
gives the time of each call that it matches; one with a layer alone (of a phase, where it names one) gives the sum of the
layer's operators, which keep their proportions. A layer's name also stands for the modules inside it. Of two entries
that match one operator, the later holds.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triosim.errors import TriosimError, nearest
from triosim.operators.features import base_name
from triosim.trace import PHASES, Operator, Trace
from triosim.units import parse_time

_KEYS = ("id", "operator", "layer", "phase", "seconds", "time")


@dataclass(frozen=True, slots=True)
class OperatorTimeEntry:
    """One line of the file: whom it is about, and seconds. ``where`` names file and line."""

    seconds: float
    where: str
    id: int | None = None
    operator: str | None = None
    layer: str | None = None
    phase: str | None = None

    def matches(self, operator: Operator) -> bool:
        """Whether the entry is about an operator."""
        return (
            (self.id is None or operator.id == self.id)
            and (self.operator is None or self.operator in (operator.name, base_name(operator.name)))
            and (self.layer is None or f"{operator.layer}.".startswith(f"{self.layer}."))
            and (self.phase is None or operator.phase == self.phase)
        )


@dataclass(frozen=True, slots=True)
class OperatorTimesFile:
    """What a file says, in its order."""

    entries: tuple[OperatorTimeEntry, ...]
    source: str


def load(path: str | os.PathLike[str]) -> OperatorTimesFile:
    """Read a file of operator times. Raises ``TriosimError`` that names the line or entry and what would be right."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TriosimError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error
    rows = _csv_rows(text, str(path)) if file.suffix.lower() == ".csv" else _list_rows(text, str(path))
    entries = tuple(_entry(row, where) for where, row in rows)
    if not entries:
        raise TriosimError("holds no times", where=str(path), fix="give at least one entry")
    return OperatorTimesFile(entries, str(path))


def apply(times: OperatorTimesFile, trace: Trace) -> Trace:
    """Return the trace with the times of the file. Raises ``TriosimError`` where an entry matches nothing."""
    operators = list(trace.operators)
    for entry in times.entries:
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
    return replace(
        trace, operators=tuple(operators), times=f"{trace.times}, with times from {times.source}", step_seconds=None
    )


def _csv_rows(text: str, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    lines = text.splitlines()
    header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
    for name in header:
        if name not in _KEYS:
            raise TriosimError(f"unknown column '{name}'", where=f"{path}:1", fix=nearest(name, _KEYS))
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, cells in enumerate(csv.reader(lines[1:]), start=2):
        if not cells or cells[0].startswith("#"):
            continue
        if len(cells) != len(header):
            raise TriosimError(f"{len(cells)} cells under {len(header)} columns", where=f"{path}:{number}")
        filled = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
        rows.append((f"{path}:{number}", filled))
    return rows


def _list_rows(text: str, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        if path.lower().endswith(".json"):
            content = json.loads(text)
        else:
            import yaml

            content = yaml.safe_load(text)
    except ValueError as error:
        raise TriosimError(f"is not JSON: {error}", where=path) from error
    except Exception as error:  # yaml.YAMLError, which is imported late
        raise TriosimError(f"is not YAML: {' '.join(str(error).split())}", where=path) from error
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
    except (TypeError, ValueError):
        raise TriosimError(f"seconds: {row['seconds']!r} is not a number", where=where) from None
    except TriosimError as error:
        raise TriosimError(error.what, where=where, fix=error.fix) from None
    if not 0 <= seconds < math.inf:
        raise TriosimError(f"a time of {seconds:g} seconds", where=where, fix="times are finite and not negative")
    phase = row.get("phase")
    if phase is not None and phase not in PHASES:
        raise TriosimError(f"unknown phase '{phase}'", where=where, fix=nearest(str(phase), PHASES))
    if not {"id", "operator", "layer"} & row.keys():
        raise TriosimError("is about no operator", where=where, fix="give 'id', 'operator' or 'layer'")
    try:
        number = int(row["id"]) if "id" in row else None
    except (TypeError, ValueError):
        raise TriosimError(f"id: {row['id']!r} is not a whole number", where=where) from None
    operator, layer = row.get("operator"), row.get("layer")
    return OperatorTimeEntry(
        seconds,
        where,
        number,
        None if operator is None else str(operator),
        None if layer is None else str(layer),
        phase,
    )


def _unmatched(entry: OperatorTimeEntry) -> str:
    asked = {"id": entry.id, "operator": entry.operator, "layer": entry.layer, "phase": entry.phase}
    return "the trace has no operator with " + ", ".join(f"{k} '{v}'" for k, v in asked.items() if v is not None)


def _suggestion(entry: OperatorTimeEntry, operators: Sequence[Operator]) -> str:
    """Suggest a fix: the value nearest to the entry's first key that matches nothing in the trace."""
    if entry.operator is not None and not any(_only(entry, "operator").matches(o) for o in operators):
        return nearest(entry.operator, {base_name(o.name) for o in operators})
    if entry.layer is not None and not any(_only(entry, "layer").matches(o) for o in operators):
        return nearest(entry.layer, {o.layer for o in operators})
    if entry.id is not None and not any(o.id == entry.id for o in operators):
        return f"ids run from {min(o.id for o in operators)} to {max(o.id for o in operators)}"
    return "its keys each match operators, but none matches them all"


def _only(entry: OperatorTimeEntry, key: str) -> OperatorTimeEntry:
    """Return an entry that asks for one of its keys alone."""
    operator = entry.operator if key == "operator" else None
    return OperatorTimeEntry(
        entry.seconds, entry.where, operator=operator, layer=entry.layer if key == "layer" else None
    )
