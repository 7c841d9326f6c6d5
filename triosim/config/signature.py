"""Gives a function of the Python interface that takes ``**options`` the signature and the documentation of the options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from triosim.config.option import Option
from triosim.config.parts import flags
from triosim.config.run_config import COMMON

Function = TypeVar("Function", bound=Callable[..., Any])


def with_options(function: Function) -> Function:
    """Replace ``**options`` by a keyword for each option of a run, with its default, and list them in the docstring."""
    return with_keywords(*COMMON.values(), *flags().values())(function)


def with_keywords(*options: Option) -> Callable[[Function], Function]:
    """Replace ``**options`` by a keyword for each of these, with its default, and list them in the docstring."""
    return lambda function: _declared(function, options)


def _declared(function: Function, every: Iterable[Option]) -> Function:
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    names = {one.name for one in own}
    options = [option for option in every if option.name not in names]
    keywords = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default) for one in options]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]  # as inspect documents
        parameters=[*own, *keywords]
    )
    function.__doc__ = "\n".join((inspect.getdoc(function) or "", "", *_lines(options)))
    return function


def _lines(options: list[Option]) -> Iterator[str]:
    for option in options:
        default = "" if option.default in (None, "") else f" [{option.default}]"
        yield f"{option.name}: {_text(option)}{default}"


def _text(option: Option) -> str:
    """Return what an option means to who writes Python: with names of keywords for flags, and all words that it knows."""
    text = option.python_help or option.help.removesuffix(" Repeatable.")
    text = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), text)
    unsaid = any(word not in text for word in option.choices)
    return f"{text} One of: {', '.join(option.choices)}." if unsaid else text
