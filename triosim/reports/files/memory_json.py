"""The memory of a step as JSON, for ``triosim memory --format json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from triosim.memory import MemoryReport, OutOfMemory, by_module
from triosim.memory.world_memory import WorldMemory
from triosim.results.memory_rows import rows

SCHEMA = "triosim-memory/1"


def as_json(reports: Mapping[int, MemoryReport], like: Sequence[int]) -> str:
    """Return the memory of the captured ranks as JSON; ``like[rank]`` is the captured rank that represents ``rank``."""
    ranks = [as_dict(report) | {"rank": rank, "identical_ranks": like.count(rank)} for rank, report in reports.items()]
    return json.dumps({"schema": SCHEMA, "world": len(like), "like": list(like), "ranks": ranks}, indent=2) + "\n"


def world_as_json(memory: WorldMemory, report: MemoryReport, rank: int, notes: Sequence[str] = ()) -> str:
    """Return an extrapolated run's memory as JSON: ``memory`` of all ranks, equal ones in one row, and ``rank`` in full."""
    of_all = [asdict(row) for row in rows(memory)]
    count = len(memory.of_rank(rank).ranks)
    shown = as_dict(report) | {"rank": rank, "identical_ranks": count, "notes": [*report.notes, *notes]}
    found = {"schema": SCHEMA, "world": memory.world, "parallel": memory.parallel, "memory": of_all, "ranks": [shown]}
    return json.dumps(found, indent=2) + "\n"


def as_dict(report: MemoryReport) -> dict[str, Any]:
    """Return one rank's memory; sizes in bytes, None for a capacity that is not known."""
    usage = report.usage
    return {
        "model": report.trace.model,
        "batch_size": report.trace.batch_size,
        "gpu": report.gpu,
        "capacity_bytes": None if math.isinf(report.capacity) else round(report.capacity),
        "context_bytes": round(report.context),
        "estimated": report.estimated,
        "fits": None if math.isinf(report.capacity) else report.fits,
        "peak": {
            "tensor_bytes": usage.peak.requested,
            "live_bytes": usage.peak.live,
            "allocated_bytes": report.peak_allocated,
            "reserved_bytes": report.peak_reserved,
            **_operator(report, usage.peak.operator),
        },
        "fragmentation": report.replay.fragmentation,
        "steps_played": report.replay.steps,
        "retries": report.replay.allocator.retries,
        "start_bytes": _by_category(report, 0),
        "peak_bytes": usage.at_peak(),
        "modules": [
            {"module": row.module, "count": row.count, "bytes": row.by_category}
            for row in by_module(usage, usage.alive())
        ],
        "out_of_memory": None if report.out_of_memory is None else _failure(report, report.out_of_memory),
        "notes": report.notes,
    }


def _by_category(report: MemoryReport, row: int) -> dict[str, int]:
    values = zip(report.usage.categories, report.usage.live[row], strict=True)
    return {name: int(value) for name, value in values if value}


def _operator(report: MemoryReport, index: int) -> dict[str, Any]:
    if index < 0:
        return dict.fromkeys(("operator", "name", "layer", "phase"))
    ran = report.trace.operators[index]
    return {"operator": index, "name": ran.name, "layer": ran.layer, "phase": ran.phase}


def _failure(report: MemoryReport, failed: OutOfMemory) -> dict[str, Any]:
    return {
        "step": failed.step,
        **_operator(report, failed.operator),
        "requested_bytes": failed.nbytes,
        "category": failed.category,
        "requested_for": failed.layer,
        "allocated_bytes": failed.allocated,
        "reserved_bytes": failed.reserved,
        "free_bytes": round(failed.free),
    }
