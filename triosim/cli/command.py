"""The shared parts of commands: finding them, parsing their options, and printing.

Commands read text and whole numbers by themselves, so that a start does not pay for pydantic: newer versions of typer convert
every parameter by an adapter of it, whose import and building cost 0.12 s. Our parameters are text, whole numbers and flags.
Where typer does not have the place at which the conversion is put in, it converts as it always does.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from triosim.cli.help import narrow
from triosim.errors import OptionError
from triosim.output_files import writing_text
from triosim.reports.terminal.console import new_console

if TYPE_CHECKING:
    from rich.console import RenderableType


class _Plain:
    """Converts the values of a parameter, in the place of typer's runtime parameter."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; one that may be repeated, or takes several words, is a list."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return [] if several else None
        if several:
            return [self.convert(item) for item in value]
        try:
            return self.convert(value)
        except ValueError:
            raise typer.BadParameter(f"'{value}' is not a whole number", ctx=ctx, param=param) from None


_TEXT, _NUMBER, _FLAG = _Plain(str), _Plain(int), _Plain(bool)


def _convert_plainly(parameters: Iterable[Any]) -> None:
    """Put our conversion, and our words for types, in the place of typer's, where typer has such a place."""
    for parameter in parameters:
        kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        plain = _NUMBER if kind is int else _FLAG if kind is bool else _TEXT if kind in (str, list[str]) else None
        if plain is not None and hasattr(parameter, "_runtime_param"):
            parameter._runtime_param = plain
        if getattr(parameter, "nargs", 1) == -1 and hasattr(parameter, "display_type_rich"):
            parameter.display_type_rich = lambda ctx: "LIST"  # and not its annotation, <list[str]>
        elif hasattr(parameter, "display_type_rich") and (kind is bool or parameter.param_type_name == "argument"):
            parameter.display_type_rich = lambda ctx: ""  # a flag has no value, an argument's name says what it is


def _format_help(command: Any, context: Any, formatter: Any, usual: Callable[[Any, Any], None]) -> None:
    """Show the help of a command, on a narrow terminal without columns."""
    if narrow.is_narrow():
        formatter.write(narrow.help_of(command, context))
    else:
        usual(context, formatter)


class QuickCommand(TyperCommand):
    """A command that converts its parameters without pydantic, and takes an option that has one value once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Convert the parameters plainly. Raises ``OptionError`` for an option that is given twice, or on and off."""
        _convert_plainly(self.get_params(ctx))
        *_, order = self.make_parser(ctx).parse_args(list(args))
        parameters: Counter[Any] = Counter(order)
        for option, times in parameters.items():
            if times > 1 and not (option.multiple or option.is_flag):
                raise OptionError("is given twice", where=option.opts[0], fix="give it once")
            if times > 1 and not (set(args).isdisjoint(option.opts) or set(args).isdisjoint(option.secondary_opts)):
                off = option.secondary_opts[0]
                raise OptionError(f"is given together with {off}", where=option.opts[0], fix="give one of the two")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help."""
        _format_help(self, ctx, formatter, super().format_help)


class QuickGroup(TyperGroup):
    """A group of commands that converts its parameters without pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Convert the parameters plainly."""
        _convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help."""
        _format_help(self, ctx, formatter, super().format_help)


class LazyGroup(QuickGroup):
    """A group whose commands are imported when they run; their names and first sentences are known before.

    A module has a function ``command`` (and may have a class for it, ``COMMAND``), or an ``app`` with commands of its own.
    """

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: QuickCommand(name, help=sentence) for name, (_, sentence) in self.lazy.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is to run."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.loaded(name), rest

    def loaded(self, name: str) -> Any:
        """Return a command, imported."""
        module = import_module(self.lazy[name][0])
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(
                rich_markup_mode="rich", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
            )
            app.command(name, cls=getattr(module, "COMMAND", QuickCommand), help=_help(module.command))(module.command)
        found = typer.main.get_command(app)
        found.name = name
        return found


class LaterModule:
    """A module of triosim that is imported when an attribute of it is first used: a command's help does not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(f"triosim.{self._name}"), name)


def _help(command: Callable[..., Any]) -> str:
    """Return the docstring of a command with each paragraph on one line, but for examples, so that a terminal wraps it."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(text if "[cyan]triosim" in text else " ".join(text.split()) for text in paragraphs)


def give_answer(given: Mapping[str, Any], text: str, tables: Callable[[], Iterable[RenderableType]]) -> None:
    """Write an answer as JSON to ``output``, and print it: the JSON, or ``tables`` unless the command is quiet."""
    if given["output"] is not None:
        with writing_text(given["output"]) as file:
            file.write(text)
    if given["format"] == "json":
        sys.stdout.write(text)
    elif not given["quiet"]:
        show_on_terminal(*tables())


def show_on_terminal(*what: RenderableType) -> None:
    """Print what rich can show, one below the other."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "…" still shows the rest
    console = new_console()
    for one in what:
        console.print(one, crop=False)
