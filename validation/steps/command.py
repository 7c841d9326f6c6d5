"""A row as the command line that a user would type, and what it predicts: both are one list of arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import typer

from triosim.cli import simulate
from triosim.cli.main import app
from triosim.cli.subject import ConfiguredRun, configured
from triosim.errors import OptionError, TriosimError
from triosim.results.result import Result
from triosim.simulation import simulate_config
from validation.steps.rows import Format, Prediction, Row


class OutOfScope(TriosimError):
    """What a row trains is not described by triosim, and not meant to be: docs/validation.md lists it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of ``triosim simulate``, by its arguments."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(("triosim", "simulate", *self.arguments))

    @classmethod
    def of(cls, model: str, **options: Any) -> Command:
        """Return the command for a model, with options by name: None leaves one out, and True is a flag."""
        said = [model]
        for name, value in options.items():
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and one is not False:
                    said += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
        return cls(tuple(said))

    def run(self) -> ConfiguredRun:
        """Return what the command line asks for. Raises ``TriosimError`` for what it cannot be."""
        group: Any = typer.main.get_command(app)
        try:
            with group.loaded("simulate").make_context("triosim simulate", list(self.arguments)) as context:
                given = dict(context.params)
        except Exception as error:
            usage: Any = error
            if not hasattr(usage, "format_message"):  # click's, which newer versions of typer bring along
                raise
            raise OptionError(usage.format_message(), where=str(self)) from None
        return configured("simulate", given.pop("trace"), given, simulate.OPTIONS)

    def result(self) -> Result:
        """Return what the command predicts. Raises ``TriosimError`` as the command does."""
        return _result(self.arguments)


@lru_cache(maxsize=4)
def _result(arguments: tuple[str, ...]) -> Result:
    run = Command(arguments).run()
    return simulate_config(run.subject, run.config)


class CommandFormat(Format):
    """A format whose rows are plain commands: a row's ``case`` is its ``Command``, and ``measured`` the seconds of a step."""

    def predicted(self, row: Row, constants: Mapping[str, float]) -> Prediction:
        """Return the seconds of the step, and their interval."""
        result = self.command(row).result()
        return Prediction(result.step_time_s, *(result.step_time_interval_s or ()))

    def command(self, row: Row) -> Command:
        """Return the row's command."""
        found: Command = row.case
        return found


def axes(**sizes: int) -> str | None:
    """Return ``--parallel`` of the sizes by axis: ``dp=2,tp=4``; None for one GPU."""
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or None
