"""The console on which everything is shown: what comes from a file is text there, never an escape sequence or markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from triosim.errors import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType
    from rich.segment import Segment


def new_console(**options: Any) -> Console:
    """Return a console with options of rich's ``Console``, which shows control characters in texts as pictures."""
    from rich.console import Console

    # In a notebook rich would show its own output in the place of the text that is asked for.
    console = Console(highlight=False, markup=False, force_jupyter=False, **options)
    hook: Any = _Printable()
    console.push_render_hook(hook)
    return console


class _Printable:
    """A render hook of rich's."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[_Shown]:
        return [_Shown(one) for one in renderables]


class _Shown:
    """What rich can show, without control characters in its texts; rich's own styles stay."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
