"""The report ``comparison-page``: strategies side by side, for people who were not at the terminal."""

from __future__ import annotations

from typing import Any

from triosim.comparison.strategies import ONE_GPU, Comparison, StrategyResult
from triosim.output_files import PathLike
from triosim.reports.page.document import Document, Section, bars, chart, check_page, listed, step_bars, table, text
from triosim.reports.terminal.comparison_table import columns, command_of_best, legend, notes, reasons, rows
from triosim.results.report import Report
from triosim.results.values import mean_of_ranks
from triosim.units import format_rate, format_time


class ComparisonPage(Report):
    """A page of a comparison: what each strategy takes, what its GPUs do, and what cannot run."""

    subject = "comparison"

    @classmethod
    def check(cls, path: PathLike) -> None:
        """Raise ``OutputError`` for a name that no browser opens as a page."""
        check_page(path)

    def write(self, comparison: Comparison, path: PathLike) -> None:
        """Write the page."""
        sections = [
            Section("steps", "Step times", chart("step-bars", "The parts of each strategy's step")),
            Section("rates", "Samples a second", chart("rate-bars", "Samples a second of each strategy")),
            Section(
                "all", "All figures", table(columns(comparison), list(rows(comparison))) + listed([legend(comparison)])
            ),
        ]
        command = f"<pre>{text(command_of_best(comparison))}</pre>"
        sections.append(Section("again", "The command of the first", command))
        if found := list(reasons(comparison)):
            sections.append(Section("cannot", "What cannot run", listed(found)))
        if said := notes(comparison):
            sections.append(Section("notes", "Notes", listed(said)))
        ran = [run for run in comparison.runs if run.result is not None]
        rates = bars(
            "rate-bars", ["samples a second"], {comparison.label_of(run): [run.throughput] for run in ran}, unit=""
        )
        Document(
            comparison.title, _sentence(comparison, ran), sections, {"bars": [_steps(comparison, ran), rates]}
        ).write(path)


def _sentence(comparison: Comparison, ran: list[StrategyResult]) -> str:
    best, last = ran[0], ran[-1]
    assert best.result is not None
    gain = "" if best.speed_up is None else f", {best.speed_up:.2f} times those of {comparison.baseline}"
    compared = "strategies" if comparison.baseline == ONE_GPU else "jobs"
    first, slowest = comparison.label_of(best), comparison.label_of(last)
    return (
        f"Of {len(ran)} {compared}, {first} trains most samples a second: {format_rate(best.throughput)}{gain}, "
        f"in steps of {format_time(best.result.step_time_s)}; {slowest} trains fewest, {format_rate(last.throughput)}."
    )


def _steps(comparison: Comparison, ran: list[StrategyResult]) -> dict[str, Any]:
    """Return the parts of the steps, means over the GPUs; of several draws the medians."""
    results = {comparison.label_of(run): run.result.data for run in ran if run.result is not None}
    if any(data.draws is not None for data in results.values()):
        medians = {label: [data.draws.p50_s] for label, data in results.items() if data.draws is not None}
        return bars("step-bars", ["median of all draws"], medians)
    return step_bars("step-bars", {label: mean_of_ranks(data.ranks, 0) for label, data in results.items()})
