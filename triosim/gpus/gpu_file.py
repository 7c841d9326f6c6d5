"""A user's own GPU from a YAML file: the catalogue's keys, with units where a person would write them.

Errors name file, line and key. What ``triosim gpus NAME --format json`` prints is such a file, but for its names.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from triosim import gpus, yaml_lines
from triosim.errors import OptionError, TriosimError, nearest
from triosim.trace import DTYPE_BYTES, dtype_name
from triosim.units import parse_bandwidth, parse_bytes
from triosim.yaml_lines import Path as Place

LARGEST_FILE = 1_000_000  # bytes
DTYPES = (*(dtype for dtype in DTYPE_BYTES if "float" in dtype), "tf32")
#: The keys that a GPU needs, with what one may say.
_REQUIRED = {
    "name": "my GPU",
    "flops": "{float32: 67 TFLOP/s}",
    "bandwidth": "3.35 TB/s",
    "capacity": "80 GB",
}
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NUMBER = r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKMGTP]?)"


def _scaled(value: Any, unit: str, example: str) -> float:
    """Return a number with an SI prefix before a unit, or a plain number."""
    if isinstance(value, str):
        match = re.fullmatch(rf"{_NUMBER}(?:{unit})?\s*", value)
        if match is None:
            raise ValueError(f"'{value}' is not a quantity; write one such as '{example}'")
        return float(match[1]) * _PREFIXES[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r:.40} is not a quantity; write one such as '{example}'")
    return float(value)


def _rate(value: Any) -> float:
    return _positive(_scaled(value, r"FLOPS?|FLOP/s|flops|flop/s", "67 TFLOP/s"), value)


def _clock(value: Any) -> float:
    return _not_negative(_scaled(value, "Hz", "1.98 GHz"), value)


def _power(value: Any) -> float:
    return _not_negative(_scaled(value, "W", "700 W"), value)


def _energy(value: Any) -> float:
    if isinstance(value, str) and value.strip().endswith("pJ"):
        return 1e-12 * _energy(value.strip().removesuffix("pJ"))
    return _not_negative(_scaled(value, "J", "0.9 pJ"), value)


def _price(value: Any) -> float:
    return _not_negative(_scaled(value, "", "2.5"), value)


def _positive_bandwidth(value: Any) -> float:
    return _positive(_quantity(parse_bandwidth, value), value)


def _bandwidth(value: Any) -> float:
    return _not_negative(_quantity(parse_bandwidth, value), value)


def _positive_bytes(value: Any) -> float:
    return _positive(_quantity(parse_bytes, value), value)


def _bytes(value: Any) -> float:
    return _not_negative(_quantity(parse_bytes, value), value)


def _quantity(parse: Any, value: Any) -> float:
    try:
        return float(parse(value))
    except TriosimError as error:
        raise ValueError(str(error)) from None


def _positive(number: float, value: Any) -> float:
    if not 0 < number < math.inf:
        raise ValueError(f"{value} is not a positive number")
    return number


def _not_negative(number: float, value: Any) -> float:
    if not 0 <= number < math.inf:
        raise ValueError(f"{value} is not a number of 0 or more")
    return number


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
        found[dtype] = _rate(rate)
    return found


class GpuModel(BaseModel):
    """The keys of a user's GPU. What is left out is what ``like`` says, or is not known."""

    model_config = ConfigDict(extra="forbid", strict=True)

    like: str | None = None
    name: str | None = None
    aliases: list[str] | None = None
    architecture: str | None = None
    flops: Annotated[dict[str, float], BeforeValidator(_rates)] | None = None
    bandwidth: Annotated[float, BeforeValidator(_positive_bandwidth)] | None = None
    capacity: Annotated[float, BeforeValidator(_positive_bytes)] | None = None
    l2_bytes: Annotated[float, BeforeValidator(_bytes)] | None = None
    sms: int | None = None
    clock_hz: Annotated[float, BeforeValidator(_clock)] | None = None
    nvlink_bandwidth: Annotated[float, BeforeValidator(_bandwidth)] | None = None
    pcie_bandwidth: Annotated[float, BeforeValidator(_bandwidth)] | None = None
    tdp_watts: Annotated[float, BeforeValidator(_power)] | None = None
    joules_per_flop: Annotated[float, BeforeValidator(_energy)] | None = None
    price_per_hour: Annotated[float, BeforeValidator(_price)] | None = None
    source: str | None = None


def read(file: str) -> gpus.Gpu:
    """Return the GPU that a file describes. Raises ``OptionError``."""
    try:
        mapping, lines = yaml_lines.parse(_text(file), file)
    except TriosimError as error:
        raise OptionError(error.what, where=error.where, fix=error.fix) from None
    if not isinstance(mapping, dict):
        raise OptionError("not a mapping of keys to values", where=file, fix="begin with 'name: my GPU'")
    try:
        said = GpuModel.model_validate(mapping).model_dump(exclude_none=True)
    except ValidationError as error:
        raise _placed(error, file, lines) from None
    like = said.pop("like", None)
    if like is not None:
        based = gpus.get(like)
        if based is None:
            fix = nearest(like, {gpu.name for gpu in gpus.catalogue()})
            raise OptionError(f"there is no GPU '{like}' to be like", where=_where(file, lines, ("like",)), fix=fix)
        said = _like(based, said, Path(file).stem)
    for key, example in _REQUIRED.items():
        if key not in said:
            raise OptionError(f"'{key}' is missing", where=file, fix=f"write for example '{key}: {example}'")
    if "float32" not in said["flops"]:
        raise OptionError("'float32' is missing", where=_where(file, lines, ("flops",)), fix="give its peak rate")
    said.setdefault("source", file)
    return gpus.Gpu(**{**said, "aliases": tuple(said.get("aliases", ()))})


def _like(based: gpus.Gpu, said: dict[str, Any], file: str) -> dict[str, Any]:
    """Return what a file says of a GPU, and of another one whatever it does not say; names are the file's own."""
    found = {key: getattr(based, key) for key in gpus.Gpu.__dataclass_fields__ if key != "aliases"}
    found |= {"name": f"{based.name} of {file}", "source": f"like {based.name}"}
    return {**found, **said, "flops": {**based.flops, **said.get("flops", {})}}


def _text(file: str) -> str:
    place = Path(file)
    try:
        if place.is_file() and place.stat().st_size > LARGEST_FILE:
            raise OptionError(f"larger than {LARGEST_FILE} bytes", where=file)
        return place.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError("not a text file", where=file, fix="a GPU file is YAML in UTF-8") from None
    except (OSError, ValueError) as error:
        what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise OptionError(what, where=file, fix="give a YAML file, or a name that 'triosim gpus' lists") from None


def _placed(error: ValidationError, file: str, lines: dict[Place, int]) -> OptionError:
    """Return the first of pydantic's errors, in our words."""
    errors = error.errors(include_url=False)
    found = min(errors, key=lambda one: lines.get(one["loc"][:1], 0))
    where, kind = _where(file, lines, found["loc"][:1]), found["type"]
    if kind == "extra_forbidden":
        return OptionError("unknown key", where=where, fix=nearest(str(found["loc"][0]), GpuModel.model_fields))
    if kind == "value_error":
        return OptionError(str(found["ctx"]["error"]), where=where)
    return OptionError(f"{found['input']!r:.60} is not right here: {found['msg'][:1].lower()}{found['msg'][1:]}", where)


def _where(file: str, lines: dict[Place, int], path: Place) -> str:
    line = f":{lines[path]}" if path in lines else ""
    return f"{file}{line}: {'.'.join(str(part) for part in path)}"
