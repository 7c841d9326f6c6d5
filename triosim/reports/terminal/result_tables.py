"""The report ``text``: a result as the tables of the terminal (step, ranks, memory, layers, transfers, links)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triosim.errors import OptionError
from triosim.reports.terminal.tables import facts_panel, note_lines, percent, plain_text, shorten, spaced, table
from triosim.results.figures import LAUNCH_BOUND
from triosim.results.memory_rows import OUTSIDE, fullest
from triosim.results.report import TextReport
from triosim.results.result import Result
from triosim.results.values import (
    NO_LAYER,
    CollectiveTimes,
    Doubt,
    Draws,
    LinkLoad,
    MemoryRow,
    Prediction,
    RankTimes,
    ResultData,
    step_parts,
)
from triosim.units import format_bytes, format_ranks, format_rate, format_time, parse_ranks

#: How many rows of a table a person reads.
MAX_RANK_ROWS = 12
MAX_LAYERS = 10
MAX_TRANSFERS = 8
MAX_LINKS = 5
MAX_RECORDED_LINKS = 20
MAX_EXPOSED = 20
MAX_AXES = 6
MAX_NAMES = 3

#: The columns of the table of the ranks' memory, and what is in them; communication is among the others.
_MEMORY_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "param.": ("parameter_bytes",),
    "optim.": ("optimizer_state_bytes",),
    "grad.": ("gradient_bytes",),
    "activ.": ("activation_bytes",),
    "temp.": ("temporary_bytes",),
    "other": ("communication_bytes", "other_bytes"),
    "all": ("peak_bytes",),
}
#: The moments of a peak: phases, before the first operator, and the letters of a schedule's actions.
_MOMENTS = {
    "start": "step start",
    "optimizer": "optim.",
    **dict.fromkeys(("forward", "F"), "forw."),
    **dict.fromkeys(("backward", "B"), "backw."),
    "I": "inputs'",
    "W": "weights'",
}
_SCHEDULE_ACTION = re.compile(r"\d+([FBIW])(\d+)")  # stage, letter, micro-batch

_LEAST_SHARE = 0.05  # of the doubt: a smaller source is not named

_ROUNDING = 1e-12  # of a step: differences of times that are smaller are the clock's rounding


def rank_columns(ranks: Sequence[RankTimes]) -> dict[str, Callable[[RankTimes], float]]:
    """Return the columns of the ranks' times: the parts of the step, and communication beside computation, too."""
    parts = {part.heading: part.seconds for part in step_parts(ranks)}
    return {**parts, "communication": lambda rank: rank.communication_s}


class ResultText(TextReport):
    """The tables of the terminal as plain text."""

    def text(self, result: Result) -> str:
        """Return the tables."""
        return as_text(result.data, result.title)


def as_text(data: ResultData, title: str, width: int = 100) -> str:
    """Return a result as plain text."""
    return plain_text(render(data, title), width)


def render(data: ResultData, title: str, *, by_layer: bool = False) -> RenderableType:
    """Return a result as something that rich can show; ``by_layer`` adds exposed communication by layer."""
    parts: list[RenderableType] = [facts_panel(title, _facts(data)), _ranks(data)]
    if len(data.memory) > 1:
        parts.append(memory_by_rank(data.memory, most=MAX_RANK_ROWS))
    if any(memory_outside(row) for row in data.memory):
        parts.append(_outside(data.memory))
    parts.append(_layers(data))
    if data.collectives:
        parts.append(_transfers(data))
    if any(link.bytes for link in data.links):
        parts.append(_recorded_links(data) if any(link.peak is not None for link in data.links) else _links(data))
    if by_layer:
        parts.append(_exposed(data))
    if data.what_if:
        parts.append(_what_if(data))
    return Group(*spaced(parts), *note_lines(data.notes))


def memory_by_rank(
    rows: Sequence[MemoryRow], room: float | None = None, *, title: str = "", most: int | None = None
) -> Table:
    """Return a table of the ranks' memory, equal ranks in one row, and whether it fits in ``room``, or else in the GPU."""
    unit, scale = ("GiB", 2**30) if max(row.peak_bytes for row in rows) >= 2**30 / 10 else ("MiB", 2**20)
    cells = []
    numbered = not all(_micro_batch(row.action) in ("", "0") for row in rows)
    for row in rows:
        sizes = [sum(getattr(row, name) for name in names) for names in _MEMORY_COLUMNS.values()]
        fits = row.fits if room is None else None if math.isinf(room) else row.peak_bytes <= room
        cells.append(
            [
                shorten(row.ranks, 14),
                *(f"{one / scale:.2f}" if one else "-" for one in sizes),
                moment(row.action, numbered),
                "?" if fits is None else "yes" if fits else "no",
            ]
        )
    return table(
        f"Live tensors at each rank's peak, in {unit}{title}",
        *("ranks", *_MEMORY_COLUMNS, "during", "fits"),
        rows=cells,
        most=most,
        main=("all", "fits"),
        legend="during: the pass and the micro-batch of the peak" if numbered else "",
    )


