"""The GPUs that are known by name: the catalogue that ships with triosim, and users' files that were read.

A GPU is found by the name that PyTorch reports or by a shorter one, in any case. Each entry of ``triosim/gpus/gpus.json``
names its source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from triosim.gpus.gpu import Gpu

#: GPUs of users' files that were read, so that compute models find them by name.
_read: dict[str, Gpu] = {}
_VENDORS = re.compile(r"\b(nvidia|tesla|quadro|geforce|amd|instinct|intel)\b|\((r|tm)\)")


def get(name: str) -> Gpu | None:
    """Return the GPU of a name that is in the catalogue, or that a user's file gave it; or None."""
    return _read.get(normalised(name)) or _by_key().get(normalised(name))


def catalogue() -> list[Gpu]:
    """Return the GPUs that ship with triosim, by vendor and age."""
    return list(_shipped())


def is_shipped(name: str) -> bool:
    """Whether a name is that of a GPU that ships with triosim."""
    return normalised(name) in _by_key()


def register(gpu: Gpu) -> Gpu:
    """Let a user's GPU be found by its names from now on, and return it."""
    _read.update((normalised(name), gpu) for name in (gpu.name, *gpu.aliases))
    return gpu


def same_chip(gpu: Gpu, names: Iterable[str]) -> Gpu | None:
    """Return the GPU among names that has the chip of another one; or None.

    Of several, that whose board allows the most power, but no more than the other's; then that with the nearest memory.
    """
    found = [other for other in map(get, names) if other is not None and _chip(other) == _chip(gpu)]
    frugal = [other.tdp_watts for other in found if other.tdp_watts <= gpu.tdp_watts]
    found = [other for other in found if not frugal or other.tdp_watts == max(frugal)]
    return min(found, key=lambda other: abs(math.log(other.bandwidth / gpu.bandwidth)), default=None)


def _chip(gpu: Gpu) -> tuple[str, int, dict[str, float]]:
    return gpu.architecture, gpu.sms, dict(gpu.flops)


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
