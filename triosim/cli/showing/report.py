"""The command ``triosim report``: writes a page of a result that was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import OUTPUT
from triosim.errors import OptionError
from triosim.input_files.pipes import STANDARD_INPUT
from triosim.reports.terminal.progress import Progress

results = LaterModule("results.result")

OPTIONS = (
    Option("output", metavar="FILE", panel=OUTPUT, short="-o", help="The page (.html). By default beside the result."),
)


@o.takes(*OPTIONS)
def command(
    result: Annotated[str, o.argument("RESULT", "A result that 'triosim simulate -o' wrote.")], **given: Any
) -> None:
    """Write a page of a result, for people who were not at the terminal: one HTML file that opens without a network.

    With --record, a result also holds the timeline, the loads of links and the memory over time; the page names what is
    missing.

    [bold]Example[/]

    [cyan]triosim simulate llama3-8b -p fsdp -n 8 -o result.json.gz --record[/]
    [cyan]triosim report result.json.gz -o report.html[/]
    """
    target = given["output"] or f"{result.removesuffix('.gz').removesuffix('.json')}.html"
    if result == STANDARD_INPUT and given["output"] is None:
        raise OptionError("is missing", where="--output", fix="name the page, such as report.html")
    if result != STANDARD_INPUT and Path(target).resolve() == Path(result).resolve():
        raise OptionError(f"'{target}' is the result itself", where="--output", fix="name another file")
    with Progress() as progress:
        found = results.Result.load(result)
        progress.said("writing the page")
        found.save_report(target)
