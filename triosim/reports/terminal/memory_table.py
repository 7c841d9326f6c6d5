"""The memory of a step as tables: its peak, what it consists of, and whether it fits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triosim.memory import MemoryReport, ModuleBytes, OutOfMemory, by_module
from triosim.memory.world_memory import WorldMemory
from triosim.reports.terminal.result_tables import memory_by_rank, moment
from triosim.reports.terminal.tables import facts_panel, note_lines, percent, shorten, spaced, table
from triosim.results.memory_rows import rows
from triosim.results.values import NO_LAYER
from triosim.units import format_ranks

#: How many rows of a table a person reads.
MAX_MODULES = 18
MAX_TENSORS = 6

#: The columns of the table by module, and the categories in them.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "param.": ("parameter", "buffer"),
    "optim.": ("optimizer_state",),
    "grad.": ("gradient",),
    "activ.": ("activation", "output"),
    "other": ("input", "temporary", "communication", "workspace"),
}


#: The categories of what is held outside of GPUs.
_OUTSIDE = ("parameter", "optimizer_state", "gradient", "activation", "communication")


def render(report: MemoryReport, rank: int | None = None, depth: int | None = None) -> RenderableType:
    """Return the memory of one rank as something that rich can show."""
    parts: list[RenderableType] = [
        _summary(report, rank),
        _categories(report),
        _modules(report, depth),
        _tensors(report),
    ]
    return Group(*spaced(parts), *note_lines(report.notes))


def render_ranks(reports: Mapping[int, MemoryReport], like: Sequence[int]) -> RenderableType:
    """Return a table of the captured ranks, each with the ranks that it represents, the one that needs most first."""
    rows = []
    for rank, report in sorted(reports.items(), key=lambda pair: (-pair[1].peak_reserved, pair[0])):
        ranks = format_ranks(other for other, model in enumerate(like) if model == rank)
        fits = "?" if math.isinf(report.capacity) else "yes" if report.fits else "no"
        sizes = map(size, (report.peak_live, report.peak_allocated, report.peak_reserved))
        rows.append((shorten(ranks, 24), *sizes, fits))
    return table(
        "Memory by rank", "ranks", "tensors", "allocated", "reserved", "fits", rows=rows, main=("reserved", "fits")
    )


def render_world(memory: WorldMemory, report: MemoryReport, notes: Sequence[str] = ()) -> RenderableType:
    """Return a table of an extrapolated run's ranks, those with equal memory in one row, and the notes of the run.

    ``report`` is of one of them, and has the capacity.
    """
    title = f" ({memory.parallel} on {memory.world} GPUs)"
    made = memory_by_rank(rows(memory), report.capacity - report.context, title=title)
    parts: list[RenderableType] = [Text(), made]
    if any(one.outside for one in memory.ranks):
        parts += [Text(), _outside(memory)]
    return Group(*parts, *note_lines(notes))


def _outside(memory: WorldMemory) -> Table:
    """Return a table of what ranks hold outside of their GPUs when that is most, by memory and category."""
    held = [(one, tier, categories) for one in memory.ranks for tier, categories in one.outside.items()]
    columns = [name for name in _OUTSIDE if any(categories.get(name) for _, _, categories in held)]
    rows = [
        (
            *(shorten(format_ranks(one.ranks), 14), tier),
            *(size(categories.get(name, 0)) for name in columns),
            *(size(total), moment(one.outside_during.get(tier, ""), numbered=True)),
        )
        for one, tier, categories in held
        if (total := sum(categories.values()))
    ]
    title, words = "Held outside of the GPU by each rank at most", map(_words, columns)
    return table(title, "ranks", "memory", *words, "all", "during", rows=rows, main=("all", "during"))


def size(nbytes: float) -> str:
    """Return bytes as a person reads them, in powers of two: ``10.6 GiB``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= scale * 0.9995:
            value = nbytes / scale
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{nbytes:.0f} B"


def where(report: MemoryReport, operator: int) -> str:
    """Return an operator's name, layer and phase."""
    operators = report.trace.operators
    if operator < 0:
        return "before the first operator"
    ran = operators[operator]
    layer = f" of {ran.layer}" if ran.layer else ""
    return f"in {ran.name}{layer} (operator {operator + 1} of {len(operators)}, {ran.phase})"


def failure(report: MemoryReport, failed: OutOfMemory) -> str:
    """Return which allocation fails, and what the step would need."""
    step = "the first step" if failed.step == 1 else f"step {failed.step}"
    at = where(report, failed.operator)
    what = _words(failed.category) + (f" of {failed.layer}" if failed.layer else "")
    return (
        f"does not fit: {step} fails {at}, which asks for {size(failed.nbytes)} ({what}) when "
        f"{size(failed.allocated)} are allocated and {size(failed.free)} are left; on a GPU that is large enough it "
        f"reserves {size(report.peak_reserved)}"
    )


