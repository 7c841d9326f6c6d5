"""The GPUs that are known by name: the catalogue that ships with triosim, and users' files that were read.

A GPU is found by the name that PyTorch reports or by a shorter one, in any case; ``H100(power=500 W, bandwidth=2.4 TB/s)`` is
one that differs from it in some keys of a GPU file. Each entry of ``triosim/gpus/gpus.json`` names its source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from triosim.errors import OptionError, TriosimError
from triosim.gpus.gpu import Gpu
from triosim.gpus.gpu_keys import changed, values_of
from triosim.input_files import yaml_lines

#: GPUs of users' files that were read, so that compute models find them by name.
_read: dict[str, Gpu] = {}
#: Keys of a file that say what a GPU is called.
_NAMING = ("like", "name", "aliases", "architecture", "source")
_WITH_KEYS = re.compile(r"(.*?[^\s(])\s*\((.*)\)\s*", re.DOTALL)
_MAKERS = ("NVIDIA ", "Tesla ", "AMD ", "Intel ")
_VENDORS = re.compile(r"\b(nvidia|tesla|quadro|geforce|amd|instinct|intel)\b|\((r|tm)\)")


def get(name: str) -> Gpu | None:
    """Return the GPU of a name that is in the catalogue, or that a user's file gave it, with the keys after it; or None.

    Raises ``OptionError`` for a wrong key of a known GPU.
    """
    found = _WITH_KEYS.fullmatch(name)
    based = _known(found[1]) if found else None
    return _known(name) if found is None or based is None else _with_keys(based, found[2], name)


def _known(name: str) -> Gpu | None:
    return _read.get(normalised(name)) or _by_key().get(normalised(name))


def _with_keys(based: Gpu, arguments: str, text: str) -> Gpu:
    """Return a GPU with other values for the keys of ``power=500 W, bandwidth=2.4 TB/s``."""
    try:
        pairs = yaml_lines.arguments(arguments, text)
    except TriosimError as error:
        raise OptionError(error.what, where=error.where, fix=error.fix) from None
    said = {}
    for key, value in pairs:
        if key in said or key in _NAMING or not key:
            what = f"'{key}' is given twice" if key in said else f"'{key or value}' is no key of a board"
            raise OptionError(what, where=text, fix=f"write for example '{based.name}(power=500 W)'")
        said[key] = value
    values = values_of(said, lambda key: f"{text}: {key}")
    return changed(based, values, name=f"{based.name}({arguments.strip()})") if said else based


def catalogue() -> list[Gpu]:
    """Return the GPUs that ship with triosim, by vendor and age."""
    return list(_shipped())


def is_shipped(name: str) -> bool:
    """Whether a name is that of a GPU that ships with triosim."""
    return normalised(name) in _by_key()


def product(gpu: Gpu) -> str:
    """Return the name that a GPU's driver reports, which begins with the maker's or with Tesla: its own or that of the GPU that
    it is like."""
    based = get(gpu.like) if gpu.like else None
    names = (*gpu.aliases, *(based.aliases if based else ()))
    return next((name for name in names if name.startswith(_MAKERS)), gpu.name)


def register(gpu: Gpu) -> Gpu:
    """Let a user's GPU be found by its names from now on, and return it."""
    _read.update((normalised(name), gpu) for name in (gpu.name, *gpu.aliases))
    return gpu


def same_chip(gpu: Gpu, names: Iterable[str]) -> Gpu | None:
    """Return the GPU among names that has the chip of another one; or None.

    Of several, that whose board allows the most power, but no more than the other's; then that with the nearest memory.
    """
    found = [other for other in map(get, names) if other is not None and _same_chip(other, gpu)]
    frugal = [other.tdp_watts for other in found if other.tdp_watts <= gpu.tdp_watts]
    found = [other for other in found if not frugal or other.tdp_watts == max(frugal)]
    return min(found, key=lambda other: abs(math.log(other.bandwidth / gpu.bandwidth)), default=None)


def _same_chip(one: Gpu, other: Gpu) -> bool:
    """Whether two GPUs have the same multiprocessors, which do the same in a cycle; their clocks may differ."""
    if (one.architecture, one.sms, {*one.flops}) != (other.architecture, other.sms, {*other.flops}):
        return False
    clock = one.clock_hz / other.clock_hz if one.clock_hz and other.clock_hz else 1.0
    return all(math.isclose(rate, clock * other.flops[dtype], rel_tol=1e-9) for dtype, rate in one.flops.items())


@cache
def _shipped() -> tuple[Gpu, ...]:
    text = (Path(__file__).parent / "gpus.json").read_text(encoding="utf-8")
    return tuple(Gpu(**{**row, "aliases": tuple(row["aliases"])}) for row in json.loads(text))


@cache
def _by_key() -> dict[str, Gpu]:
    return {normalised(name): gpu for gpu in _shipped() for name in (gpu.name, *gpu.aliases)}


def normalised(name: str) -> str:
    """Return a name without case, vendor, spaces and dashes, which people write differently."""
    return re.sub(r"[^a-z0-9+]", "", _VENDORS.sub("", name.lower()))
