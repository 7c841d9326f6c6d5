"""A comparison as a table (the reports ``comparison-text`` and ``comparison-html``), and what makes a step fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triosim.comparison.remedies import Remedies
from triosim.comparison.strategies import ONE_GPU, Comparison
from triosim.reports.files.html import HtmlReport, html_table
from triosim.reports.terminal.result_tables import per_million
from triosim.reports.terminal.tables import percent, plain_text, table
from triosim.results.command import command_of
from triosim.results.report import TextReport
from triosim.results.values import MemoryRow, ResultData, StepPart, mean_of_ranks, step_parts
from triosim.units import format_rate, format_time

#: Ways to make a step fit that a person reads.
MOST_REMEDIES = 8
#: Of notes with the same words and other figures how many are all shown, and how many strategies one names.
MOST_NOTES, MOST_LABELS = 3, 3
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


class ComparisonText(TextReport):
    """The table as plain text."""

    subject = "comparison"

    def text(self, comparison: Comparison) -> str:
        """Return the table."""
        return plain_text(render(comparison))


class ComparisonHtml(HtmlReport):
    """The table as HTML."""

    subject = "comparison"

    def text(self, comparison: Comparison) -> str:
        """Return the page's body."""
        paragraphs = [
            *reasons(comparison),
            legend(comparison),
            command_of_best(comparison),
            *(f"note: {note}" for note in notes(comparison)),
        ]
        shown = html_table(columns(comparison), list(rows(comparison)))
        return f"<h4>{escape(comparison.title)}</h4>{shown}{''.join(f'<p>{escape(text)}</p>' for text in paragraphs)}"


def render(comparison: Comparison) -> RenderableType:
    """Return a comparison as something that rich can show."""
    kept = [index for index, name in enumerate(columns(comparison)) if name not in _left_out(comparison)]
    cells = [columns(comparison), *rows(comparison)]
    head, *lines = [[_lines(row[0]), *(row[index] for index in kept if index)] for row in cells]
    made = table(comparison.title, *head, rows=lines)
    made.pad_edge, made.padding = False, (0, 1, 0, 0)
    for column in made.columns:
        column.no_wrap = True
    why = (Text(reason, style="dim") for reason in reasons(comparison))
    said = (Text(f"note: {note}", style="yellow") for note in notes(comparison))
    best = Text(f"the first: {command_of_best(comparison)}", style="dim")
    return Group(made, *why, Text(legend(comparison), style="dim"), best, *said)


def _lines(label: str) -> str:
    """Return a label with each of its options on a line of its own, which a table has room for."""
    return label.replace(" --", "\n--")


def columns(comparison: Comparison) -> list[str]:
    """Return the heads of the columns."""
    parts = [part.short for part in _parts(comparison)]
    step = ["median", "5%", "95%"] if _is_drawn(comparison) else ["step", *parts]
    return [
        "strategy" if comparison.baseline == ONE_GPU else "job",
        *(["GPUs"] if comparison.differs_in_gpus else []),
        "batch",
        *step,
        "GiB",
        "samples/s",
        "gain",
        "eff.",
        *(["cost"] if _is_priced(comparison) else []),
    ]


def _left_out(comparison: Comparison) -> set[str]:
    """Return the columns for which 80 columns have no room; that of the batch gives way to GPUs that differ."""
    if comparison.differs_in_gpus:
        return {"batch", "gain"} if _is_priced(comparison) else {"batch"}
    return {"eff.", "gain"} if _is_priced(comparison) else {"eff."}


def _is_priced(comparison: Comparison) -> bool:
    return any(run.result is not None and run.result.inputs["config"].get("price") for run in comparison.runs)


def _is_drawn(comparison: Comparison) -> bool:
    return any(run.result is not None and run.result.data.draws is not None for run in comparison.runs)


def _parts(comparison: Comparison) -> tuple[StepPart, ...]:
    """Return the parts that the steps of all strategies are shown with."""
    return step_parts(rank for run in comparison.runs if run.result is not None for rank in run.result.data.ranks)


def _step(data: ResultData, parts: Sequence[StepPart]) -> list[str]:
    """Return the columns of a step: its time and parts, or of several draws the median and two quantiles."""
    if data.draws is not None:
        return [format_time(seconds) for seconds in (data.draws.p50_s, data.draws.p5_s, data.draws.p95_s)]
    average = mean_of_ranks(data.ranks, 0)
    return [format_time(data.step_time_s), *(percent(part.seconds(average), data.step_time_s) for part in parts)]


def rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield the row of each strategy that can run."""
    priced, parts = _is_priced(comparison), _parts(comparison)
    for run in comparison.runs:
        if run.result is None:
            continue
        data = run.result.data
        cost = data.metrics.cost if data.metrics is not None else None
        found = [
            run.label,
            *([f"{len(data.ranks):,}"] if comparison.differs_in_gpus else []),
            f"{data.global_batch_size:,}",
            *_step(data, parts),
            _fullest(data.memory),
            format_rate(run.throughput),
            "" if run.speed_up is None else f"{run.speed_up:.2f}x",
            "" if run.efficiency is None else percent(run.efficiency),
        ]
        yield [*found, "" if cost is None else per_million(data, cost)] if priced else found


def reasons(comparison: Comparison) -> Iterator[str]:
    """Yield why the others cannot."""
    return (f"{run.label} cannot run: {run.reason}" for run in comparison.runs if run.result is None)


def legend(comparison: Comparison) -> str:
    """Return what the columns mean."""
    parts = _parts(comparison)
    said = f"{', '.join(part.short for part in parts)}: {', '.join(part.name for part in parts)}, mean over the GPUs"
    if _is_drawn(comparison):
        said = "median, 5%, 95%: quantiles of the step time over all draws"
    said += "; GiB: tensors of the GPU that holds most"
    if any(_is_too_full(run.result.data.memory) for run in comparison.runs if run.result is not None):
        said += "; !: more than the GPU has room for"
    said += f"; gain: speed-up over {comparison.baseline}"
    if comparison.differs_in_gpus:
        said += "; eff.: gain for each GPU"
    if _is_priced(comparison):
        said += "; cost: of a million tokens (or samples)"
    if comparison.baseline != ONE_GPU:
        return said
    return f"{said}; strategy: what to type after -p"


def command_of_best(comparison: Comparison) -> str:
    """Return the command that simulates the fastest strategy alone."""
    best = comparison.runs[0].result
    assert best is not None
    return command_of(best, comparison.trace)


def notes(comparison: Comparison) -> list[str]:
    """Return the notes of all strategies, those that differ in a number as one; what not all say names who does."""
    said = [(run.label, note) for run in comparison.runs if run.result for note in dict.fromkeys(run.result.notes)]
    every = sum(run.result is not None for run in comparison.runs)
    groups: dict[tuple[str, ...], list[_Said]] = {}
    for label, note in said:
        pieces = _NUMBER.split(note)  # words at even places, numbers at odd ones
        groups.setdefault(tuple(pieces[::2]), []).append(_Said(label, pieces))
    return [note for members in groups.values() for note in _of_group(members, every)]


def _fullest(memory: Sequence[MemoryRow]) -> str:
    """Return the memory of the fullest rank in GiB, with an exclamation mark where it does not fit."""
    if not memory:
        return ""
    return f"{_most(memory).peak_bytes / 2**30:.3g}" + ("!" if _is_too_full(memory) else "")


def _most(memory: Sequence[MemoryRow]) -> MemoryRow:
    return max(memory, key=lambda one: one.peak_bytes)


def _is_too_full(memory: Sequence[MemoryRow]) -> bool:
    """Whether the rank that holds most holds more than its GPU has room for."""
    if not memory:
        return False
    capacity = _most(memory).capacity_bytes
    return capacity is not None and _most(memory).peak_bytes > capacity


class _Said(NamedTuple):
    """A note of a strategy, in pieces: words and numbers by turns."""

    label: str
    pieces: list[str]


def _of_group(members: Sequence[_Said], every: int) -> list[str]:
    """Return notes of the same words: as one where a single number differs ("4, 16 or 64"), else each, or the first of many."""
    columns = [list(dict.fromkeys(column)) for column in zip(*(one.pieces for one in members), strict=True)]
    labels = list(dict.fromkeys(one.label for one in members))
    if sum(len(column) > 1 for column in columns) <= 1:
        text = "".join(_any_of(column) for column in columns)
        return [text if len(labels) == every else f"{_some(labels)}: {text}"]
    if len(members) <= MOST_NOTES:
        return [f"{one.label}: {''.join(one.pieces)}" for one in members]
    first, *others = labels
    also = f" (and {_some(others)}, with other figures)" if others else ""
    return [f"{first}{also}: {''.join(members[0].pieces)}"]


def _some(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are."""
    more = len(labels) - MOST_LABELS
    return ", ".join(labels[:MOST_LABELS]) + (f" and {more} more" if more > 0 else "")


def _any_of(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    *most, last = sorted(numbers, key=float)
    return f"{', '.join(most)} or {last}"


def render_remedies(searched: Remedies, step_time_s: float) -> list[RenderableType]:
    """Return what makes a step fit; ``step_time_s`` is the step's on GPUs that would hold it.

    Where the time was up, it ends with what the command that goes on follows.
    """
    found, shown = searched.found, list[RenderableType]()
    if found:
        shown.append(_remedies_table(searched, step_time_s))
    if searched.not_simulated:
        also = "also " if found else ""
        shown.append(
            Text(f"note: it {also}fits with {' or '.join(searched.not_simulated)}, not simulated for lack of time")
        )
    if searched.stopped:
        none = "" if found or searched.not_simulated else f": {_none_fits(searched)}"
        shown.append(
            Text(f"note: not all that may fit was tried in the time that there is{none}. This command tries more:")
        )
    elif not found:
        shown.append(Text(f"note: {_none_fits(searched)}: it needs more GPUs, or another division over them"))
    return shown


def _none_fits(searched: Remedies) -> str:
    if not searched.tried:
        return "no other recomputation, sharding, micro-batches or offload can be tried"
    return (
        f"none of the {searched.tried} changes that were tried fits"
        if searched.tried > 1
        else "the one that was tried does not fit"
    )


def _remedies_table(searched: Remedies, step_time_s: float) -> Table:
    found = searched.found
    tiers = list(dict.fromkeys(tier for one in found for tier in one.outside_bytes))
    rows = [
        (
            one.shown,
            format_time(one.step_time_s),
            _longer(one.step_time_s / step_time_s - 1),
            f"{one.peak_bytes / 2**30:.1f}",
            *(f"{one.outside_bytes.get(tier, 0) / 2**30:.1f}" for tier in tiers),
        )
        for one in found
    ]
    return table(
        "It fits with (simulated; GiB of each rank)",
        "options",
        "step",
        "longer",
        "GPU",
        *tiers,
        rows=rows,
        most=MOST_REMEDIES,
    )


def _longer(share: float) -> str:
    shown = f"{share:+.0%}"
    return "as long" if shown in ("+0%", "-0%") else shown
