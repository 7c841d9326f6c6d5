"""The report ``plot``: a Gantt chart of the ranks, and the parts of their step time.

Colours are Paul Tol's "bright" scheme, which people who are colour-blind can tell apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from triosim.engine import Recording
from triosim.engine.intervals import Interval, Intervals
from triosim.engine.recording import operator_times
from triosim.errors import OutputError, printable
from triosim.output_files import PathLike, writing_bytes
from triosim.reports.colours import ACTIVITY_COLOURS
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.values import STEP_PARTS, Draws, RankTimes, step_of, step_parts
from triosim.tasks import Compute, Copy
from triosim.units import format_rate, format_time

MAX_RANKS = 16

WIDTH = 11.0  # of a picture, in inches
_HISTOGRAM = 1.6  # height of the histogram of several draws, in inches

#: Gaps and intervals shorter than this part of the run would not be seen, and cost time to draw.
_FINEST = 1 / 2000

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: PathLike) -> None:
    """Raise ``OutputError`` where a picture cannot be drawn: an unknown kind of file, or no matplotlib."""
    from importlib.util import find_spec

    if Path(path).suffix.lower() not in FORMATS:
        raise OutputError(
            "is not a known kind of picture", where=str(path), fix=f"end the name in {' or '.join(FORMATS)}"
        )
    if find_spec("matplotlib") is None:
        raise OutputError("a picture needs matplotlib", where=str(path), fix="pip install 'triosim[plot]'")


class PictureReport(Report):
    """A report that is a picture."""

    check = staticmethod(check_plot)


class Plot(PictureReport):
    """A Gantt chart of the ranks, and the parts of their step times."""

    records = ("timeline",)

    def write(self, result: Result, path: PathLike) -> None:
        """Draw a result, without a Gantt chart where it comes from a file or one period of a schedule stands for several."""
        ranks = select(result.data.ranks)
        height = 1.9 + 0.42 * max(2, len(ranks))
        figure = new_figure(path, height=height + (_HISTOGRAM if result.data.draws is not None else 0.0))
        upper = figure
        if result.data.draws is not None:
            upper, lower = figure.subfigures(2, 1, height_ratios=[height, _HISTOGRAM])
            _histogram(lower.subplots(), result.data.draws)
        if result.recording is not None and not result.recording.is_stretched:
            gantt, bars = upper.subplots(1, 2, sharey=True, width_ratios=[2.6, 1])
            _gantt(gantt, result.recording, ranks)
        else:
            bars = upper.subplots()
        draw_step_parts(bars, ranks)
        bars.set_yticks(range(len(ranks)), [f"GPU {rank.rank}" for rank in ranks])
        bars.set_ylim(len(ranks) - 0.4, -0.6)
        shown = f"   ({len(ranks)} of {result.world} GPUs shown)" if len(ranks) < result.world else ""
        rate = format_rate(result.throughput_samples_per_s)
        figure.suptitle(
            f"{result.title}\n{format_time(result.step_time_s)} a step, {rate} samples/s{shown}", fontsize=11
        )
        save_figure(figure, path)


def _histogram(axes: Any, draws: Draws) -> None:
    unit, scale = unit_of(draws.max_s)
    axes.hist([seconds * scale for seconds in draws.step_times_s], bins="auto", color="#CCBB44", edgecolor="white")
    for name, seconds in (("p5", draws.p5_s), ("p50", draws.p50_s), ("p95", draws.p95_s)):
        axes.axvline(seconds * scale, color="#888888", linewidth=0.8, linestyle=":")
        axes.annotate(
            name, (seconds * scale, 1), xycoords=("data", "axes fraction"), fontsize=8, ha="center", va="bottom"
        )
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"step time of {len(draws.step_times_s)} draws ({unit})")
    bare(axes)


def select(ranks: Sequence[RankTimes]) -> list[RankTimes]:
    """Return the ranks to draw: all, or of many one for each different step, and others at even distances."""
    if len(ranks) <= MAX_RANKS:
        return list(ranks)
    chosen: dict[tuple[str, ...], RankTimes] = {}
    for rank in ranks:
        key = tuple(format_time(part.seconds(rank)) for part in STEP_PARTS)
        chosen.setdefault(key, rank)
    picked = {rank.rank: rank for rank in list(chosen.values())[: MAX_RANKS // 2]}
    step = (len(ranks) - 1) / (MAX_RANKS - 1)
    for index in range(MAX_RANKS):
        if len(picked) < MAX_RANKS:
            rank = ranks[round(index * step)]
            picked.setdefault(rank.rank, rank)
    return [picked[rank] for rank in sorted(picked)]


def _gantt(axes: Any, recording: Recording, ranks: Sequence[RankTimes]) -> None:
    """Draw each rank's computation above its communication."""
    unit, scale = unit_of(recording.end)
    rows = {rank.rank: row for row, rank in enumerate(ranks)}
    used: dict[str, None] = {}
    for rank, row in rows.items():
        record = next(record for record in recording.ranks if record.rank == rank)
        for kind, intervals in _kinds(recording, rank, record.compute.merged(), record.communication.merged()):
            top = row - 0.36 if kind in ("forward", "backward", "optimizer", "compute") else row + 0.02
            spans = [
                (start * scale, (end - start) * scale) for start, end in coarser(intervals, recording.end * _FINEST)
            ]
            if spans:
                axes.broken_barh(spans, (top, 0.34), facecolor=ACTIVITY_COLOURS[kind], linewidth=0)
                used[kind] = None
    iterations = max(len(record.iterations) for record in recording.ranks)
    if iterations > 1:
        for index in range(iterations):
            end = max(record.iterations[index] for record in recording.ranks if index < len(record.iterations))
            axes.axvline(end * scale, color="#888888", linewidth=0.6, linestyle=":")
    axes.set_xlim(0, recording.end * scale)
    axes.set_xlabel(f"time ({unit})")
    bare(axes)
    legend(axes, {kind: colour for kind, colour in ACTIVITY_COLOURS.items() if kind in used})