def memory_outside(row: MemoryRow) -> dict[str, int]:
    """Return what ranks hold in memories outside of their GPUs, by tier."""
    sizes = {tier: int(getattr(row, column)) for tier, column in OUTSIDE.items()}
    return {tier: size for tier, size in sizes.items() if size}


def _outside(rows: Sequence[MemoryRow]) -> Table:
    """Return a table of what ranks hold outside of their GPUs."""
    held = [(shorten(row.ranks, 14), memory_outside(row)) for row in rows]
    tiers = [tier for tier in OUTSIDE if any(tier in sizes for _, sizes in held)]
    cells = [(ranks, *(f"{sizes.get(tier, 0) / 2**30:.2f}" for tier in tiers)) for ranks, sizes in held]
    return table(
        "Held outside of the GPU by each rank at most, in GiB", "ranks", *tiers, rows=cells, most=MAX_RANK_ROWS
    )


def moment(action: str, numbered: bool) -> str:
    """Return during what the peak is: "backw. 3" is the backward pass of micro-batch 3."""
    found = _SCHEDULE_ACTION.fullmatch(action)
    moment = _MOMENTS.get(found[1] if found else action, action)
    return f"{moment} {found[2]}" if found and numbered else moment


def _micro_batch(action: str) -> str:
    found = _SCHEDULE_ACTION.fullmatch(action)
    return found[2] if found else ""


def _facts(data: ResultData) -> Iterator[tuple[str, str | Text]]:
    trace, topology = data.inputs.get("trace", {}), data.inputs.get("topology", {})
    world, many = len(data.ranks), len(data.iterations)
    yield "model", f"{trace.get('model', 'unknown')} ({trace.get('operators', '?')} operators)"
    yield "GPU", f"{trace.get('gpu', 'unknown')}, times {trace.get('times', 'unknown')}"
    yield "stack", str(trace.get("stack", "unknown"))
    yield "parallelism", f"{data.inputs.get('parallel', 'unknown')} on {world} GPU{'s' if world > 1 else ''}"
    yield "topology", f"{topology.get('name', 'unknown')} ({topology.get('links', '?')} links)"
    of = "micro-batches of" if trace.get("described") else "the trace:"
    yield "global batch", f"{data.global_batch_size:,} samples ({of} {trace.get('batch_size', '?')})"
    interval = data.step_time_interval_s
    between = "" if interval is None else f", {format_time(interval[0])} to {format_time(interval[1])}"
    mean = f"   (mean of {many} iterations)" if many > 1 else ""
    rate = f"{between}   {format_rate(data.throughput_samples_per_s)} samples/s{mean}"
    yield "step time", Text.assemble((format_time(data.step_time_s), "bold green"), rate)
    if data.draws is not None:
        yield f"{len(data.draws.step_times_s)} draws", spread(data.draws)
    yield from _metrics(data)
    if data.memory:
        yield "memory", fullest(data.memory)
    yield "operators", _origin_of_times(data)
    if data.doubts:
        yield "doubt", _main_doubts(data.doubts)
    if data.launch_wait_s >= LAUNCH_BOUND * data.step_time_s:
        yield (
            "launch-bound",
            f"GPUs wait for launches during {percent(data.launch_wait_s, data.step_time_s)} of the step",
        )
    if data.network_figures:
        yield "network", _network(data.network_figures)


def spread(draws: Draws) -> str:
    """Return the mean, deviation and quantiles of the step times of several draws."""
    unit, scale = next((one for one in (("s", 1.0), ("ms", 1e3)) if draws.mean_s * one[1] >= 1), ("us", 1e6))
    mean, low, middle, high, least, most = (  # so many digits that one draw can be told from another
        f"{seconds * scale:.5g}"
        for seconds in (draws.mean_s, draws.p5_s, draws.p50_s, draws.p95_s, draws.min_s, draws.max_s)
    )
    return (
        f"mean {mean} ± {draws.deviation_s * scale:.2g} {unit}; p5 {low}, p50 {middle}, p95 {high}; {least} to {most} {unit} "
        "(other figures are of the first draw)"
    )


