"""The ``triosim simulate`` command of a run, from its options."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from triosim.config import COMMON, CONDITIONS, Option, RunConfig
from triosim.config.file import as_json
from triosim.config.option import OUTPUT
from triosim.config.run_config import option_named

#: Options whose values are shown as they stand on the command line first, since they say what is run.
_FIRST = ("parallel", "gpus", "gpu", "topology")


def simulate_command(subject: str, config: RunConfig) -> str:
    """Return the command that simulates a subject with these options, as a shell reads it."""
    words = ["triosim", "simulate", subject]
    for name in dict.fromkeys((*_FIRST, *COMMON, *config.parts)):
        option = option_named(name)
        if option.panel != OUTPUT and config.is_given(name):
            words.extend(_words(option, getattr(config, name)))
    return shlex.join(words)


def _words(option: Option, value: Any) -> Iterator[str]:
    """Yield the words that give an option its value."""
    if option.name == "conditions":
        yield from _conditions(value)
    elif option.kind == "mapping":
        for key, one in value.items():
            yield from (option.declaration, f"{key}={one}")
    elif option.kind == "flag":
        on, _, off = option.declaration.partition("/")
        yield on if value or not off else off
    else:
        shown = as_json(option, value)
        if option.kind == "bytes" and isinstance(shown, float) and shown.is_integer():
            shown = f"{int(shown) >> 20} MiB" if int(shown) % 2**20 == 0 else int(shown)
        yield from (option.where, shown if isinstance(shown, str) else str(shown))


def _conditions(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of conditions, each of which has a value, several, or a mapping of ranks to factors."""
    flags = {option.name: option.where for option in CONDITIONS}
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = [f"{key}={one}" for key, one in value.items()]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield from (flags[name], str(one))
