"""An axis without a list of values: all numbers from one to another, as ``1 MB..200 MB`` writes it.

Numbers that span a factor of ten or more are drawn on a logarithmic scale. What is drawn is rounded to three digits, so that a
command shows the number that was simulated.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from triosim.configuration_search.point import Value
from triosim.errors import OptionError, TriosimError
from triosim.units import parse_bandwidth, parse_bytes, parse_time

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_INTERVAL = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z/]*)\s*\.\.\s*({_NUMBER})\s*([A-Za-z/]*)\s*")
#: The ratio of the ends from which on a scale is logarithmic.
_LOGARITHMIC = 10.0


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from ``low`` to ``high``, both included, in a ``unit``; whole numbers alone where both are ``whole``."""

    low: float
    high: float
    unit: str
    whole: bool

    @classmethod
    def read(cls, text: object, where: str) -> Interval | None:
        """Return the interval of ``1 MB..200 MB``; None for any other value. Raises ``OptionError`` for an empty one."""
        match = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            return None
        low, unit, high, other = match.groups()
        ratio = _ratio(unit, other) if unit and other else 1.0
        if ratio is None:
            raise OptionError(f"'{unit}' and '{other}' do not measure the same", where=where, fix="write one unit")
        whole = low.isdecimal() and high.isdecimal() and not (unit or other)
        found = cls(float(low), float(high) * ratio, unit or other, whole)
        if not found.low < found.high:
            raise OptionError(f"'{text}' is empty", where=where, fix="write the smaller number first: 1..8")
        return found

    @property
    def logarithmic(self) -> bool:
        """Whether its numbers are drawn on a logarithmic scale."""
        return self.low > 0 and self.high / self.low >= _LOGARITHMIC

    def value(self, number: float) -> Value:
        """Return a number as an option takes it: whole, or rounded, with the unit."""
        if self.whole:
            return round(number)
        rounded = min(max(float(f"{number:.3g}"), self.low), self.high)
        return f"{rounded:.12g} {self.unit}" if self.unit else rounded

    def __str__(self) -> str:
        ends = (f"{end:.12g} {self.unit}".strip() for end in (self.low, self.high))
        return "..".join(ends)


def _ratio(unit: str, other: str) -> float | None:
    """Return how many of a unit another one is; None where they measure different quantities."""
    for parse in (parse_bytes, parse_bandwidth, parse_time):
        with suppress(TriosimError):
            return parse(f"1 {other}") / parse(f"1 {unit}")
    return 1.0 if unit == other else None
