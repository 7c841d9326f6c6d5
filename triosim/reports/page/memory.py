"""A page of a step's memory, for ``triosim memory --report``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triosim.memory import MemoryReport, by_module
from triosim.memory.world_memory import WorldMemory
from triosim.output_files import PathLike
from triosim.reports.page.document import Document, Section, bars, chart, listed, table
from triosim.reports.page.memory_curve import MOST_RANKS, memory_curve
from triosim.results.memory_rows import GIB
from triosim.units import format_bytes, format_ranks


def write_memory_page(
    report: MemoryReport,
    path: PathLike,
    rank: int | None = None,
    world: WorldMemory | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a page of the memory of a rank's step, and of the peaks of all ranks where there are many."""
    sections = [
        Section("time", "Over time", chart("memory-curve", "Memory over time by category")),
        Section("modules", "What is alive at the peak", _modules(report)),
    ]
    peaks = [] if world is None else [_peaks(world)]
    if peaks:
        drawn = chart("peak-bars", "Memory at the peak by category")
        sections.insert(0, Section("peaks", "The peak of each GPU (GiB)", drawn))
    if said := [*report.notes, *notes]:
        sections.append(Section("notes", "Notes", listed(said)))
    values = {"bars": peaks, "memory_curve": memory_curve(report, "0" if rank is None else str(rank))}
    Document(_title(report, rank), _sentence(report), sections, values).write(path)


def _title(report: MemoryReport, rank: int | None) -> str:
    of_rank = "" if rank is None else f", rank {rank}"
    return f"Memory of {report.trace.model}, batch size {report.trace.batch_size:,}, on {report.gpu}{of_rank}"


def _sentence(report: MemoryReport) -> str:
    fits = "it fits" if report.fits else "it does not fit"
    return (
        f"Tensors take {report.peak_live / GIB:.3g} GiB at the peak, of which the caching allocator makes "
        f"{report.peak_reserved / GIB:.3g} GiB reserved; {fits}."
    )


def _modules(report: MemoryReport) -> str:
    rows = [
        [row.module or "(of no module)", f"{row.count:,}", format_bytes(sum(row.by_category.values()))]
        for row in by_module(report.usage, report.usage.alive())
    ]
    return table(["module", "tensors", "bytes"], rows)


def _peaks(world: WorldMemory) -> dict[str, Any]:
    """Return the bytes at the peak by category, of each set of equal ranks."""
    names = list(dict.fromkeys(name for one in world.ranks for name in one.by_category))
    rows = {
        f"GPU {format_ranks(one.ranks, MOST_RANKS)}": [one.by_category.get(name, 0) / GIB for name in names]
        for one in world.ranks
    }
    return bars("peak-bars", [name.replace("_", " ") for name in names], rows, unit="")
