"""The options that the parts of a run declare in their class attribute ``options``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from triosim import plugins
from triosim.config.option import Option


def declared(part: Any) -> tuple[Option, ...]:
    """Return the options that a part's class declares."""
    found: tuple[Option, ...] = getattr(part, "options", ())
    return found


def parsed(part: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` by name, with those that a part's class declares checked and converted.

    A part that takes its options as keywords of its constructor (a network, a compute model) is made with them.
    """
    known = {option.key or option.name: option for option in declared(part)}
    return {
        key: known[key].parse(value, f"--option {key}") if key in known else value for key, value in options.items()
    }


@cache
def flags() -> Mapping[str, Option]:
    """Return by name the options of parallelisms that have a flag of their own, without importing parallelisms.

    Every other option of a part, and of a plug-in, is given as ``--option NAME=VALUE``.
    """
    return {option.name: option for option in plugins.parallelism_flags()}


@cache
def readers(name: str) -> tuple[str, ...]:
    """Return the names of the parallelisms that ship with triosim and read an option; this imports all of them."""
    return tuple(part for part in plugins.BUILT_IN["extrapolators"] if name in _options_read(part))


def takes_text(option: Option) -> bool:
    """Whether ``--option`` gives its value, since it has no flag."""
    return option.name not in flags()


def _options_read(parallelism: str) -> Iterator[str]:
    """Yield the names of the options of a parallelism, and of those of the parts that it uses in turn."""
    for option in declared(plugins.load("extrapolators", parallelism)):
        yield option.name
        if option.group is not None:
            for name in plugins.BUILT_IN[option.group]:
                yield from (own.name for own in declared(plugins.load(option.group, name)))
