"""The command ``triosim doubt``: shows what the interval of a result's step time comes from, and what would narrow it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from triosim.cli import options as o
from triosim.cli.command import LaterModule, show_on_terminal
from triosim.reports.terminal.progress import Progress
from triosim.results.loading import read_result

result_tables = LaterModule("reports.terminal.result_tables")


def command(result: Annotated[str, o.argument("RESULT", "A result that 'triosim simulate -o' wrote.")]) -> None:
    """Show what the doubt about a result's step time comes from, and which measurements would narrow it.

    [bold]Example[/]

    [cyan]triosim simulate llama3-8b -p fsdp -n 8 -o result.json[/]
    [cyan]triosim doubt result.json[/]
    """
    with Progress():
        found = read_result(Path(result))
    show_on_terminal(result_tables.doubts_table(found))
