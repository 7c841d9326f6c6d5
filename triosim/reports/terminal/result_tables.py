"""The report ``text``: a result as the tables of the terminal (step, ranks, memory, layers, transfers, links)."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triosim.output_files import PathLike, writing_text
from triosim.results.memory_rows import fullest
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import CollectiveTimes, Draws, LayerShare, LinkLoad, MemoryRow, RankTimes, ResultData
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
_OF_PLACES: Mapping[str, tuple[str, ...]] = {
    "param.": ("parameter_bytes",),
    "optim.": ("optimizer_state_bytes",),
    "grad.": ("gradient_bytes",),
    "activ.": ("activation_bytes",),
    "temp.": ("temporary_bytes",),
    "other": ("communication_bytes", "other_bytes"),
    "all": ("peak_bytes",),
}
#: How a phase, where a rank was captured, and the optimizer are called there.
_SHORT = {"optimizer": "optim.", "forward": "forw.", "backward": "backw."}


class ResultText(Report):
    """The tables of the terminal as plain text."""

    def write(self, result: Result, path: PathLike) -> None:
        """Write the tables."""
        with writing_text(path) as file:
            file.write(self.text(result) + "\n")

    def text(self, result: Result) -> str:
        """Return the tables."""
        return as_text(result.data, result.title)


def as_text(data: ResultData, title: str, width: int = 100) -> str:
    """Return a result as plain text."""
    return plain_text(render(data, title), width)


def plain_text(shown: RenderableType, width: int = 100) -> str:
    """Return what rich shows without colours, in lines of at most ``width`` characters."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(shown)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def render(data: ResultData, title: str, *, by_layer: bool = False) -> RenderableType:
    """Return a result as something that rich can show; ``by_layer`` adds exposed communication by layer."""
    parts: list[RenderableType] = [_summary(data, title), _ranks(data)]
    if len(data.memory) > 1:
        parts.append(places(data.memory[:MAX_RANK_ROWS], more=len(data.memory) - MAX_RANK_ROWS))
    parts.append(_layers(data))
    if data.collectives:
        parts.append(_transfers(data))
    if any(link.bytes for link in data.links):
        parts.append(_recorded_links(data) if any(link.peak is not None for link in data.links) else _links(data))
    if by_layer:
        parts.append(_exposed(data))
    if data.what_if:
        parts.append(_what_if(data))
    if data.notes:
        parts.append(Text())
    parts.extend(Text(f"note: {note}", style="yellow") for note in data.notes)
    return Group(*spaced(parts))


def spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    """Return the parts, with an empty line above each table."""
    return [line for part in parts for line in ((Text(), part) if isinstance(part, Table) else (part,))]


def table(title: str, *columns: str, caption: str | None = None) -> Table:
    """Return an empty table in the common style: the first column to the left, figures to the right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", caption=caption, caption_justify="left", box=None
    )
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", header_style="dim", overflow="fold")
    return made


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what is said of each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, Text(value))
    return grid


def places(rows: Sequence[MemoryRow], room: float | None = None, *, title: str = "", more: int = 0) -> Table:
    """Return a table of the ranks' memory, equal ranks in one row, and whether it fits.

    ``room`` is another capacity than the GPU's, ``more`` how many rows are left out.
    """
    unit, scale = ("GiB", 2**30) if max(row.peak_bytes for row in rows) >= 2**30 / 10 else ("MiB", 2**20)
    made = table(f"Live tensors at each rank's peak, in {unit}{title}", "ranks", *_OF_PLACES, "at", "fits")
    for row in rows:
        sizes = [sum(getattr(row, name) for name in names) for names in _OF_PLACES.values()]
        fits = row.fits if room is None else None if math.isinf(room) else row.peak_bytes <= room
        said = "?" if fits is None else "yes" if fits else "no"
        cells = (f"{one / scale:.2f}" if one else "-" for one in sizes)
        made.add_row(shorten(row.ranks, 14), *cells, _SHORT.get(row.action, row.action), said)
    if more > 0:
        made.add_row(f"… {more} more", style="dim")
    return made


def shorten(name: str, width: int) -> str:
    """Return a name no wider than ``width``; the front of a module path is cut, because its end says most."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]