def _metrics(data: ResultData) -> Iterator[tuple[str, str]]:
    found = data.metrics
    if found is None:
        return
    if found.tokens_per_s is not None and found.tokens_per_s_per_gpu is not None:
        each = f", {format_rate(found.tokens_per_s_per_gpu)} a GPU" if len(data.ranks) > 1 else ""
        yield "tokens/s", f"{format_rate(found.tokens_per_s)}{each}"
    if found.mfu is not None and found.hfu is not None and found.peak_flops is not None:
        peak = f"{found.peak_flops / len(data.ranks) / 1e12:.4g} TFLOP/s {found.peak_dtype}"
        hfu = f", HFU {found.hfu:.1%}" if abs(found.hfu - found.mfu) >= 0.0005 else ""
        yield "MFU", f"{found.mfu:.1%}{hfu} of {peak}"
    if found.bubble_fraction is not None:
        yield "bubble", f"{percent(found.bubble_fraction)} of the step"
    if len(data.axes) > 1 and any(row.exposed_s > 0 for row in data.axes):
        yield "exposed", f"{_exposed_axes(data)} of the step"
    if found.energy_j is not None:
        yield "energy", f"{_energy(found.energy_j)} a step at TDP (an estimate)"
    if found.cost is not None:
        unit = "tokens" if found.tokens_per_sample else "samples"
        yield "cost", f"{found.cost:.3g} a step, {per_million(data, found.cost)} a million {unit}"


def _energy(joules: float) -> str:
    unit, scale = next((one for one in (("MJ", 1e6), ("kJ", 1e3)) if joules >= one[1]), ("J", 1.0))
    return f"{joules / scale:.3g} {unit}"


def per_million(data: ResultData, cost: float) -> str:
    """Return what a million tokens cost, or samples where the tokens of one are not known; ``cost`` is a step's."""
    tokens = data.metrics.tokens_per_sample if data.metrics else None
    return f"{1e6 * cost / data.global_batch_size / (tokens or 1):.3g}"


def _exposed_axes(data: ResultData) -> str:
    """Return the exposed communication of each axis, and the waiting, as shares of the step."""
    shown = []
    for row in [row for row in data.axes if row.exposed_s > 0][:MAX_AXES]:
        seen = row.waiting_s >= 0.0005 * data.step_time_s
        waiting = f" and {percent(row.waiting_s, data.step_time_s)} waiting" if seen else ""
        host = f"{percent(row.host_s, data.step_time_s)} on the host" if row.host_s else ""
        exposed = percent(row.exposed_s - row.waiting_s - row.host_s, data.step_time_s)
        shown.append(f"{shorten(row.axis or 'other', 14)} {host or exposed}{waiting}")
    return ", ".join(shown)


def _network(figures: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')}: "
        + (format_time(value) if name.endswith("_s") else f"{value:,.12g}")
        for name, value in figures.items()
        if value
    )


def _origin_of_times(data: ResultData) -> str:
    """Return where the operators' times come from, each model once; those that only scaled another's times come last."""
    if not data.predictions:
        times = data.inputs.get("trace", {}).get("times", "unknown")
        text = "all measured" if times == "measured" else f"none predicted in this run; the trace's times are {times}"
        return text if data.step_time_interval_s is None else f"{text}; the range of the step time is a 90% interval"
    compute = sum(rank.compute_s for rank in data.ranks) / len(data.ranks)
    by_model: dict[str, list[Prediction]] = {}
    scaling: dict[str, None] = {}
    for row in data.predictions:
        model, *others = row.model.split(", ")
        by_model.setdefault(model, []).append(row)
        scaling |= dict.fromkeys(others)
    shown = []
    for model, rows in sorted(by_model.items(), key=lambda item: -sum(row.seconds for row in item[1])):
        seconds = sum(row.seconds for row in rows)
        error = sum(row.seconds * row.relative_error for row in rows) / seconds if seconds else 0.0
        names = list(dict.fromkeys(name for row in rows for name in row.names))
        some = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
        shown.append(f"{model} ±{100 * error:.2g}% for {percent(seconds, compute)} of compute ({some})")
    by = ", ".join(model for model in scaling if model not in by_model)
    scaled = f"; some scaled to other shapes{' by ' if by else ''}{by}" if scaling else ""
    return f"predicted by {'; '.join(shown)}{scaled}; the range of the step time is a 90% interval"