def _words(category: str) -> str:
    return category.replace("_", " ")


def _summary(report: MemoryReport, rank: int | None) -> Panel:
    trace, peak = report.trace, report.usage.peak
    facts: dict[str, str | Text] = {
        "model": f"{trace.model}, batch size {trace.batch_size:,} ({len(trace.operators):,} operators)"
    }
    if rank is not None:
        facts["rank"] = str(rank)
    known = not math.isinf(report.capacity)
    context = f", {size(report.capacity)}, of which the CUDA context takes {size(report.context)}" if known else ""
    facts["GPU"] = f"{report.gpu}{context}"
    facts["peak"] = f"{size(peak.live)} of tensors, {where(report, peak.operator)}"
    facts["allocator"] = (
        f"{size(report.peak_allocated)} allocated, {size(report.peak_reserved)} reserved at most; "
        f"{percent(report.replay.fragmentation)} of it not in use at the peak"
    )
    if report.out_of_memory is not None:
        facts["verdict"] = Text(failure(report, report.out_of_memory), style="bold red")
    elif known:
        left = report.capacity - report.context - report.peak_reserved
        facts["verdict"] = Text(f"fits; {size(left)} are left", style="bold green")
    return facts_panel(trace.source or "memory", facts.items())


def _categories(report: MemoryReport) -> Table:
    """Return the live bytes by category: at the start of the step, at the peak, and each category's own peak."""
    usage, rows = report.usage, []
    for column, name in enumerate(usage.categories):
        values = usage.live[:, column]
        if values.any():
            start, peak, most = int(values[0]), int(values[usage.peak.index]), int(values.max())
            rows.append((_words(name), size(start), size(peak), percent(peak, usage.peak.live), size(most)))
    columns = "category", "at the start", "at the peak", "of the peak", "at most"
    made = table("Live tensors by category", *columns, rows=rows, main=("at the peak",))
    sizes = size(int(usage.total[0])), size(usage.peak.live), "", size(int(usage.total.max()))
    made.add_row("all", *sizes, style="bold")
    return made


def _modules(report: MemoryReport, depth: int | None) -> Table:
    """Return the bytes at the peak by module, at ``depth`` or the greatest depth that gives few enough rows."""
    alive = report.usage.alive()
    found = by_module(report.usage, alive, depth) if depth is not None else _deepest(report, alive)
    rows = [(_module_name(row), *_cells(row.by_category, row.total)) for row in found[:MAX_MODULES]]
    made = table("Live tensors at the peak, by module, in MiB", "module", *_COLUMNS, "all", rows=rows, main=("all",))
    if len(found) > MAX_MODULES:
        rest: Counter[str] = Counter()
        for row in found[MAX_MODULES:]:
            rest.update(row.by_category)
        made.add_row(f"… {len(found) - MAX_MODULES} more", *_cells(rest, rest.total()), style="dim")
    return made


def _deepest(report: MemoryReport, alive: Sequence[int]) -> list[ModuleBytes]:
    rows = by_module(report.usage, alive, 1)
    most = max(item.layer.count(".") for item in report.usage.lifetimes.items) + 1
    for depth in range(2, most + 1):
        finer = by_module(report.usage, alive, depth)
        if len(finer) > MAX_MODULES:
            break
        rows = finer
    return rows


def _module_name(row: ModuleBytes) -> str:
    times = f" x{row.count}" if row.count > 1 else ""
    return shorten(row.module or NO_LAYER, 28 - len(times)) + times


def _cells(by_category: Mapping[str, int], total: int) -> list[str]:
    sums = (sum(by_category.get(name, 0) for name in names) for names in _COLUMNS.values())
    return [_short(value) for value in sums] + [_short(total)]


def _short(nbytes: int) -> str:
    value = nbytes / 2**20
    return "-" if not nbytes else "<0.1" if value < 0.05 else f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def _tensors(report: MemoryReport) -> Table:
    """Return the largest tensors at the peak, equal ones in one row."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number in report.usage.alive():
        item = report.usage.lifetimes.items[number]
        shape = f"{' x '.join(map(str, item.shape))} {item.dtype}".strip() or "?"
        layer = ".".join("*" if part.isdigit() else part for part in item.layer.split("."))
        key = shorten(layer or NO_LAYER, 20), _words(item.category), shape, layer
        groups.setdefault(key, []).append(item.nbytes)
    largest = sorted(groups.items(), key=lambda pair: -sum(pair[1]))[:MAX_TENSORS]
    rows = [(*key[:3], str(len(sizes)), size(sum(sizes))) for key, sizes in largest]
    return table(
        "Largest tensors at the peak, equal ones together",
        "module",
        "category",
        "shape",
        "count",
        "all",
        rows=rows,
        main=("all",),
    )
