"""The fitted constants: at most ten over all tables, each with a unit, a meaning, physical bounds and what it was fitted on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.config.stacks import STACKS

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant: ``value`` lies between ``low`` and ``high``, outside of which it would mean something else.

    ``fitted_on`` is the table that it was fitted on; a ``whole`` number was chosen by trying.
    """

    name: str
    value: float
    unit: str
    meaning: str
    low: float
    high: float
    fitted_on: str
    whole: bool = False


def load() -> dict[str, Constant]:
    """Return the constants by name."""
    return {name: Constant(name=name, **_valued(entry)) for name, entry in json.loads(FILE.read_text("utf-8")).items()}


def _valued(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with its value: that of a software stack stands with triosim's own."""
    stack = entry.pop("stack", None)
    return entry if stack is None else {**entry, "value": STACKS[stack].launch_seconds}


def values(constants: Mapping[str, Constant] | None = None) -> dict[str, float]:
    """Return the values alone."""
    return {name: one.value for name, one in (load() if constants is None else constants).items()}


def save(fitted: Mapping[str, float]) -> None:
    """Write other values into the file; those of a software stack are triosim's, and are printed alone."""
    entries = json.loads(FILE.read_text("utf-8"))
    for name, value in fitted.items():
        if "stack" not in entries[name]:
            entries[name]["value"] = float(f"{value:.4g}")
    FILE.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
