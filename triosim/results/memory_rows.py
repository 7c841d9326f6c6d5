"""Rows of ``result.json`` for the memory of the ranks, and a summary of them in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from triosim.memory.world_memory import WorldMemory
from triosim.results.values import MemoryRow
from triosim.units import format_ranks

#: The categories that have a column; the others are taken together.
COLUMNS: Mapping[str, str] = {
    name: f"{name}_bytes"
    for name in ("parameter", "gradient", "optimizer_state", "activation", "temporary", "communication")
}
#: The columns of what is held outside of the GPU, by tier.
OUTSIDE: Mapping[str, str] = {tier: f"{tier}_bytes" for tier in ("host", "nvme", "expansion", "pool")}
_MOST = 3
GIB = 2**30


def rows(memory: WorldMemory) -> tuple[MemoryRow, ...]:
    """Return a row for each set of ranks with equal memory."""
    return tuple(
        MemoryRow(
            ranks=format_ranks(one.ranks),
            peak_bytes=one.peak_bytes,
            other_bytes=sum(size for name, size in one.by_category.items() if name not in COLUMNS),
            action=one.action,
            layer=one.layer,
            capacity_bytes=None if math.isinf(memory.capacity) else int(memory.capacity),
            fits=None if math.isinf(memory.capacity) else one.fits,
            **{column: one.by_category.get(name, 0) for name, column in COLUMNS.items()},
            **{column: sum(one.outside.get(tier, {}).values()) for tier, column in OUTSIDE.items()},
        )
        for one in memory.ranks
    )


def fullest(found: Sequence[MemoryRow]) -> str:
    """Return how much memory the fullest rank needs, and of what categories; in GiB, or in MiB where it is little."""
    row = max(found, key=lambda one: one.peak_bytes)
    large = row.peak_bytes >= GIB / 10
    scale, unit = (GIB, "") if large else (2**20, " MiB")
    columns = {**COLUMNS, "other": "other_bytes"}
    parts = sorted(((getattr(row, column), name) for name, column in columns.items()), reverse=True)
    shown = ", ".join(f"{name.replace('_', ' ')} {size / scale:.3g}" for size, name in parts[:_MOST] if size)
    room = "" if row.capacity_bytes is None else f"{unit} of {row.capacity_bytes / GIB:.3g}"
    after = " MiB" if row.capacity_bytes is None and not large else " GiB"
    where = f" on rank {row.ranks}" if row.ranks.isdigit() else f" on ranks {row.ranks}"
    every = "" if len(found) == 1 and row.ranks == "0" else where
    outside = "".join(
        f"; {tier} {size / GIB:.3g} GiB" for tier, column in OUTSIDE.items() if (size := getattr(row, column))
    )
    return f"{row.peak_bytes / scale:.3g}{room}{after}{every} ({shown}){outside}"
