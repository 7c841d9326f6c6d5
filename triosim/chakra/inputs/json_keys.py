"""The keys of ASTRA-sim's JSON files, checked for their types as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triosim.errors import TopologyError


class Keys:
    """Reads the keys of an object; what is of another type is an error with the file and the key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self._where = values, where
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def unread(self, *ignored: str) -> list[str]:
        """Return the keys that nobody asked for, but for those that are known to have no effect."""
        return [key for key in self._values if key not in self._read and key not in ignored]

    def number(self, key: str, default: float) -> float:
        """Return a number of 0 or more."""
        value = self._of(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
            raise self._wrong(key, "a number of 0 or more")
        return value

    def whole(self, key: str, default: int) -> int:
        """Return a whole number of 0 or more; a fraction is cut off, as ASTRA-sim does."""
        return int(self.number(key, default))

    def flag(self, key: str) -> bool:
        """Return whether a key is there and not 0."""
        value = self._of(key, 0)
        if not isinstance(value, (bool, int)):
            raise self._wrong(key, "0 or 1")
        return value != 0

    def text(self, key: str) -> str | None:
        """Return a text, or None where the key is absent."""
        value = self._of(key, None)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, or None where the key is absent."""
        value = self._of(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def choice(self, key: str, choices: Iterable[str]) -> str | None:
        """Return one of some words, or None where the key is absent."""
        value = self.text(key)
        if value is not None and value not in choices:
            raise self._wrong(key, f"one of {', '.join(choices)}")
        return value

    def _of(self, key: str, default: Any) -> Any:
        self._read.add(key)
        return self._values.get(key, default)

    def _wrong(self, key: str, right: str) -> TopologyError:
        return TopologyError(f"'{key}' is {self._values[key]!r}", where=self._where, fix=f"write {right}")
