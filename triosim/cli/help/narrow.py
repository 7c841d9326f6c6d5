"""The help of a command on a narrow terminal: an option a line, and its text below; columns would be a word wide."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

#: Terminals of fewer columns are narrow.
NARROWEST = 72


def is_narrow() -> bool:
    """Whether the terminal is too narrow for columns."""
    return shutil.get_terminal_size().columns < NARROWEST


def help_of(command: Any, context: Any) -> str:
    """Return the help of a command or a group."""
    width = max(20, shutil.get_terminal_size().columns)
    return "\n".join(line for text, indent in _texts(command, context) for line in _wrapped(text, indent, width)) + "\n"


def _texts(command: Any, context: Any) -> Iterator[tuple[str, int]]:
    """Yield the paragraphs of a help and how far each is indented; empty ones are empty lines."""
    yield " ".join(["Usage:", context.command_path, *command.collect_usage_pieces(context)]), 0
    for paragraph in _plain(command.help or "").split("\n\n"):
        yield "", 0
        for line in paragraph.splitlines():
            yield line.strip(), 0
    panels: dict[str, list[Any]] = {}
    for parameter in command.get_params(context):
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panels.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(parameter)
    for panel, parameters in panels.items():
        yield "", 0
        yield f"{panel}:", 0
        for parameter in parameters:
            yield _names(parameter), 2
            yield _plain(getattr(parameter, "help", None) or ""), 6
    commands = getattr(command, "commands", {})
    if commands:
        yield "", 0
        yield "Commands:", 0
    for name in commands:
        yield name, 2
        yield _plain(commands[name].help or ""), 6


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag or not parameter.metavar else f"{names} {parameter.metavar}"


def _plain(text: str) -> str:
    from rich.text import Text

    return Text.from_markup(text).plain


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False) or (
        [""] if not indent else []
    )
