"""The options that the parts of a run declare, gathered from the plug-in registry by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from triosim import plugins
from triosim.config.option import Option

#: The plug-in groups whose parts declare options with flags of their own.
_GROUPS: tuple[plugins.Group, ...] = ("extrapolators",)


def declared(part: Any) -> tuple[Option, ...]:
    """Return the options that a part's class declares."""
    found: tuple[Option, ...] = getattr(part, "options", ())
    return found


@cache
def flags() -> Mapping[str, Option]:
    """Return by name the options with flags of their own that the parts which ship with triosim declare.

    This imports all of them; a plug-in's options are reached as ``--option NAME=VALUE``.
    """
    return {option.name: option for _, option in _declarations() if option.own_flag}


@cache
def readers(name: str) -> tuple[str, ...]:
    """Return the names of the parts that declare an option with a flag of its own."""
    return tuple(part for part, option in _declarations() if option.own_flag and option.name == name)


def takes_text(option: Option) -> bool:
    """Whether ``--option`` gives its value: it has no flag, or is a plug-in's that nobody could make a flag for."""
    return not option.own_flag or option.name not in flags()


def _declarations() -> Iterator[tuple[str, Option]]:
    """Yield the options of each part, and those of the parts that it uses in turn, by the part's name."""
    for group in _GROUPS:
        for part in plugins.BUILT_IN[group]:
            for option in declared(plugins.load(group, part)):
                yield part, option
                if option.group is not None:
                    yield from ((part, own) for own in _of_group(option.group))


def _of_group(group: plugins.Group) -> Iterator[Option]:
    for name in plugins.BUILT_IN[group]:
        yield from declared(plugins.load(group, name))