def _main_doubts(doubts: Sequence[Doubt]) -> str:
    """Return the sources of most of the doubt, and what would narrow it most."""
    shown = [f"{percent(one.share)} {one.source}" for one in doubts[:MAX_NAMES] if one.share >= _LEAST_SHARE]
    return f"{', '.join(shown)}; narrowed most by {doubts[0].measurement}"


def doubts_table(data: ResultData) -> RenderableType:
    """Return where the 90% interval of the step time comes from, and what would narrow each part. Raises ``OptionError``."""
    if data.step_time_interval_s is None:
        raise OptionError("all times in this result were measured", fix="name one in which times were predicted")
    if not data.doubts:
        raise OptionError("an older version wrote this result, without its doubts", fix="simulate it again")
    low, high = map(format_time, data.step_time_interval_s)
    made = table(
        f"Doubt about the step time: {format_time(data.step_time_s)}, {low} to {high} is a 90% interval",
        *("source", "expected error", "of the step", "of the doubt"),
        rows=[
            (one.source, format_time(one.error_s), percent(one.error_s, data.step_time_s), percent(one.share))
            for one in data.doubts
        ],
        legend="of the doubt: sources are independent, so that their squares add up",
    )
    by_measurement = dict.fromkeys(one.measurement for one in data.doubts)
    steps = [f"{number}. {text}" for number, text in enumerate(by_measurement, 1)]
    return Group(made, Text("Measurements that would narrow it, the most useful first:"), *map(Text, steps))


def _ranks(data: ResultData) -> Table:
    least, columns = _ROUNDING * data.step_time_s, rank_columns(data.ranks)
    by_figures: dict[tuple[str, ...], list[int]] = {}  # ranks whose figures read the same are one row
    for rank in data.ranks:
        figures = tuple(format_time(_at_least(least, figure(rank))) for figure in columns.values())
        by_figures.setdefault(figures, []).append(rank.rank)
    rows = [(shorten(format_ranks(ranks), 22), *figures) for figures, ranks in by_figures.items()]
    some = any(rank.communication_s > 0 for rank in data.ranks)
    made = table(
        "Time per step, by rank",
        *("rank", *columns),
        rows=rows[:MAX_RANK_ROWS],
        legend=_rank_legend(data) if some else "",
    )
    if len(rows) > MAX_RANK_ROWS:
        made.add_row(f"… {sum(map(len, list(by_figures.values())[MAX_RANK_ROWS:]))} more", style="dim")
    whole = data.step_time_s * len(data.ranks)
    sums = [_at_least(_ROUNDING * whole, sum(map(figure, data.ranks))) for figure in columns.values()]
    if len(data.ranks) > 1:
        made.add_row(f"all {len(data.ranks)}", *map(format_time, sums), style="bold")
    made.add_row("of the time", *(percent(total, whole) for total in sums), style="dim")
    return made


def _rank_legend(data: ResultData) -> str:
    parts = " + ".join(part.name for part in step_parts(data.ranks))
    return f"{parts} = the step; communication is all of it, also what compute hides"


def _at_least(least: float, seconds: float) -> float:
    """Return seconds, or 0 where they are no more than the clock's rounding."""
    return seconds if seconds > least else 0.0


def _layers(data: ResultData) -> Table:
    slowest = sorted(data.layers, key=lambda layer: -layer.total_s)[:MAX_LAYERS]
    every = len(slowest) == len(data.layers)
    compute = sum(rank.compute_s for rank in data.ranks)
    rows = []
    for layer in slowest:
        times = layer.forward_s, layer.backward_s, layer.optimizer_s, layer.total_s
        members = sum(len(parse_ranks(share.ranks)) for share in layer.per_rank)
        name = shorten(layer.layer or NO_LAYER, 26)
        rows.append((name, *map(format_time, times), percent(layer.total_s * members, compute)))
    title = "Layers, slowest first" if every else f"Slowest layers ({len(slowest)} of {len(data.layers)})"
    return table(title, "layer", "forward", "backward", "optimizer", "total", "of compute", rows=rows, main=("total",))


