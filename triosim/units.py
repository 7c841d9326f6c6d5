"""Parses quantities with units, and ranges of ranks, from files and options, and formats them for people.

Inside triosim everything is seconds, bytes, bytes per second and FLOPs. A file may say ``450 GB/s``, ``400 Gb/s``,
``500 ns`` or ``25 MB``; the prefixes are those of the SI (GB = 10^9 bytes) and of IEC 80000-13 (GiB = 2^30 bytes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from triosim.errors import TriosimError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "ps": 1e-12, "min": 60.0}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|nan))\s*([A-Za-zµμ/]*)\s*")

#: Longer than any step, and small enough that sums of times stay finite.
LONGEST_SECONDS = 1e9
#: Less than any operator takes: a hundredth of a cycle of a GPU's clock.
SHORTEST_SECONDS = 1e-12
#: More than any memory holds, and than any link or memory carries.
MOST_BYTES, _MOST_BANDWIDTH, _LEAST_BANDWIDTH = 1e21, 1e18, 1e-3
#: The longest range of ranks.
_MOST_RANKS = 1_000_000

Quantity = str | int | float


def parse_bytes(value: Quantity) -> float:
    """Return a number of bytes from ``25 MB``, ``1 GiB``, ``100 Mb`` or ``100 Mbit`` or a plain number of bytes."""
    expected = "a size such as '25 MB' or '1 GiB'"
    number, unit = _split(value, expected)
    return _checked(number * _bytes_per(unit, value, expected) if unit else number, MOST_BYTES, value, "bytes")


def parse_bandwidth(value: Quantity) -> float:
    """Return bytes per second from ``450 GB/s``, or bits in ``400 Gb/s``, ``400 Gbit/s``, ``400 Gbps``; or a plain number."""
    expected = "a bandwidth such as '450 GB/s' or '400 Gb/s'"
    number, unit = _split(value, expected)
    in_a_second = re.fullmatch(r"(.*?)(?:/s|(?<=b)ps)", unit)
    if unit and in_a_second is None:
        raise _unknown(unit, value, expected)
    rate = number if in_a_second is None else number * _bytes_per(in_a_second[1], value, expected)
    return _checked(rate, _MOST_BANDWIDTH, value, "bytes per second", _LEAST_BANDWIDTH)


def parse_time(value: Quantity) -> float:
    """Return seconds from ``500 ns``, ``1.5 us``, ``20 ms`` or a plain number of seconds."""
    expected = "a time such as '500 ns' or '1.5 us'"
    number, unit = _split(value, expected)
    if unit and unit not in _SECONDS:
        raise _unknown(unit, value, expected)
    # Dividing by a power of ten, which is exact, gives the float nearest to what was written (500 ns is 5e-07).
    scale = _SECONDS[unit] if unit else 1.0
    return _checked(number / round(1 / scale) if scale < 1 else number * scale, LONGEST_SECONDS, value, "seconds")


def has_unit(value: Quantity) -> bool:
    """Whether a quantity that can be parsed is a text with a unit."""
    return isinstance(value, str) and bool(_split(value, "a quantity")[1])


def _checked(number: float, most: float, value: Quantity, unit: str, least: float = 0.0) -> float:
    """Return a finite number that is not beyond what any machine has; others are left to those who ask for it."""
    if 0.0 < number < least:
        raise TriosimError(f"'{value}' is less than any machine has", fix=f"give at least {least:g} {unit}")
    if math.isfinite(number) and abs(number) > most:
        raise TriosimError(f"'{value}' is more than any machine has", fix=f"give at most {most:.0e} {unit}")
    return number


def _split(value: Quantity, expected: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TriosimError(f"{value!r} is not a quantity", fix=f"write {expected}")
    if isinstance(value, (int, float)):
        try:
            return float(value), ""
        except OverflowError:
            return math.inf, ""
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise TriosimError(f"'{value}' is not a quantity", fix=f"write {expected}")
    number = float(match.group(1))
    if math.isinf(number) and "inf" not in match.group(1):
        raise TriosimError(f"'{value}' is more than any machine has", fix=f"write {expected}")
    return number, match.group(2)


def _bytes_per(unit: str, value: Quantity, expected: str) -> float:
    short = re.sub("bits?$", "b", unit)
    prefix, last = short[:-1], short[-1:]
    if last in ("B", "b"):
        factor = _DECIMAL.get(prefix, _BINARY.get(prefix))
        if factor is not None:
            return factor if last == "B" else factor / 8
    raise _unknown(unit, value, expected)


def _unknown(unit: str, value: Quantity, expected: str) -> TriosimError:
    return TriosimError(f"unknown unit '{unit}' in '{value}'", fix=f"write {expected}")


def format_time(seconds: float) -> str:
    """Return seconds as a person reads them: ``12.3 ms``, ``450 us``, ``1.25 s``."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def whole_nanoseconds(seconds: float) -> int:
    """Return seconds as the nearest whole number of nanoseconds."""
    return round(seconds * 1e9)


def as_microseconds(nanoseconds: int) -> str:
    """Return whole nanoseconds as trace events have times: microseconds with three decimals."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def slice_times(begin: int, end: int, first: int) -> str:
    """Return the times of a slice of a trace that begins and ends at these nanoseconds, and whose track does at ``first``.

    The start and the duration, added as viewers add floats, do not pass the end, which may be where the next slice begins:
    where they would, the duration is half a nanosecond less. speedscope counts from the first slice of a track, and takes a
    slice that ends after the next one begins for its caller.
    """
    duration = as_microseconds(end - begin)
    at, until, origin = (float(as_microseconds(moment)) for moment in (begin, end, first))
    passes = at + float(duration) > until or (at - origin) + float(duration) > until - origin
    if passes:
        duration = f"{as_microseconds(end - begin - 1)}5"
    return f'"ts":{as_microseconds(begin)},"dur":{duration}'


def format_bytes(nbytes: float) -> str:
    """Return bytes as a person reads them, in powers of ten: ``1.64 GB``."""
    return _scaled(nbytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def format_bandwidth(rate: float) -> str:
    """Return bytes per second as a person reads them: ``450 GB/s``."""
    return "unlimited" if math.isinf(rate) else format_bytes(rate) + "/s"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {units[-1][1] if value == 0 and units[-1][1] == 'B' else units[0][1]}"
    for scale, name in units:
        if abs(value) >= scale * 0.9995:
            whole = name == "B" and value == int(value)
            return f"{value:.0f} B" if whole else f"{_three(value / scale)} {name}"
    scale, name = units[-1]
    return f"{value / scale:.3g} {name}"


def _three(number: float) -> str:
    """Three significant digits without an exponent: 1.25, 12.5, 125, 1250."""
    magnitude = abs(number)
    digits = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{number:.{digits}f}"


def format_rate(rate: float) -> str:
    """Return samples per second with three significant digits or more, so that a slow step's are not shown as none."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:#.3g}"


def format_ranks(ranks: Iterable[int], most: int | None = None) -> str:
    """Return ``0-3,8`` for ranks in any order; of more than ``most`` such parts, the first ones and an ellipsis."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    return ",".join(texts if most is None or len(texts) <= most else [*texts[:most], "..."])


def parse_ranks(text: str) -> list[int]:
    """Return the ranks of ``0-3,8``. Raises ``ValueError`` for anything else."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found = range(int(first), int(last or first) + 1)
        if not found or len(found) > _MOST_RANKS:
            raise ValueError(f"'{part}' names no ranks, or too many")
        ranks.extend(found)
    return ranks