def percent(part: float, whole: float) -> str:
    """Return a share in percent; only nothing at all is "0%"."""
    share = 100 * part / whole if whole else 0.0
    if share == 0 or share >= 9.95:
        return f"{share:.0f}%"
    return f"{share:.1f}%" if share >= 0.05 else "<0.1%"


def _summary(data: ResultData, title: str) -> RenderableType:
    trace = data.inputs.get("trace", {})
    topology = data.inputs.get("topology", {})
    world = len(data.ranks)
    facts = [
        ("model", f"{trace.get('model', 'unknown')} ({trace.get('operators', '?')} operators)"),
        ("GPU", f"{trace.get('gpu', 'unknown')}, times {trace.get('times', 'unknown')}"),
        ("parallelism", f"{data.inputs.get('parallel', 'unknown')} on {world} GPU{'s' if world > 1 else ''}"),
        ("topology", f"{topology.get('name', 'unknown')} ({topology.get('links', '?')} links)"),
        ("global batch", f"{data.global_batch_size:,} samples (the trace: {trace.get('batch_size', '?')})"),
    ]
    grid = facts_table(facts)
    many = len(data.iterations)
    grid.add_row(
        "step time",
        Text.assemble(
            (format_time(data.step_time_s), "bold green"),
            _range(data)
            + f"   {format_rate(data.throughput_samples_per_s)} samples/s"
            + (f"   (mean of {many} iterations)" if many > 1 else ""),
        ),
    )
    if data.draws is not None:
        grid.add_row(f"{len(data.draws.step_times_s)} draws", Text(spread(data.draws)))
    for name, value in _compared(data):
        grid.add_row(name, Text(value))
    if data.memory:
        grid.add_row("memory", Text(fullest(data.memory)))
    grid.add_row("operators", Text(_origin(data)))
    if data.launch_wait_s > 0.0:
        share = percent(data.launch_wait_s, data.step_time_s)
        grid.add_row("launch-bound", f"GPUs wait for launches during {share} of the step")
    if data.network_figures:
        grid.add_row("network", Text(_counted(data.network_figures)))
    return Panel(grid, title=Text(title), title_align="left", expand=False)


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


def _compared(data: ResultData) -> Iterator[tuple[str, str]]:
    """Yield the metrics that are known, a line each."""
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
        yield "bubble", f"{percent(found.bubble_fraction, 1.0)} of the step"
    if len(data.axes) > 1 and (exposed := _exposed_axes(data)):
        yield "exposed", f"{exposed} of the step"
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
    """Return the exposed communication of each axis as a share of the step."""
    shown = [row for row in data.axes if row.exposed_s > 0][:MAX_AXES]
    return ", ".join(f"{shorten(row.axis or 'other', 14)} {percent(row.exposed_s, data.step_time_s)}" for row in shown)


def _counted(figures: Mapping[str, float]) -> str:
    """Return the network's figures other than zeros."""
    said = []
    for name, value in figures.items():
        shown = format_time(value) if name.endswith("_s") else f"{value:,.12g}"
        said += [f"{name.removesuffix('_s').replace('_', ' ')}: {shown}"] if value else []
    return ", ".join(said)


def _range(data: ResultData) -> str:
    if data.step_time_interval_s is None:
        return ""
    low, high = data.step_time_interval_s
    return f", {format_time(low)} to {format_time(high)}"


def _origin(data: ResultData) -> str:
    """Return where the operators' times come from."""
    if not data.predictions:
        times = data.inputs.get("trace", {}).get("times", "unknown")
        return "all measured" if times == "measured" else f"none predicted in this run; the trace's times are {times}"
    compute = sum(rank.compute_s for rank in data.ranks) / len(data.ranks)
    said = []
    for row in data.predictions:
        names = ", ".join(row.names[:MAX_NAMES]) + (", …" if len(row.names) > MAX_NAMES else "")
        said.append(
            f"{row.model} ±{100 * row.relative_error:.2g}% for {percent(row.seconds, compute)} of compute ({names})"
        )
    return "predicted by " + "; ".join(said) + "; the range of the step time is a 90% interval"


