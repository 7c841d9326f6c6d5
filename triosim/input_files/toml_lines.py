"""Parses TOML with the line number of every key, for error messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from triosim.errors import OptionError, TriosimError
from triosim.input_files.limits import YAML_BYTES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_NAME = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")


def parse(text: str, source: str, error: type[TriosimError] = OptionError) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values of a TOML text by dotted keys (``training.seq_len``), and the lines on which these stand.

    Raises ``error`` that names the line of what is no TOML.
    """
    YAML_BYTES.check(len(text), source, error)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failed:
        message, line = str(failed), re.search(r"line (\d+)", str(failed))
        where = source if line is None else f"{source}:{line[1]}"
        what = re.sub(r" \(at .*\)$", "", message)
        raise error(f"is not TOML: {what}", where=where) from None
    except (RecursionError, ValueError):
        raise error("is not TOML that can be read", where=source) from None
    return dict(dotted(content)), dict(_lines(text))


def dotted(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings by dotted keys; an empty mapping is a value."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield dotted keys with their lines; within a text or list of several lines nothing looks like a key that is read."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _TABLE.match(line):
            table = _plain(found[1])
            yield table, number
        elif found := _KEY.match(line):
            yield f"{table}.{_plain(found[1])}".lstrip("."), number


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
