"""Checks of single values in triosim's own files; errors name the file and the key."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from triosim.errors import TraceError, nearest

LARGEST_INTEGER = 2**63 - 1


class Checks:
    """Checks values one by one. ``key_path`` is a value's key, as ``operators[3].seconds``, below the path ``within``."""

    def __init__(self, file: str, within: str = "") -> None:
        self.file = file
        self.within = within

    def rows(self, value: Any, key_path: str, example: str = "[...]") -> list[Any]:
        """Return a list."""
        if type(value) is not list:
            self.fail(key_path, f"{shown(value)} is not a list", f"write {example}")
        found: list[Any] = value
        return found

    def mapping(self, value: Any, key_path: str, example: str) -> dict[str, Any]:
        """Return a JSON object with any keys."""
        if type(value) is not dict:
            self.fail(key_path, f"{shown(value)} is not an object", f"write {example}")
        found: dict[str, Any] = value
        return found

    def keys(self, item: Any, known: dict[str, bool], key_path: str) -> None:
        """Check that ``item`` is an object with all required keys and no unknown ones."""
        for key in self.mapping(item, key_path, f"{{...}} with {', '.join(known)}"):
            if key not in known:
                self.fail(f"{key_path}.{key}" if key_path else key, "is an unknown key", nearest(key, known))
        for key, required in known.items():
            if required and key not in item:
                self.fail(f"{key_path}.{key}" if key_path else key, "is absent", "it is required")

    def integer(self, value: Any, key_path: str, least: int = 0) -> int:
        """Return a whole number from ``least`` to 2^63 - 1."""
        if type(value) is not int:
            self.fail(key_path, f"{shown(value)} is not an integer")
        if value < least:
            what = "negative" if value < 0 else "too small"
            self.fail(key_path, f"{value} is {what}", f"it must be at least {least}")
        if value > LARGEST_INTEGER:
            self.fail(key_path, f"{shown(value)} is too large", "it must be below 2^63")
        found: int = value
        return found

    def number(self, value: Any, key_path: str, most: float) -> float | None:
        """Return a finite number from 0 to ``most``; None stays None."""
        if value is None or (type(value) is float and 0 <= value <= most):
            found: float | None = value
            return found
        if type(value) is not float and type(value) is not int:
            self.fail(key_path, f"{shown(value)} is not a number")
        if value != value or value in (math.inf, -math.inf):
            self.fail(key_path, f"{value} is not a finite number", "JSON has no NaN and no Infinity")
        if value < 0:
            self.fail(key_path, f"{shown(value)} is negative", "it must be 0 or more")
        if value > most:
            self.fail(key_path, f"{shown(value)} is too large", f"it must be at most {most:g}")
        return float(value)

    def text(self, value: Any, key_path: str, *, filled: bool = False) -> str:
        """Return a text that can be written as UTF-8."""
        if type(value) is not str:
            self.fail(key_path, f"{shown(value)} is not a text")
        if filled and not value:
            self.fail(key_path, "is empty")
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(key_path, f"{shown(value)} has an unpaired surrogate, which is no character")
        found: str = value
        return found

    def choice(self, value: Any, known: tuple[str, ...], key_path: str) -> None:
        """Check that ``value`` is one of the known words."""
        if type(value) is not str:
            self.fail(key_path, f"{shown(value)} is not a text", f"known: {', '.join(known)}")
        if value not in known:
            self.fail(key_path, f"{shown(value)} is unknown", nearest(value, known))

    def fail(self, key_path: str, what: str, fix: str | None = None) -> NoReturn:
        """Raise ``TraceError`` that names the file and the key."""
        # A key from the file may hold what a terminal cannot show.
        key_path = f"{self.within}.{key_path}" if self.within and key_path else self.within or key_path
        key_path = key_path if len(key_path) < 100 else key_path[:97] + "..."
        key_path = key_path.encode("utf-8", "backslashreplace").decode()
        raise TraceError(what, where=f"{self.file}: {key_path}", fix=fix)


def shown(value: object) -> str:
    """Return a value as JSON has it, shortened."""
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 2**64 else "an integer of many digits"
    return text if len(text) <= 60 else text[:57] + "..."
