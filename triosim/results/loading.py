"""Reads ``result.json``, with errors that name the file and the key."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from triosim.errors import TriosimError
from triosim.input_files.reading import read_json
from triosim.results.values import SCHEMA, ResultData
from triosim.units import LONGEST_SECONDS, MOST_BYTES

_WITHOUT_WAITING = (
    "an older version of triosim wrote this result, without the waiting of each rank for its partners "
    "(exposed_waiting_s): it counts as exposed communication here; simulate again to tell them apart"
)


def read_result(path: Path) -> ResultData:
    """Return what a ``result.json`` holds. Raises ``TriosimError`` for whatever is no result."""
    values = read_json(path, TriosimError)
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else type(values).__name__
        raise TriosimError(
            f"is not a result of this version: its schema is {found!r}", where=str(path), fix=f"'{SCHEMA}' is read"
        )
    data = typing.cast(ResultData, _read(ResultData, values, str(path), ""))
    _check_recorded(data.recorded, path)
    if all("exposed_waiting_s" in rank for rank in values["ranks"]):
        return data
    return replace(data, notes=(*data.notes, _WITHOUT_WAITING))


#: What each part of ``recorded`` consists of.
_RECORDED = {
    "timeline": ("end_ns", "whats", "tracks", "arrows", "ranks_left_out"),
    "link_loads": ("end_s", "slots", "rows", "drawing"),
    "memory_curve": ("ranks", "times", "categories", "peak_bytes"),
}


def _check_recorded(recorded: Mapping[str, Any] | None, path: Path) -> None:
    for name, keys in _RECORDED.items() if recorded is not None else ():
        part = (recorded or {}).get(name)
        if part is not None and not (isinstance(part, dict) and {*keys} <= part.keys()):
            raise TriosimError(f"'recorded.{name}' is not what --record wrote", where=str(path), fix="simulate again")


def _read(kind: type, values: Any, file: str, within: str) -> Any:
    """Return a dataclass from a JSON object, field by field; ``within`` is the object's key."""
    if not isinstance(values, dict):
        raise TriosimError(f"{within or 'the result'} is not an object", where=file)
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for column in fields(kind):
        key = f"{within}.{column.name}" if within else column.name
        if column.name in values:
            found[column.name] = _value(hints[column.name], values[column.name], file, key)
        elif column.default is MISSING:  # a key with a default was added within the version, or is not known of a row
            raise TriosimError(f"has no '{key}'", where=file, fix="name a file that --output wrote")
    return kind(**found)


def _value(hint: Any, value: Any, file: str, key: str) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TriosimError(f"'{key}' is not a list", where=file)
        item, rest = typing.get_args(hint)
        if rest is not Ellipsis and len(value) != 2:
            raise TriosimError(f"'{key}' is not a pair", where=file)
        return tuple(_value(item, entry, file, f"{key}[{index}]") for index, entry in enumerate(value))
    if is_dataclass(hint):
        return _read(typing.cast(type, hint), value, file, key)
    expected, name = _EXPECTED.get(hint, (dict, "an object"))
    right = isinstance(value, expected) and isinstance(value, bool) is (hint is bool)
    if not right or (isinstance(value, float) and not math.isfinite(value)):
        raise TriosimError(f"'{key}' is {value!r:.40}, which is not {name}", where=file)
    most = MOST_BYTES if key.endswith("bytes") else LONGEST_SECONDS
    if hint in (int, float) and key.endswith(_QUANTITIES) and not -_ROUNDING <= value <= most:
        raise TriosimError(f"'{key}' is {value:.6g}, which no step has", where=file)
    return value


#: The ends of keys whose values are seconds and bytes, none of which is negative, but for the rounding of differences.
_QUANTITIES = ("time_s", "_seconds", "compute_s", "exposed_s", "waiting_s", "bytes")
_ROUNDING = 1e-9


#: The types of a JSON value by that of a field, and what to call them.
_EXPECTED: dict[Any, tuple[Any, str]] = {
    float: ((int, float), "a number"),
    int: (int, "a whole number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
}
