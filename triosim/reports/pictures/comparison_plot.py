"""The report ``comparison-plot``: bars of each strategy's step time, by its parts, and of its samples per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triosim.comparison.strategies import Comparison
from triosim.output_files import PathLike
from triosim.reports.pictures.plot import PictureReport, bare, draw_step_parts, new_figure, save_figure, unit_of
from triosim.results.values import Draws, ResultData, mean_of_ranks, step_of
from triosim.units import format_rate


class ComparisonPlot(PictureReport):
    """The strategies' step times and speeds as bars."""

    subject = "comparison"

    def write(self, comparison: Comparison, path: PathLike) -> None:
        """Draw the strategies that can run."""
        runs = [(comparison.label_of(run), run.result) for run in comparison.runs if run.result is not None]
        figure = new_figure(path, height=1.9 + 0.36 * max(2, len(runs)))
        times, speeds = figure.subplots(1, 2, sharey=True, width_ratios=[1.7, 1])
        drawn = [result.data.draws for _, result in runs if result.data.draws is not None]
        if len(drawn) == len(runs):
            _draw_quantiles(times, drawn)
        else:
            _draw_parts(times, [result.data for _, result in runs])
        times.margins(x=0.12)
        times.set_yticks(range(len(runs)), [label for label, _ in runs])
        times.set_ylim(len(runs) - 0.4, -0.6)
        rates = [run.throughput for run in comparison.runs if run.result is not None]
        speeds.barh(range(len(runs)), rates, 0.62, color="#CCBB44")
        for row, rate in enumerate(rates):
            speeds.text(rate, row, f" {format_rate(rate)}", va="center", fontsize=8)
        speeds.margins(x=0.2)
        speeds.set_xlabel("samples per second")
        bare(speeds)
        figure.suptitle(comparison.title, fontsize=11)
        save_figure(figure, path)


def _draw_parts(axes: Any, results: Sequence[ResultData]) -> None:
    """Draw the parts of each step, the mean over its GPUs."""
    means = [mean_of_ranks(data.ranks, row) for row, data in enumerate(results)]
    draw_step_parts(axes, means)
    unit, scale = unit_of(max(step_of(row) for row in means))
    for row, data in enumerate(results):
        axes.text(step_of(means[row]) * scale, row, f" {data.step_time_s * scale:.3g}", va="center", fontsize=8)
    axes.set_xlabel(f"step time, mean over the GPUs ({unit})")


def _draw_quantiles(axes: Any, draws: Sequence[Draws]) -> None:
    """Draw the median step over all draws, with a line from 5 to 95% of them."""
    unit, scale = unit_of(max(one.p95_s for one in draws))
    for row, one in enumerate(draws):
        axes.barh(row, one.p50_s * scale, 0.62, color="#4477AA")
        axes.plot([one.p5_s * scale, one.p95_s * scale], [row, row], color="black", linewidth=1.2, marker="|")
        axes.text(one.p95_s * scale, row, f" {one.p50_s * scale:.3g}", va="center", fontsize=8)
    axes.set_xlabel(f"step time, median over all draws and 5% to 95% of them ({unit})")
    bare(axes)
