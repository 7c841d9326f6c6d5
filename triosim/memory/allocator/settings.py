"""The settings of PyTorch's caching allocator (``PYTORCH_CUDA_ALLOC_CONF``), and the sizes that it works with.

Source: PyTorch's notes on CUDA semantics, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF", and the constants of
``c10/core/CachingDeviceAllocator.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from triosim.errors import OptionError, nearest

MIB = 2**20

#: Every allocation is a multiple of this.
SMALLEST_BLOCK = 512
#: The largest allocation that the small pool serves.
LARGEST_SMALL = MIB
#: What one cudaMalloc gets for the small pool.
SMALL_SEGMENT = 2 * MIB
#: Smaller ones share segments of ``large_segment_size``; larger ones get their own, in whole ``SEGMENT_STEP``.
SMALLEST_OWN_SEGMENT = 10 * MIB
SEGMENT_STEP = 2 * MIB


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The allocator's settings, sizes in bytes; the defaults are PyTorch's.

    ``memory_fraction`` is the share of the GPU that the process may take; without one there is no garbage collection.
    """

    max_split_size: float = math.inf
    max_non_split_rounding: int = 20 * MIB
    roundup_power2_divisions: int = 0
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size: int = 20 * MIB
    memory_fraction: float | None = None

    def rounded(self, nbytes: int) -> int:
        """Return how many bytes an allocation of ``nbytes`` asks of a pool."""
        divisions = self.roundup_power2_divisions
        if divisions > 1 and nbytes > SMALLEST_BLOCK * divisions:
            step = max(1, (1 << (nbytes.bit_length() - 1)) // divisions)
            return -(-nbytes // step) * step
        return max(SMALLEST_BLOCK, -(-nbytes // SMALLEST_BLOCK) * SMALLEST_BLOCK)

    def segment(self, rounded: int) -> int:
        """Return how many bytes a cudaMalloc for an allocation of this rounded size takes."""
        if rounded <= LARGEST_SMALL:
            return SMALL_SEGMENT
        if rounded < SMALLEST_OWN_SEGMENT:
            return self.large_segment_size
        return -(-rounded // SEGMENT_STEP) * SEGMENT_STEP

    def as_pytorch(self) -> dict[str, Any]:
        """Return the settings as a snapshot of PyTorch's has them."""
        return {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1 if math.isinf(self.max_split_size) else int(self.max_split_size),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "roundup_power2_divisions": {},
        }


def settings_of_environment(variables: Mapping[str, str]) -> AllocatorSettings:
    """Return the settings that PyTorch reads from the environment, as far as they are known here."""
    text = variables.get("PYTORCH_ALLOC_CONF") or variables.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    settings = AllocatorSettings()
    for pair in text.split(","):
        key = _KEYS.get(pair.partition(":")[0].strip())
        with suppress(OptionError):
            settings = settings if key is None else replace(settings, **{key.name: getattr(parse(pair), key.name)})
    return settings


def parse(text: str) -> AllocatorSettings:
    """Return the settings of ``max_split_size_mb:128,expandable_segments:True``. Raises ``OptionError``."""
    found: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in pair.partition(":"))
        if key not in _KEYS:
            raise OptionError(f"'{key}' is not known", where="--allocator", fix=nearest(key, _KEYS))
        setting = _KEYS[key]
        try:
            parsed = setting.convert(value)
            valid = setting.is_valid(parsed)
        except (ValueError, KeyError):
            valid = False
        if not valid:
            raise OptionError(f"'{value}' is not a value of {key}", where="--allocator", fix=f"give {setting.expected}")
        found[setting.name] = parsed
    return replace(AllocatorSettings(), **found)


class _Key(NamedTuple):
    """A key of ``PYTORCH_CUDA_ALLOC_CONF``: the setting's name here, and which values it may have."""

    name: str
    convert: Callable[[str], Any]
    is_valid: Callable[[Any], bool]
    expected: str


def _mebibytes(text: str) -> int:
    return int(text) * MIB


def _is_positive(number: int) -> bool:
    return number > 0


def _is_share(number: float) -> bool:
    return 0 < number <= 1


def _is_power_of_two(number: int) -> bool:
    return number > 0 and not number & (number - 1)


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.casefold()]


_KEYS: Mapping[str, _Key] = {
    "max_split_size_mb": _Key(  # PyTorch refuses less, too
        "max_split_size", _mebibytes, lambda nbytes: nbytes > 20 * MIB, "a whole number of MiB above 20"
    ),
    "max_non_split_rounding_mb": _Key("max_non_split_rounding", _mebibytes, _is_positive, "a whole number of MiB"),
    "roundup_power2_divisions": _Key("roundup_power2_divisions", int, _is_power_of_two, "a power of two"),
    "garbage_collection_threshold": _Key("garbage_collection_threshold", float, _is_share, "a share between 0 and 1"),
    "expandable_segments": _Key("expandable_segments", _truth, lambda _: True, "True or False"),
    "large_segment_size_mb": _Key("large_segment_size", _mebibytes, _is_positive, "a whole number of MiB"),
    "per_process_memory_fraction": _Key("memory_fraction", float, _is_share, "a share between 0 and 1"),
}
