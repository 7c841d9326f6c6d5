"""The repeated modules of a network, such as a transformer's blocks, found by the numbers in their paths.

A numbered module is the outermost module whose name in its parent is a number (``transformer.h.3``, ``layer1.0``), as it is for
the elements of a ``ModuleList`` or a ``Sequential``. FSDP gathers, activation checkpointing recomputes and pipelines divide
networks module by module. Layers outside of all of them (embeddings, the last norm, the loss) belong to the root.
"""

from __future__ import annotations

from functools import lru_cache

#: The path of the whole network.
ROOT = ""


@lru_cache(maxsize=65536)
def numbered_module_of(layer: str) -> str:
    """Return the path of the numbered module that a layer is in; ``ROOT`` where it is in none."""
    parts = layer.split(".")
    for count, part in enumerate(parts, start=1):
        if part.isdigit():
            return ".".join(parts[:count])
    return ROOT
