"""Commands that read text and whole numbers by themselves, so that a start does not pay for pydantic.

Newer versions of typer convert every parameter by a pydantic adapter, whose import and building cost 0.12 s. Our
parameters are text, whole numbers and flags. Where typer does not have the place at which the conversion is put in, it
converts as it always does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Plain:
    """Converts what stands on the command line: what typer calls a runtime parameter."""

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
    """Put our conversion in the place of typer's, where a parameter is one of ours and typer has such a place."""
    for parameter in parameters:
        kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
        plain = _NUMBER if kind is int else _FLAG if kind is bool else _TEXT if kind in (str, list[str]) else None
        if plain is not None and hasattr(parameter, "_runtime_param"):
            parameter._runtime_param = plain


class QuickCommand(TyperCommand):
    """A command that converts its parameters without pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Convert the parameters plainly."""
        _convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)


class QuickGroup(TyperGroup):
    """A group of commands that converts its parameters without pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Convert the parameters plainly."""
        _convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)