_ROUNDING = 1e-12  # of a step: differences of times that are smaller are the clock's rounding

_RANK_FIGURES: tuple[tuple[str, Callable[[RankTimes], float]], ...] = (
    ("compute", lambda rank: rank.compute_s),
    ("communication", lambda rank: rank.communication_s),
    ("exposed", lambda rank: rank.exposed_communication_s),
    ("waiting", lambda rank: rank.waiting_s),
    ("idle", lambda rank: rank.idle_s),
)


def _ranks(data: ResultData) -> RenderableType:
    made = table("Time per step, by rank", "rank", *(name for name, _ in _RANK_FIGURES))
    rows = _same_figures(data.ranks, _ROUNDING * data.step_time_s)
    for ranks, figures in rows[:MAX_RANK_ROWS]:
        made.add_row(shorten(format_ranks(ranks), 22), *figures)
    if len(rows) > MAX_RANK_ROWS:
        left = sum(len(ranks) for ranks, _ in rows[MAX_RANK_ROWS:])
        made.add_row(f"… {left} more", style="dim")
    whole = data.step_time_s * len(data.ranks)
    sums = [_at_least(_ROUNDING * whole, sum(map(figure, data.ranks))) for _, figure in _RANK_FIGURES]
    if len(data.ranks) > 1:
        made.add_row(f"all {len(data.ranks)}", *map(format_time, sums), style="bold")
    made.add_row("of the time", *(percent(total, whole) for total in sums), style="dim")
    return made


def _at_least(least: float, seconds: float) -> float:
    """Return seconds, or 0 where they are no more than the clock's rounding."""
    return seconds if seconds > least else 0.0