def _kinds(
    recording: Recording, rank: int, compute: list[Interval], communication: list[Interval]
) -> Iterable[tuple[str, list[Interval]]]:
    """Yield the intervals of each kind of activity: by phase and with waiting apart where the rank's tasks were kept."""
    handles = [handle for handle in recording.handles or () if handle.rank == rank]
    if not handles:
        yield "compute", compute
        yield "communication", communication
        return
    found = {kind: Intervals() for kind in ACTIVITY_COLOURS}
    for handle in handles:
        if handle.finished is None:
            continue
        if isinstance(handle.task, Compute):
            for operator, start, end in operator_times(handle):
                found[operator.phase].add(start, end)
        elif hasattr(handle.task, "issuer") and handle.arrived is not None and handle.started is not None:
            found["waiting for a partner"].add(handle.arrived, handle.started)
            on_host = isinstance(handle.task, Copy) and handle.task.is_host_computation
            found["host computation" if on_host else "communication"].add(handle.started, handle.finished)
    # The waiting is drawn first: where two transfers overlap, the one that moves bytes is seen, and above it the host's work.
    for kind in ("forward", "backward", "optimizer", "waiting for a partner", "communication", "host computation"):
        yield kind, found[kind].merged()


def coarser(intervals: Iterable[Interval], finest: float) -> list[Interval]:
    """Join intervals whose gap would not be seen."""
    joined: list[Interval] = []
    for start, end in intervals:
        if joined and start - joined[-1][1] < finest:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def draw_step_parts(axes: Any, ranks: Sequence[RankTimes]) -> None:
    """Draw the parts of each rank's step time."""
    unit, scale = unit_of(max(step_of(rank) for rank in ranks))
    parts = {part.name: [part.seconds(rank) for rank in ranks] for part in step_parts(ranks)}
    left = [0.0] * len(ranks)
    for kind, seconds in parts.items():
        widths = [width * scale for width in seconds]
        axes.barh(range(len(ranks)), widths, 0.62, left=left, color=ACTIVITY_COLOURS[kind])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel(f"parts of the step ({unit})")
    bare(axes)
    shown = {kind: ACTIVITY_COLOURS[kind] for kind, seconds in parts.items() if any(seconds)}
    legend(axes, shown, columns=2 if len(shown) > 3 else 3)


def unit_of(seconds: float) -> tuple[str, float]:
    """Return the time unit for an axis up to ``seconds``, and its factor."""
    return ("s", 1.0) if seconds >= 2 else ("ms", 1e3) if seconds >= 2e-3 else ("us", 1e6)


def legend(axes: Any, colours: Mapping[str, str], columns: int | None = None) -> None:
    """Draw a legend above a plot, by default in one row: the colour of each kind of thing."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in colours.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns or len(colours),
        frameon=False,
        fontsize=8,
        handlelength=1,
        columnspacing=1,
        borderaxespad=0.2,
    )


def bare(axes: Any) -> None:
    """Remove the frame of a plot and add a light grid."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#EEEEEE", zorder=0)
    axes.set_axisbelow(True)


def new_figure(path: PathLike, *, width: float = WIDTH, height: float) -> Any:
    """Return an empty figure of so many inches for a file. Raises ``OutputError`` where it cannot be drawn."""
    check_plot(path)
    from matplotlib.figure import Figure  # without pyplot: no window system, no state

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: PathLike, **options: Any) -> None:
    """Write a figure with options of matplotlib's ``savefig``; the kind of file follows from the name."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names are shown as they are, also with $
        text.set_text(printable(text.get_text()))
    with writing_bytes(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # which a name may have
        figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=150, **options)
