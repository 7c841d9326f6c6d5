"""A point of a search space: the values that the options of a space have there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

#: What an option of a point may be; ``"2*pp"`` stands for twice the pipeline's size.
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Point:
    """The values of a space's axes by name, sorted by name. Two points with equal settings are equal."""

    settings: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, settings: Mapping[str, Value]) -> Point:
        """Return the point with these settings."""
        return cls(tuple(sorted(settings.items())))

    @classmethod
    def read(cls, key: str) -> Point:
        """Return the point of a ``key``. Raises ``ValueError`` for anything else."""
        return cls.of(json.loads(key))

    @property
    def key(self) -> str:
        """The settings as canonical JSON, which identifies the point in a study."""
        return json.dumps(dict(self.settings), sort_keys=True, separators=(",", ":"))

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Return the value of an axis, or ``default`` where the space has no such axis."""
        return dict(self.settings).get(name, default)

    def with_value(self, name: str, value: Value) -> Point:
        """Return the point with another value of an axis."""
        return Point.of({**dict(self.settings), name: value})

    def __str__(self) -> str:
        """The settings as a person reads them: ``pp=2 tp=4``."""
        return " ".join(f"{name}={_shown(value)}" for name, value in self.settings)


def _shown(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
