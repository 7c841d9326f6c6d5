"""Advice about a job on the terminal: a table of changes, and below it the lines of the file to change."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from triosim.configuration_search.advice.advise import Advice, Advised
from triosim.reports.terminal.tables import table
from triosim.units import format_time


def render(advice: Advice, top: int) -> Iterator[RenderableType]:
    """Yield what to show of the changes that gain most."""
    memory = "" if advice.peak_bytes is None else f", {_gib(advice.peak_bytes, fits=advice.fits)} GiB"
    title = f"{advice.subject} as {advice.path} has it: {format_time(advice.step_time_s)} a step{memory}"
    found = [one for one in advice.found if one.gain > 0.0 or not advice.fits][:top]
    if not found:
        yield Text(f"{title}\nNone of the {len(advice.found)} changes that were tried makes it faster.")
        return
    rows = [
        (
            str(number),
            " and ".join(one.changes),
            format_time(one.step_time_s),
            f"{one.gain:+.1%}",
            "" if one.chance is None else f"{one.chance:.0%}",
            "" if one.peak_bytes is None else _gib(one.peak_bytes, fits=one.fits),
        )
        for number, one in enumerate(found, 1)
    ]
    yield table(title, "", "change", "step", "gain", "chance", "GiB", rows=rows)
    yield Text(
        "gain: less time a step; chance: how likely it is faster; GiB: of the fullest rank, ! where it does not fit",
        "dim",
    )
    for number, one in enumerate(found, 1):
        yield from _edits(number, one)
    yield Text(f"{len(advice.found)} changes were simulated; {advice.refused} cannot be", "dim")


def _edits(number: int, one: Advised) -> Iterator[RenderableType]:
    for line in one.edits:
        yield Text(f"{number}: {line}")


def _gib(nbytes: int, *, fits: bool) -> str:
    return f"{nbytes / 2**30:.3g}{'' if fits else '!'}"
