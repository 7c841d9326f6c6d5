"""The report of a validation script: rows that compare two figures, and the difference that triosim claims."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class DataAbsent(Exception):
    """The measured data that a script needs are not on this machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: ``error`` is relative, ``claim`` the largest that the project claims."""

    what: str
    against: str
    cases: int
    error: float
    claim: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the claim."""
        return self.error <= self.claim


def relative(value: float, reference: float) -> float:
    """Return the relative difference of two figures."""
    return abs(value - reference) / abs(reference) if reference else abs(value)


def data(name: str) -> Path:
    """Return a file of measured data: under ``TRIOSIM_DATA``, or in the data folder beside the checkout."""
    root = os.environ.get("TRIOSIM_DATA")
    folder = Path(root) if root else Path(__file__).resolve().parents[2] / "shared" / "data"
    path = folder / name
    if not path.exists():
        raise DataAbsent(f"{name} is not there (set TRIOSIM_DATA)")
    return path
