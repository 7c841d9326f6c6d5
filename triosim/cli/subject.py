"""What ``simulate``, ``compare`` and ``memory`` run: a trace, and a configuration from the command line and from a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from triosim.cli import options as o
from triosim.config import RunConfig
from triosim.config.file import ConfigFile, merged, read_config, write_config
from triosim.config.option import Command
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
    """The subject of a run and its options; ``given`` are those that differ from the defaults, as they were written."""

    subject: str
    config: RunConfig
    given: Mapping[str, Any]

    @property
    def files(self) -> Iterator[str]:
        """The names that may be files that the run reads, so that no output replaces them."""
        yield self.subject
        for name in ("topology", "gpu", "operator_times", "schedule"):
            if isinstance(self.given.get(name), str):
                yield self.given[name]

    def with_options(self, **options: Any) -> ConfiguredRun:
        """Return it with other values of some options."""
        return replace(self, config=self.config.replaced(**options))

    def save(self, path: str | None) -> None:
        """Write what was given to a file that ``--config`` reads."""
        if path is not None:
            write_config(path, {"trace": self.subject, **self.given})


def configured(command: Command, trace: str | None, given: Mapping[str, Any]) -> ConfiguredRun:
    """Return the run that a command line and its ``--config`` ask for. Raises ``OptionError`` for what cannot be."""
    path = given["config"]
    file = ConfigFile() if path is None else read_config(path)
    subject = trace if trace is not None else file.trace
    if subject is None:
        raise OptionError("Missing argument 'TRACE'", fix=f"see 'triosim {command} --help'")
    said = merged(file.options, o.chosen(command, given))
    return ConfiguredRun(subject, RunConfig.of(**said), said)
