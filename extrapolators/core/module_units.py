"""The units of a network: the modules that repeat (a transformer's blocks), which people wrap, gather and recompute one by one.

A unit is the outermost module that is numbered in its parent (``transformer.h.3``, ``layer1.0``), as the elements of a
``ModuleList`` or a ``Sequential`` are. What stands in no such module (embeddings, the last norm, the loss) is the root's.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

ROOT = ""


@lru_cache(maxsize=65536)
def unit_of(layer: str) -> str:
    """Return the unit that a layer is in, ``ROOT`` for what is in none."""
    parts = layer.split(".")
    for count, part in enumerate(parts, start=1):
        if part.isdigit():
            return ".".join(parts[:count])
    return ROOT


def in_order(units: Iterable[str]) -> tuple[str, ...]:
    """Return units in the order in which they first come, each once."""
    return tuple(dict.fromkeys(units))
