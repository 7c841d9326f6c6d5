"""The command ``triosim plugins``: lists the networks, algorithms, models and other parts that options can name."""

from __future__ import annotations

from triosim import plugins as registry
from triosim.cli.command import LaterModule, show_on_terminal

tables = LaterModule("reports.terminal.tables")


def command() -> None:
    """List the names that options take: parts that ship with triosim, and plug-ins.

    Parallelisms, networks, collective algorithms, compute models, trace formats and reports. Installed packages add to it by
    entry points; a file is named as [cyan]file.py:Class[/].
    """
    made = tables.table("Names that options take", "kind", "names")
    for group in registry.GROUPS:
        made.add_row(registry.shown(group), ", ".join(registry.names(group)))
    made.columns[1].justify = "left"
    show_on_terminal(made)
