"""A row as the command line that a user would type, and what it predicts: both are one list of arguments."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import typer

from triosim.cli import memory, simulate
from triosim.cli.main import app
from triosim.cli.subject import ConfiguredRun, configured
from triosim.errors import OptionError, TriosimError
from triosim.memory import MemoryReport
from triosim.pipeline.rank_memory import memory_of_config
from triosim.results.result import Result
from triosim.simulation import simulate_config
from validation.steps.rows import Format, Prediction, Row


class OutOfScope(TriosimError):
    """What a row trains is not described by triosim, and not meant to be: docs/validation.md lists it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of ``triosim simulate``, or ``triosim memory``, by its arguments."""

    arguments: tuple[str, ...]
    verb: Literal["simulate", "memory"] = "simulate"

    def __str__(self) -> str:
        return shlex.join(("triosim", self.verb, *self.arguments))

    @classmethod
    def of(cls, model: str, **options: Any) -> Command:
        """Return the command for a model, with options by name: None leaves one out, and True is a flag."""
        said = [model]
        for name, value in options.items():
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None and one is not False:
                    said += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
        return cls(tuple(said))

    @property
    def passes(self) -> int:
        """How often a stage of the pipeline runs a micro-batch forward: what a simulation's own time grows with."""
        said = dict(pairwise(self.arguments))
        stages = int(dict(axis.split("=") for axis in said.get("--parallel", "pp=1").split(",")).get("pp", 1))
        return int(said.get("--micro-batches", 1)) * stages * int(said.get("--virtual-stages", 1))

    def run(self) -> ConfiguredRun:
        """Return what the command line asks for. Raises ``TriosimError`` for what it cannot be."""
        group: Any = typer.main.get_command(app)
        try:
            with group.loaded(self.verb).make_context(f"triosim {self.verb}", list(self.arguments)) as context:
                given = dict(context.params)
        except Exception as error:
            usage: Any = error
            if not hasattr(usage, "format_message"):  # click's, which newer versions of typer bring along
                raise
            raise OptionError(usage.format_message(), where=str(self)) from None
        own = simulate.OPTIONS if self.verb == "simulate" else memory.OPTIONS
        return configured(self.verb, given.pop("trace"), given, own)

    def result(self) -> Result:
        """Return what ``triosim simulate`` predicts. Raises ``TriosimError`` as the command does."""
        run = self.run()
        return simulate_config(run.subject, run.config)

    def memory(self) -> MemoryReport:
        """Return what ``triosim memory`` says of the fullest rank. Raises ``TriosimError`` as the command does."""
        run = self.run()
        world = memory_of_config(run.subject, run.config)
        return world.report(world.fullest.rank)


class CommandFormat(Format):
    """A format whose rows are plain commands: a row's ``case`` is its ``Command``.

    What is ``measured`` are the seconds or milliseconds of a step, or GiB that are ``counted`` as the allocator has reserved or
    handed them out. Rows of more than the ``most_passes`` of their part of the table take minutes, and are not quick.
    """

    counted: ClassVar[Literal["reserved", "allocated"]] = "reserved"
    most_passes: ClassVar[Mapping[str, float]] = {}

    def predicted(self, row: Row) -> Prediction:
        """Return the time of the step and its interval, or the GiB of the fullest rank."""
        command = self.command(row)
        if command.verb == "memory":
            return Prediction(getattr(command.memory(), f"peak_{self.counted}") / 2**30)
        return Prediction.of_step(command.result(), row.unit)

    def is_quick(self, row: Row) -> bool:
        """Whether it is predicted in some seconds."""
        return self.command(row).passes <= self.most_passes.get(row.part, math.inf)

    def command(self, row: Row) -> Command:
        """Return the row's command."""
        found: Command = row.case
        return found


def axes(**sizes: int) -> str | None:
    """Return ``--parallel`` of the sizes by axis: ``dp=2,tp=4``; None for one GPU."""
    return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1) or None
