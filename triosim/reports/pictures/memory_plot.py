"""A picture of a step's memory: the live tensors by category over its operators, and what the allocator reserves."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np

from triosim.memory import MemoryReport
from triosim.output_files import PathLike
from triosim.reports.colours import CATEGORY_COLOURS
from triosim.reports.pictures.plot import new_figure, save_figure
from triosim.reports.terminal.memory_table import size


def write_memory_plot(report: MemoryReport, path: PathLike, rank: int | None = None) -> None:
    """Draw the memory of a rank's step as a picture (png, svg, pdf)."""
    figure = new_figure(path, height=5)
    axes = figure.subplots()
    live = report.usage.live
    events = np.arange(len(live))
    scale, unit = (2**30, "GiB") if report.peak_reserved >= 2**30 else (2**20, "MiB")
    bands = [(name, live[:, column] / scale) for column, name in enumerate(report.usage.categories)]
    shown = [(name, values) for name, values in bands if values.any()]
    axes.stackplot(
        events,
        [values for _, values in shown],
        labels=[_label(name, values, report.peak_live / scale) for name, values in shown],
        colors=[CATEGORY_COLOURS[name] for name, _ in shown],
        linewidth=0,
        step="post",
    )
    _lines(axes, report, scale)
    _phases(axes, report)
    peak = report.usage.peak
    axes.plot([peak.index], [peak.live / scale], marker="o", markersize=5, color="black", zorder=5)
    _annotate(axes, report, peak.live / scale)
    axes.set_xlim(0, max(1, events[-1]))
    axes.set_xlabel("allocations and frees of the step, in order")
    axes.set_ylabel(f"memory ({unit})")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8, reverse=True)
    of_rank = f", rank {rank}" if rank is not None else ""
    estimate = ", estimated from the tensors' uses" if report.estimated else ""
    figure.suptitle(
        f"{report.trace.model}, batch size {report.trace.batch_size:,}, on {report.gpu}{of_rank}\n"
        f"{size(report.peak_live)} of tensors at most, {size(report.peak_reserved)} reserved{estimate}",
        fontsize=11,
    )
    save_figure(figure, path)


def _label(name: str, values: Any, peak: float) -> str:
    """Return a band's name for the legend; matplotlib leaves out those with an underscore: too thin to be seen."""
    return name.replace("_", " ") if values.max() > 0.002 * peak else f"_{name}"


def _lines(axes: Any, report: MemoryReport, scale: float) -> None:
    """Draw what is reserved and allocated in the last step that was played, and where the memory ends."""
    played = report.replay
    moments = range(len(played.reserved))
    axes.step(moments, np.array(played.allocated) / scale, where="post", color="#555555", linewidth=0.8)
    axes.lines[-1].set_label("allocated, in blocks")
    axes.step(moments, np.array(played.reserved) / scale, where="post", color="black", linewidth=1.4)
    axes.lines[-1].set_label("reserved")
    top = report.peak_reserved / scale
    room = (report.capacity - report.context) / scale
    if not math.isinf(room) and room < 2.5 * top:
        axes.axhline(room, color="#CC3311", linewidth=1.2, linestyle="--", label="capacity of the GPU")
        top = max(top, room)
    axes.set_ylim(0, 1.12 * top)


def _phases(axes: Any, report: MemoryReport) -> None:
    """Draw a line where a phase ends, and name the phases that are long enough."""
    operators = report.trace.operators
    phases = ["" if event.operator < 0 else operators[event.operator].phase for event in report.usage.events]
    start = 0
    for phase, group in groupby(phases):
        end = start + len(list(group))
        share = (end - start) / len(phases)
        if share > 0.02:
            axes.axvline(end, color="#888888", linewidth=0.6, linestyle=":")
        if share > 0.06:
            axes.text(
                (start + end) / 2, 0.985, phase, transform=axes.get_xaxis_transform(), ha="center", va="top", size=9
            )
        start = end


def _annotate(axes: Any, report: MemoryReport, height: float) -> None:
    peak = report.usage.peak
    if peak.operator < 0:
        return
    ran = report.trace.operators[peak.operator]
    left = peak.index < len(report.usage.events) / 2
    axes.annotate(
        f"{ran.name}\n{ran.layer}",
        (peak.index, height),
        xytext=(8 if left else -8, 10),
        textcoords="offset points",
        ha="left" if left else "right",
        va="bottom",
        fontsize=8,
        zorder=6,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
    )
