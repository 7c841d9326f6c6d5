"""Tables, panels and notes in the common style of the terminal, and how names and shares are written in them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from copy import copy

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triosim.reports.terminal.console import new_console

#: The narrowest column of names, in characters with their padding.
_NAME = 16
#: Figures with their units are shorter and are not broken; longer text is, between words.
_FIGURE = 14


def plain_text(shown: RenderableType, width: int = 100) -> str:
    """Return what rich shows without colours, in lines of at most ``width`` characters."""
    file = io.StringIO()
    new_console(file=file, width=width, color_system=None, force_terminal=False).print(shown)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


class _FittingTable(Table):
    """A table that leaves columns out where the terminal is too narrow for whole words, and names them below.

    The last ones are left out first, but those that are its ``main`` ones stay as long as they fit.
    """

    main: frozenset[str] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self._kept(console, options)
        shown = copy(self)
        shown.columns = [column for index, column in enumerate(self.columns) if index in kept]
        if len(kept) < len(self.columns):
            left_out = ", ".join(str(column.header) for index, column in enumerate(self.columns) if index not in kept)
            said = Text(f"a wider terminal also shows: {left_out}")
            shown.caption = said if self.caption is None else Text("\n").join((Text(str(self.caption)), said))
        yield from Table.__rich_console__(shown, console, options)

    def _kept(self, console: Console, options: ConsoleOptions) -> set[int]:
        """Return which columns fit: all of a figure is shown, and at least so much of a name as tells it from others."""
        left = options.max_width
        kept: set[int] = set()
        by_weight = sorted(range(len(self.columns)), key=lambda index: (index > 0, not self._is_main(index)))
        for index in by_weight:
            column = self.columns[index]
            measured = self._measure_column(console, options.update_width(10 * options.max_width), column)
            left -= min(measured.maximum, _NAME if index == 0 else max(_FIGURE, measured.minimum))
            if left < 0 and len(kept) > 1:
                break
            kept.add(index)
        return kept

    def _is_main(self, index: int) -> bool:
        return str(self.columns[index].header) in self.main


def table(
    title: str,
    *columns: str,
    rows: Iterable[Sequence[str]] = (),
    most: int | None = None,
    more: str = "more",
    legend: str = "",
    main: Iterable[str] = (),
) -> Table:
    """Return a table: the first column to the left, figures to the right, a legend below.

    It has at most so many rows; a last one says how many ``more`` there are. The ``main`` columns are the last that a narrow
    terminal leaves out.
    """
    made = _FittingTable(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=Text(legend) if legend else None,
        caption_justify="left",
        caption_style="dim",
        box=None,
    )
    made.main = frozenset(main)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", header_style="dim", overflow="fold")
    every = list(rows)
    for row in every[:most]:
        made.add_row(*map(Text, row))
    if most is not None and len(every) > most:
        made.add_row(f"… {len(every) - most:,} {more}", style="dim")
    return made


def facts_table(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a table of names, each with its fact."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return grid


def facts_panel(title: str, facts: Iterable[tuple[str, str | Text]]) -> Panel:
    """Return a frame with a title around names and facts."""
    return Panel(facts_table(facts), title=Text(title, overflow="ellipsis"), title_align="left", expand=False)


def note_lines(notes: Sequence[str]) -> list[RenderableType]:
    """Return a line for each note, below an empty one; nothing without notes."""
    return [Text(), *(Text(f"note: {note}", style="yellow") for note in notes)] if notes else []


def spaced(parts: Iterable[RenderableType]) -> list[RenderableType]:
    """Return the parts, with an empty line above each table."""
    return [line for part in parts for line in ((Text(), part) if isinstance(part, Table) else (part,))]


def shorten(name: str, width: int) -> str:
    """Return a name no wider than ``width``; the front of a module path is cut, because its end says most."""
    return name if len(name) <= width else "…" + name[-(width - 1) :]


def percent(part: float, whole: float = 1.0) -> str:
    """Return a share in percent; only nothing at all is "0%"."""
    share = 100 * part / whole if whole else 0.0
    if share == 0 or share >= 9.95:
        return f"{share:.0f}%"
    return f"{share:.1f}%" if share >= 0.05 else "<0.1%"
