"""Finds a GPU by its name, or reads a user's own from a YAML file.

A file has the keys of the catalogue, with units where a person would write them. With ``like``, it gives only what differs
from another GPU. Errors name file, line and key. What ``triosim gpus NAME --format json`` prints is such a file; only its names
must change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from triosim import yaml_lines
from triosim.errors import OptionError, TriosimError, nearest
from triosim.gpus.gpu import Gpu
from triosim.gpus.known_gpus import catalogue, get, is_shipped, register
from triosim.trace import DTYPE_BYTES, dtype_name
from triosim.units import parse_bandwidth, parse_bytes
from triosim.yaml_lines import Path as KeyPath

LARGEST_FILE = 1_000_000  # bytes
DTYPES = (*(dtype for dtype in DTYPE_BYTES if "float" in dtype), "tf32")
#: The required keys, each with an example.
_REQUIRED = {"name": "my GPU", "flops": "{float32: 67 TFLOP/s}", "bandwidth": "3.35 TB/s", "capacity": "80 GB"}
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


def _number(parse: Callable[[Any], float], value: Any, *, positive: bool = False) -> float:
    try:
        number = float(parse(value))
    except TriosimError as error:
        raise ValueError(str(error)) from None
    if not 0 <= number < math.inf or (positive and not number):
        raise ValueError(f"{value} is not {'a positive number' if positive else 'a number of 0 or more'}")
    return number


_flop_rate = partial(_number, partial(_scaled, r"FLOPS?|FLOP/s|flops|flop/s", "67 TFLOP/s"), positive=True)


def _rates(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping; write for example 'flops: {float32: 67 TFLOP/s, bfloat16: 989 TFLOP/s}'")
    found: dict[str, float] = {}
    for said, rate in value.items():
        dtype = dtype_name(str(said))
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype '{said}'; {nearest(str(said), DTYPES)}")
        if dtype in found:
            raise ValueError(f"'{dtype}' is given twice")
        found[dtype] = _flop_rate(rate)
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
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.60} is not a whole number")
    return value


#: The keys of a file, and how each value is read. A key that is left out is as ``like`` says, or not known.
_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "like": _text,
    "name": _text,
    "aliases": _names,
    "architecture": _text,
    "flops": _rates,
    "bandwidth": partial(_number, parse_bandwidth, positive=True),
    "capacity": partial(_number, parse_bytes, positive=True),
    "l2_bytes": partial(_number, parse_bytes),
    "sms": _count,
    "clock_hz": partial(_number, partial(_scaled, "Hz", "1.98 GHz")),
    "nvlink_bandwidth": partial(_number, parse_bandwidth),
    "pcie_bandwidth": partial(_number, parse_bandwidth),
    "tdp_watts": partial(_number, partial(_scaled, "W", "700 W")),
    "joules_per_flop": partial(_number, partial(_scaled, "J", "0.9 pJ")),
    "price_per_hour": partial(_number, partial(_scaled, "", "2.5")),
    "source": _text,
}


def _read(file: str) -> Gpu:
    """Return the GPU that a file describes."""
    try:
        mapping, lines = yaml_lines.parse(_content(file), file)
    except TriosimError as error:
        raise OptionError(error.what, where=error.where, fix=error.fix) from None
    if not isinstance(mapping, dict):
        raise OptionError("not a mapping of keys to values", where=file, fix="begin with 'name: my GPU'")
    values = _values(mapping, file, lines)
    like = values.pop("like", None)
    if like is not None:
        based = get(like)
        if based is None:
            fix = nearest(like, {gpu.name for gpu in catalogue()})
            raise OptionError(f"the catalogue has no GPU '{like}'", where=_where(file, lines, "like"), fix=fix)
        values = _like(based, values, Path(file).stem)
    for key, example in _REQUIRED.items():
        if key not in values:
            raise OptionError(f"'{key}' is missing", where=file, fix=f"write for example '{key}: {example}'")
    if "float32" not in values["flops"]:
        raise OptionError("'float32' is missing", where=_where(file, lines, "flops"), fix="give its peak rate")
    gpu = Gpu(**{"source": file, **values})
    for name in (gpu.name, *gpu.aliases):
        if is_shipped(name):
            fix = "give it a name of its own, or write 'like: H100-SXM' to take its other figures"
            raise OptionError(f"'{name}' is a GPU of the catalogue", where=file, fix=fix)
    return gpu


def _values(mapping: Mapping[str, Any], file: str, lines: Mapping[KeyPath, int]) -> dict[str, Any]:
    """Return the values of a file by key, in the order of their lines. Raises ``OptionError`` for the first that is wrong."""
    values = {}
    for key in sorted(mapping, key=lambda key: lines.get((key,), 0)):
        if key not in _KEYS:
            raise OptionError("unknown key", where=_where(file, lines, key), fix=nearest(str(key), _KEYS))
        if mapping[key] is not None:
            try:
                values[key] = _KEYS[key](mapping[key])
            except ValueError as error:
                raise OptionError(str(error), where=_where(file, lines, key)) from None
    return values


def _like(based: Gpu, values: dict[str, Any], file: str) -> dict[str, Any]:
    """Return the values of a file, and those of another GPU for every key that the file leaves out, except the names."""
    found = {key: getattr(based, key) for key in Gpu.__dataclass_fields__ if key != "aliases"}
    found |= {"name": f"{based.name} of {file}", "source": f"like {based.name}"}
    return {**found, **values, "flops": {**based.flops, **values.get("flops", {})}}


def _content(file: str) -> str:
    path = Path(file)
    try:
        if path.is_file() and path.stat().st_size > LARGEST_FILE:
            raise OptionError(f"larger than {LARGEST_FILE} bytes", where=file)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError("not a text file", where=file, fix="a GPU file is YAML in UTF-8") from None
    except (OSError, ValueError) as error:
        what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise OptionError(what, where=file, fix="give a YAML file, or a name that 'triosim gpus' lists") from None


def _where(file: str, lines: Mapping[KeyPath, int], key: str) -> str:
    return f"{file}:{lines[key,]}: {key}" if (key,) in lines else f"{file}: {key}"


def find(name: str | PathLike[str]) -> Gpu:
    """Return the GPU of a name, as PyTorch reports it or shorter, in any case, or of a user's file (``my_gpu.yaml``).

    A GPU of a file is known by its name from then on. Raises ``OptionError`` that suggests the nearest name, or names what is
    wrong in the file.
    """
    text = fspath(name)
    found = get(text)
    if found is None and _is_file(text):
        return register(_read(text))
    if found is None:
        names = {alias for gpu in catalogue() for alias in (gpu.name, *gpu.aliases)}
        fix = nearest(text, names) if nearest(text, names)[:3] == "did" else nearest("", {g.name for g in catalogue()})
        raise OptionError(f"there is no GPU '{text}' in the catalogue", fix=f"{fix}; or give a file of your own")
    return found


def _is_file(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml", ".json")) or ("/" in text and Path(text).is_file())
