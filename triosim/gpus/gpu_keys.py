"""The keys that describe a GPU in a file or in a name such as ``H100(power=500 W)``, and how their values are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from triosim.errors import OptionError, TriosimError, nearest
from triosim.gpus.gpu import Gpu
from triosim.trace import DTYPE_BYTES, dtype_name
from triosim.units import parse_bandwidth, parse_bytes

DTYPES = (*(dtype for dtype in DTYPE_BYTES if "float" in dtype and dtype != "float4_e2m1fn"), "tf32")
_PREFIXES = {"": 1.0, "p": 1e-12, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NUMBER = r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([pkKMGTP]?)"


def _scaled(unit: str, example: str, value: Any) -> float:
    """Return a number with an SI prefix before a unit, or a plain number."""
    if isinstance(value, str):
        match = re.fullmatch(rf"{_NUMBER}(?:{unit})?\s*", value)
        if match is None:
            raise ValueError(f"'{value}' is not a quantity; write one such as '{example}'")
        return float(match[1]) * _PREFIXES[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r:.40} is not a quantity; write one such as '{example}'")
    return float(value)


#: More than any figure of a machine in its unit, and more multiprocessors than any has.
_LARGEST, _MOST_SMS = 1e21, 100_000
#: More than any GPU has: FLOP/s, bytes of memory, Hz and watts.
_MOST_RATE, _MOST_CAPACITY, _MOST_HERTZ, _MOST_WATTS = 1e18, 1e15, 1e11, 1e5
#: Fewer FLOP/s, bytes per second or bytes than any GPU's: a number that lacks its unit, such as 3.35 for 3.35 TB/s.
_LEAST = 1e6


def _number(
    parse: Callable[[Any], float],
    value: Any,
    *,
    positive: bool = False,
    least: float = 0.0,
    most: float = _LARGEST,
    example: str = "",
) -> float:
    try:
        number = float(parse(value))
    except TriosimError as error:
        raise ValueError(str(error)) from None
    if not 0 <= number < math.inf or (positive and not number):
        raise ValueError(f"{value} is not {'a positive number' if positive else 'a number of 0 or more'}")
    if 0.0 < number < least:
        raise ValueError(f"{value} is less than any GPU has; is the unit missing? Write for example '{example}'")
    if number > most:
        raise ValueError(f"{value} is more than any GPU has; give at most {most:.0e}")
    return number


_energy = partial(_number, partial(_scaled, "J", "0.9 pJ"), positive=True)
_flop_rate = partial(
    _number,
    partial(_scaled, r"FLOPS?|FLOP/s|flops|flop/s", "67 TFLOP/s"),
    positive=True,
    least=_LEAST,
    most=_MOST_RATE,
    example="67 TFLOP/s",
)


def _rates(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping; write for example 'flops: {float32: 67 TFLOP/s, bfloat16: 989 TFLOP/s}'")
    return _by_dtype(value, _flop_rate)


def _energies(value: Any) -> dict[str, float]:
    """Return energies by dtype; one alone is that of half precision."""
    return _by_dtype(value if isinstance(value, dict) else {"float16": value}, _energy)


def _by_dtype(value: Mapping[Any, Any], parse: Callable[[Any], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for said, one in value.items():
        dtype = dtype_name(str(said))
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype '{said}'; {nearest(str(said), DTYPES)}")
        if dtype in found:
            raise ValueError(f"'{dtype}' is given twice")
        found[dtype] = parse(one)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not text")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{value!r:.60} is not a list of names")
    return tuple(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_SMS:
        raise ValueError(f"{value!r:.60} is not a whole number from 0 to {_MOST_SMS}")
    return value


#: The keys, and how each value is read. A key that is left out is as that of the other GPU, or not known.
KEYS: Mapping[str, Callable[[Any], Any]] = {
    "like": _text,
    "name": _text,
    "aliases": _names,
    "architecture": _text,
    "flops": _rates,
    "bandwidth": partial(_number, parse_bandwidth, positive=True, least=_LEAST, example="3.35 TB/s"),
    "capacity": partial(_number, parse_bytes, positive=True, least=_LEAST, most=_MOST_CAPACITY, example="80 GB"),
    "l2_bytes": partial(_number, parse_bytes),
    "sms": _count,
    "clock_hz": partial(
        _number, partial(_scaled, "Hz", "1.98 GHz"), least=_LEAST, most=_MOST_HERTZ, example="1.98 GHz"
    ),
    "nvlink_bandwidth": partial(_number, parse_bandwidth, least=_LEAST, example="450 GB/s"),
    "pcie_bandwidth": partial(_number, parse_bandwidth, least=_LEAST, example="64 GB/s"),
    "tdp_watts": partial(_number, partial(_scaled, "W", "700 W"), least=1.0, most=_MOST_WATTS, example="700 W"),
    "exponentials": partial(_number, partial(_scaled, "/s", "10.7 T/s")),
    "joules_per_flop": _energies,
    "price_per_hour": partial(_number, partial(_scaled, "", "2.5")),
    "source": _text,
}
#: Shorter words for keys.
_SHORT: Mapping[str, str] = {
    "power": "tdp_watts", "clock": "clock_hz", "energy": "joules_per_flop", "memory": "capacity"
}  # fmt: skip


def values_of(mapping: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, Any]:
    """Return the values of a mapping by the names of ``Gpu``'s fields; those that are None are left out.

    Raises ``OptionError`` for the first key that is wrong, with the place that ``where`` says.
    """
    values: dict[str, Any] = {}
    for said, value in mapping.items():
        key = _SHORT.get(said, said)
        if key not in KEYS:
            raise OptionError("unknown key", where=where(said), fix=nearest(str(said), (*KEYS, *_SHORT)))
        if key in values:
            raise OptionError(f"'{key}' is given twice", where=where(said))
        if value is not None:
            try:
                values[key] = KEYS[key](value)
            except ValueError as error:
                raise OptionError(str(error), where=where(said)) from None
    return values


def changed(based: Gpu, values: Mapping[str, Any], *, name: str) -> Gpu:
    """Return a GPU like another one but for some values: with another clock, its peaks are in proportion."""
    found = {key: getattr(based, key) for key in Gpu.__dataclass_fields__ if key != "aliases"}
    found |= {"name": name, "source": f"like {based.name}", "like": based.like or based.name, **values}
    clock = values.get("clock_hz", 0.0) / based.clock_hz if based.clock_hz else 0.0
    scaled = {dtype: rate * (clock or 1.0) for dtype, rate in based.flops.items()}
    return Gpu(**{**found, "flops": {**scaled, **values.get("flops", {})}})