def _transfers(data: ResultData) -> Table:
    """Return the transfers by kind and axis, those of all sizes and in groups of all sizes together."""
    groups: dict[tuple[str, str], list[CollectiveTimes]] = {}
    for row in data.collectives:
        groups.setdefault((row.kind, row.axis), []).append(row)
    rows = []
    for (kind, axis), members in sorted(groups.items(), key=lambda item: -sum(row.total_s for row in item[1])):
        count, seconds = sum(row.count for row in members), sum(row.total_s for row in members)
        nbytes = sum(row.count * row.bytes for row in members)
        rate = f"{format_bytes(nbytes / seconds)}/s" if seconds else ""
        of = kind, shorten(axis, 14), shorten(format_ranks({row.group_size for row in members}), 14)
        rows.append((*of, f"{count:,g}", format_bytes(nbytes), format_time(seconds), rate))
    columns = "kind", "axis", "ranks", "count", "bytes", "time", "bytes/time"
    title = "Communication per step, all ranks together"
    return table(title, *columns, rows=rows, most=MAX_TRANSFERS, more="more kinds", main=("time",))


def _links(data: ResultData) -> Table:
    busiest = sorted(data.links, key=lambda link: -link.utilisation)[:MAX_LINKS]
    rows = [(shorten(link.name, 40), format_bytes(link.bytes), percent(link.utilisation)) for link in busiest]
    title = f"Busiest links ({len(busiest)} of {len(data.links)})"
    return table(title, "link", "bytes per step", "utilisation", rows=rows)


def _recorded_links(data: ResultData) -> Table:
    """Return the links that carried anything with when each was busiest, links with equal figures in one row."""
    loaded = sorted((link for link in data.links if link.bytes), key=lambda link: -link.utilisation)
    by_load: dict[tuple[str, ...], list[str]] = {}
    for link in loaded:
        by_load.setdefault(_load(link, data.step_time_s), []).append(link.name)
    rows = [
        (shorten(names[0], 26) + (f" x{len(names):,}" if len(names) > 1 else ""), *figures)
        for figures, names in by_load.items()
    ]
    made = table(
        f"Busiest links ({len(loaded)} of {len(data.links)} with traffic)",
        *("link", "bytes", "used", "peak", "busy", "busiest at"),
        rows=rows[:MAX_RECORDED_LINKS],
        legend="xN: N links with these figures; used: bytes over what the link could carry in the step; peak: the largest "
        "share of its bandwidth at any time; busy: the part of the step in which it carries bytes",
    )
    if len(rows) > MAX_RECORDED_LINKS:
        made.add_row(f"… {sum(map(len, list(by_load.values())[MAX_RECORDED_LINKS:])):,} more", style="dim")
    return made


def _load(link: LinkLoad, step: float) -> tuple[str, ...]:
    when = ""
    if link.busiest_from_s is not None and link.busiest_to_s is not None:
        when = f"{format_time(link.busiest_from_s)} - {format_time(link.busiest_to_s)}"
    peak = "" if link.peak is None else percent(link.peak)
    busy = "" if link.busy_s is None else percent(link.busy_s, step)
    return format_bytes(link.bytes), percent(link.utilisation), peak, busy, when


def _exposed(data: ResultData) -> RenderableType:
    if not data.exposed_communication:
        return Text("no communication is exposed")

    has_host = any(row.host_s > 0 for row in data.exposed_communication)

    def cells(exposed: float, waiting: float, host: float) -> tuple[str, ...]:
        on_host = (format_time(host),) if has_host else ()
        moving = format_time(exposed - waiting - host)
        return *on_host, moving, format_time(waiting), percent(exposed, data.step_time_s)

    shown, rest = data.exposed_communication[:MAX_EXPOSED], data.exposed_communication[MAX_EXPOSED:]
    rows = [
        (shorten(row.layer or NO_LAYER, 34), shorten(row.axis, 14), *cells(row.exposed_s, row.waiting_s, row.host_s))
        for row in shown
    ]
    if rest:
        others = (math.fsum(getattr(row, name) for row in rest) for name in ("exposed_s", "waiting_s", "host_s"))
        rows.append((f"… {len(rest)} more", "", *cells(*others)))
    columns = "layer", "axis", *(["host"] if has_host else []), "exposed", "waiting", "share of step"
    return table("Exposed communication, mean over the GPUs", *columns, rows=rows, main=("exposed",))


def _what_if(data: ResultData) -> Table:
    factor = data.what_if[0].factor
    times = "twice" if factor == 2 else f"{factor:g} times"
    rows = [
        (
            shorten(row.what, 40),
            f"{row.links:,}" if row.links else "",
            format_time(row.step_time_s),
            percent(row.saved_s, data.step_time_s),
            f"{row.speed_up:.3g}x",
        )
        for row in data.what_if
    ]
    return table(
        f"What if a part were {times} as fast?", "part", "links", "step", "saved", "speed-up", rows=rows, main=("step",)
    )
