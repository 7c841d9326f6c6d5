"""Reads ``result.json``, with errors that name the file and the key."""

from __future__ import annotations

import gzip
import json
import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from triosim.errors import TriosimError
from triosim.results.values import ROWS, SCHEMA, ResultData


def read_result(path: Path) -> ResultData:
    """Return what a ``result.json`` holds. Raises ``TriosimError`` for whatever is no result."""
    values = read_json(path)
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else type(values).__name__
        raise TriosimError(
            f"is not a result of this version: its schema is {found!r}", where=str(path), fix=f"'{SCHEMA}' is read"
        )
    return typing.cast(ResultData, _read(ResultData, values, str(path), ""))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, gzipped or not."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return json.loads(content)
    except FileNotFoundError:
        raise TriosimError("no such file", where=str(path)) from None
    except (OSError, EOFError) as error:
        raise TriosimError(f"cannot be read: {error}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise TriosimError(f"is not JSON: {error}", where=str(path), fix="name a file that --output wrote") from None


def _read(kind: type, values: Any, file: str, place: str) -> Any:
    """Return a dataclass from a JSON object, field by field."""
    if not isinstance(values, dict):
        raise TriosimError(f"{place or 'the result'} is not an object", where=file)
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for column in fields(kind):
        name, hint = column.name, hints[column.name]
        key = f"{place}.{name}" if place else name
        if name not in values and column.default is not MISSING:
            continue  # a key that was added within the version, or what is not known of a row
        if name not in values:
            raise TriosimError(f"has no '{key}'", where=file, fix="name a file that --output wrote")
        found[name] = _value(name, hint, values[name], file, key)
    return kind(**found)


def _value(name: str, hint: Any, value: Any, file: str, key: str) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TriosimError(f"'{key}' is not a list", where=file)
        if name in ROWS:
            return tuple(_read(ROWS[name], row, file, f"{key}[{index}]") for index, row in enumerate(value))
        item, rest = typing.get_args(hint)
        if rest is not Ellipsis and len(value) != 2:
            raise TriosimError(f"'{key}' is not a pair", where=file)
        return tuple(_value(name, item, entry, file, f"{key}[{index}]") for index, entry in enumerate(value))
    if isinstance(hint, type) and is_dataclass(hint):
        return _read(hint, value, file, key)
    expected: Any = {float: (int, float), int: int, str: str, bool: bool}.get(hint, dict)
    if (
        isinstance(value, bool) is not (expected is bool)
        or not isinstance(value, expected)
        or (expected is not dict and not _finite(value))
    ):
        raise TriosimError(f"'{key}' is {value!r:.40}, which is not {_NAMES[expected]}", where=file)
    return value


def _finite(value: Any) -> bool:
    return isinstance(value, str) or math.isfinite(value)


_NAMES: dict[Any, str] = {
    (int, float): "a number",
    int: "a whole number",
    str: "text",
    bool: "true or false",
    dict: "an object",
}
