"""The GPU catalogue: what data sheets say of a GPU, found by the names that PyTorch reports, or read from a user's file.

Rates are dense peaks in FLOP/s, by dtype; ``float32`` is that of the ordinary cores and ``tf32`` that of float32 tensors
on tensor cores. Each entry of ``triosim/gpus/gpus.json`` names its source. A user's own GPU is a YAML file of the same
keys, in which rates and sizes may have units; with ``like`` it says only in what it differs from another one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from triosim.errors import OptionError, nearest

#: What a GPU without arithmetic of a dtype computes it in. Half precision without tensor cores is emulated in float32.
_INSTEAD: Mapping[str, str] = {
    "float8_e5m2": "float8_e4m3fn",
    "float8_e4m3fn": "float16",
    "bfloat16": "float32",
    "float16": "float32",
    "tf32": "float32",
    "complex64": "float32",
    "complex128": "float64",
}
#: GPUs of users' files that were read, so that models find them by name.
_read: dict[str, Gpu] = {}
_VENDORS = re.compile(r"\b(nvidia|tesla|quadro|geforce|amd|instinct|intel)\b|\((r|tm)\)")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: ``flops`` in FLOP/s by dtype, bandwidths in bytes per second and one direction, sizes in bytes.

    ``nvlink_bandwidth`` is that of all links to other GPUs together (NVLink, Infinity Fabric), 0 without any; ``sms`` is how
    many multiprocessors (compute units, cores) it has; ``joules_per_flop`` what a FLOP of a long half-precision product costs
    on tensor cores, with all that the board draws beside it; 0 stands for what is not known.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    capacity: float
    aliases: tuple[str, ...] = ()
    architecture: str = ""
    l2_bytes: float = 0.0
    sms: int = 0
    clock_hz: float = 0.0
    nvlink_bandwidth: float = 0.0
    pcie_bandwidth: float = 0.0
    tdp_watts: float = 0.0
    joules_per_flop: float = 0.0
    price_per_hour: float | None = None
    source: str = ""

    def rate(self, dtype: str) -> float:
        """Return the peak FLOP/s of a dtype (``tf32`` is one here), or of what it is computed in on this GPU."""
        while dtype not in self.flops:
            dtype = _INSTEAD.get(dtype, "float32")
        return self.flops[dtype]


def same_chip(gpu: Gpu, names: Iterable[str]) -> Gpu | None:
    """Return the GPU among names that has the chip of another one; or None.

    Of several, that whose board allows the most power, but no more than the other's; then that with the nearest memory.
    """
    found = [other for other in map(get, names) if other is not None and _chip(other) == _chip(gpu)]
    frugal = [other.tdp_watts for other in found if other.tdp_watts <= gpu.tdp_watts]
    found = [other for other in found if not frugal or other.tdp_watts == max(frugal)]
    return min(found, key=lambda other: abs(math.log(other.bandwidth / gpu.bandwidth)), default=None)


def find(name: str | PathLike[str]) -> Gpu:
    """Return the GPU of a name, as PyTorch reports it or shorter, in any case, or of a user's file (``my_gpu.yaml``).

    Raises ``OptionError`` that suggests the nearest name.
    """
    text = fspath(name)
    found = get(text)
    if found is None and _is_file(text):
        return load_user(text)
    if found is None:
        known = {alias for gpu in catalogue() for alias in (gpu.name, *gpu.aliases)}
        fix = nearest(text, known) if nearest(text, known)[:3] == "did" else nearest("", {g.name for g in catalogue()})
        raise OptionError(f"there is no GPU '{text}' in the catalogue", fix=f"{fix}; or give a file of your own")
    return found


def get(name: str) -> Gpu | None:
    """Return the GPU of a name that is in the catalogue, or that a user's file gave it; or None."""
    return _read.get(_key(name)) or _by_key().get(_key(name))


def catalogue() -> list[Gpu]:
    """Return the GPUs that ship with triosim, by vendor and age."""
    return list(_shipped())


def load_user(path: str | PathLike[str]) -> Gpu:
    """Read a GPU from a YAML file; from then on it is known by its name. Raises ``OptionError`` with file, line and key."""
    from triosim.gpus.gpu_file import read

    gpu = read(fspath(path))
    for name in (gpu.name, *gpu.aliases):
        if _key(name) in _by_key():
            fix = "give it a name of its own, or write 'like: H100-SXM' for what it has in common"
            raise OptionError(f"'{name}' is a GPU of the catalogue", where=fspath(path), fix=fix)
    return known(gpu)


def known(gpu: Gpu) -> Gpu:
    """Let a GPU of one's own be found by its names from now on, and return it."""
    _read.update((_key(name), gpu) for name in (gpu.name, *gpu.aliases))
    return gpu


def _chip(gpu: Gpu) -> tuple[str, int, dict[str, float]]:
    return gpu.architecture, gpu.sms, dict(gpu.flops)


@cache
def _shipped() -> tuple[Gpu, ...]:
    text = (Path(__file__).parent / "gpus.json").read_text(encoding="utf-8")
    return tuple(_gpu(row) for row in json.loads(text))


def _gpu(row: Mapping[str, Any]) -> Gpu:
    return Gpu(**{**row, "aliases": tuple(row["aliases"])})


@cache
def _by_key() -> dict[str, Gpu]:
    return {_key(name): gpu for gpu in _shipped() for name in (gpu.name, *gpu.aliases)}


def _key(name: str) -> str:
    """Return a name without what people write in different ways: case, vendor, spaces and dashes."""
    return re.sub(r"[^a-z0-9+]", "", _VENDORS.sub("", name.lower()))


def _is_file(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml", ".json")) or ("/" in text and Path(text).is_file())
