"""The subject of ``simulate``, ``compare`` and ``memory``: a trace or a model, and options from the command line and a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from triosim.cli import options as o
from triosim.config import Option, RunConfig
from triosim.config.file import ConfigFile, files_named, merged, read_config, write_config
from triosim.config.option import Command
from triosim.config.run_config import option_named
from triosim.errors import OptionError

TracePath = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE|MODEL",
        help="A trace in any known format: a file or a folder. Or a model that 'triosim describe' knows: its name, or its "
        "config.json.",
        autocompletion=o.completing(o.subjects),
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ConfiguredRun:
    """The subject of a run and its options; ``given`` are those that differ from the defaults, as they were written.

    ``source`` is the file of ``--config``.
    """

    subject: str
    config: RunConfig
    given: Mapping[str, Any]
    source: str | None = None

    @property
    def files(self) -> Iterator[str]:
        """The names that may be files that the run reads, so that no output replaces them."""
        yield self.subject
        if self.source is not None:
            yield self.source
        for name, value in self.given.items():
            yield from files_named(option_named(name), value)

    def with_options(self, **options: Any) -> ConfiguredRun:
        """Return it with other values of some options."""
        return replace(self, config=self.config.replaced(**options))

    def save(self, path: str | None) -> None:
        """Write what was given to a file that ``--config`` reads."""
        if path is not None:
            write_config(path, {"trace": self.subject, **self.given})


def _of_command(command: Command, options: Mapping[str, Any], path: str | None) -> dict[str, Any]:
    """Return the options of a file that a command has; say which others are given, since they have no effect."""
    if not options:
        return {}
    have = {option.name for option in o.of_run(command, ())}.union(("gpu", "gpus", "conditions", "timeline", "links"))
    others = {name: value for name, value in options.items() if name not in have}
    config = RunConfig.of(**others)
    useless = [name for name in others if config.is_given(name)]
    if useless:
        verb = "has" if len(useless) == 1 else "have"
        print(f"triosim: note: {path}: {', '.join(useless)} {verb} no effect in {command}", file=sys.stderr)
    return {name: value for name, value in options.items() if name in have}


def configured(command: Command, trace: str | None, given: Mapping[str, Any], own: Sequence[Option]) -> ConfiguredRun:
    """Return the run that a command line and its ``--config`` ask for; ``own`` are options that are not of the run.

    Raises ``OptionError`` for what cannot be.
    """
    path = given["config"]
    file = ConfigFile() if path is None else read_config(path)
    subject = trace if trace is not None else file.trace
    if subject is None:
        raise OptionError("Missing argument 'TRACE'", fix=f"see 'triosim {command} --help'")
    options = _of_command(command, file.options, path)
    said = merged(options, o.chosen(own, given))
    return ConfiguredRun(subject, RunConfig.of(**said), said, path)