def _same_figures(ranks: Iterable[RankTimes], least: float) -> list[tuple[list[int], tuple[str, ...]]]:
    """Return ranks grouped by their figures as they are shown."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in ranks:
        figures = tuple(format_time(_at_least(least, figure(rank))) for _, figure in _RANK_FIGURES)
        groups.setdefault(figures, []).append(rank.rank)
    return [(members, figures) for figures, members in groups.items()]


def _layers(data: ResultData) -> RenderableType:
    slowest = sorted(data.layers, key=lambda layer: -layer.total_s)[:MAX_LAYERS]
    more = len(data.layers) - len(slowest)
    title = f"Slowest layers ({len(slowest)} of {len(data.layers)})" if more else "Layers, slowest first"
    made = table(title, "layer", "forward", "backward", "optimizer", "total", "of compute")
    compute = sum(rank.compute_s for rank in data.ranks) / len(data.ranks)
    for layer in slowest:
        share = layer.total_s * _members(layer.per_rank) / len(data.ranks)
        made.add_row(
            Text(shorten(layer.layer or "(no layer)", 26)),
            *(format_time(value) for value in (layer.forward_s, layer.backward_s, layer.optimizer_s, layer.total_s)),
            percent(share, compute),
        )
    return made


def _members(shares: Sequence[LayerShare]) -> int:
    return sum(len(parse_ranks(share.ranks)) for share in shares)


def _transfers(data: ResultData) -> RenderableType:
    """Return the transfers by kind, axis and group size, all sizes together."""
    groups: dict[tuple[str, str, int], list[CollectiveTimes]] = {}
    for row in data.collectives:
        groups.setdefault((row.kind, row.axis, row.group_size), []).append(row)
    made = table("Communication per step", "kind", "axis", "ranks", "count", "bytes", "time", "bytes/time")
    rows = sorted(groups.items(), key=lambda item: -sum(row.total_s for row in item[1]))
    for (kind, axis, size), members in rows[:MAX_TRANSFERS]:
        count = sum(row.count for row in members)
        nbytes = sum(row.count * row.bytes for row in members)
        seconds = sum(row.total_s for row in members)
        rate = f"{format_bytes(nbytes / seconds)}/s" if seconds else ""
        made.add_row(
            kind, Text(shorten(axis, 14)), str(size), f"{count:,g}", format_bytes(nbytes), format_time(seconds), rate
        )
    if len(rows) > MAX_TRANSFERS:
        made.add_row(f"… {len(rows) - MAX_TRANSFERS} more kinds", style="dim")
    return made


def _links(data: ResultData) -> RenderableType:
    busiest = sorted(data.links, key=lambda link: -link.utilisation)[:MAX_LINKS]
    made = table(f"Busiest links ({len(busiest)} of {len(data.links)})", "link", "bytes per step", "utilisation")
    for link in busiest:
        made.add_row(Text(shorten(link.name, 40)), format_bytes(link.bytes), percent(link.utilisation, 1.0))
    return made


def _recorded_links(data: ResultData) -> RenderableType:
    """Return the links that carried anything with when each was busiest, links with equal figures in one row."""
    loaded = sorted((link for link in data.links if link.bytes), key=lambda link: -link.utilisation)
    by_load: dict[tuple[str, ...], list[str]] = {}
    for link in loaded:
        by_load.setdefault(_load(link, data.step_time_s), []).append(link.name)
    title = f"Busiest links ({len(loaded)} of {len(data.links)} carried something)"
    made = table(title, "link", "links", "bytes", "mean", "peak", "busy", "busiest at")
    for figures, names in list(by_load.items())[:MAX_RECORDED_LINKS]:
        made.add_row(Text(shorten(names[0], 26)), f"{len(names):,}", *figures)
    if len(by_load) > MAX_RECORDED_LINKS:
        made.add_row(f"… {sum(map(len, list(by_load.values())[MAX_RECORDED_LINKS:])):,} more", style="dim")
    return made


def _load(link: LinkLoad, step: float) -> tuple[str, ...]:
    when = ""
    if link.busiest_from_s is not None and link.busiest_to_s is not None:
        when = f"{format_time(link.busiest_from_s)} - {format_time(link.busiest_to_s)}"
    return (
        format_bytes(link.bytes),
        percent(link.utilisation, 1.0),
        "" if link.peak is None else percent(link.peak, 1.0),
        "" if link.busy_s is None else percent(link.busy_s, step),
        when,
    )


def _exposed(data: ResultData) -> RenderableType:
    """Return the exposed communication by layer and axis."""
    if not data.exposed_communication:
        return Text("no communication is exposed")
    made = table("Exposed communication, mean over the GPUs", "layer", "axis", "exposed", "waiting", "of the step")
    for row in data.exposed_communication[:MAX_EXPOSED]:
        made.add_row(
            Text(shorten(row.layer or "(no layer)", 34)),
            Text(shorten(row.axis, 14)),
            format_time(row.exposed_s),
            format_time(row.waiting_s),
            percent(row.exposed_s, data.step_time_s),
        )
    rest = data.exposed_communication[MAX_EXPOSED:]
    if rest:
        others = sum(row.exposed_s for row in rest), sum(row.waiting_s for row in rest)
        made.add_row(f"… {len(rest)} more", "", *map(format_time, others), percent(others[0], data.step_time_s))
    return made


def _what_if(data: ResultData) -> RenderableType:
    factor = data.what_if[0].factor
    times = "twice" if factor == 2 else f"{factor:g} times"
    made = table(f"What if a part were {times} as fast?", "part", "links", "step", "saved", "speed-up")
    for row in data.what_if:
        made.add_row(
            Text(shorten(row.what, 40)),
            f"{row.links:,}" if row.links else "",
            format_time(row.step_time_s),
            percent(row.saved_s, data.step_time_s),
            f"{row.speed_up:.3g}x",
        )
    return made
