"""Options of the command line: those of a run, made from their declarations, and those that several commands share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from triosim import plugins
from triosim.config import COMMON, CONDITIONS, Option, flags
from triosim.config.file import at_line
from triosim.config.option import GENERAL, OUTPUT, Command
from triosim.errors import OptionError
from triosim.output_files import STANDARD_OUTPUT

Function = TypeVar("Function", bound=Callable[..., None])


def _words(module: str, name: str) -> Iterable[str]:
    """Return words that a module above knows, which is loaded when a shell asks for them."""
    found: Iterable[str] = getattr(import_module(module), name)
    return found


def _files(*patterns: str) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(Path().glob(pattern))]


def _models() -> list[str]:
    return sorted(_words("triosim.models.catalogue", "MODELS"))


#: What a shell completes, by the name of an option or argument: words that have a meaning, and files here that may have one.
COMPLETED: Mapping[str, Callable[[], Iterable[str]]] = {
    "parallel": lambda: plugins.names("extrapolators"),
    "network": lambda: plugins.names("networks"),
    "collective": lambda: plugins.names("collective_algorithms"),
    "compute_model": lambda: plugins.names("compute_models"),
    "trace_format": lambda: plugins.names("trace_formats"),
    "topology": lambda: [*_words("triosim.networks.topology.presets", "PRESETS"),
                         *_words("triosim.networks.topology.shapes", "SHAPES"), *_files("*.yaml", "*.yml")],
    "gpu": lambda: [*(gpu.name for gpu in import_module("triosim.gpus").catalogue()), *_files("*.yaml")],
    "schedule": lambda: [*plugins.names("schedules"), *_files("*.csv")],
    "recompute": lambda: [*_words("triosim.extrapolators.core.recompute", "POLICIES"), "save="],
    "model": _models,
    "subject": lambda: [*_files("*"), *_models()],
}  # fmt: skip


def completing(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a shell completion over words that are found when they are needed."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def argument(metavar: str, help: str, completed: str = "") -> Any:
    """Return what typer is to know of a positional argument; ``completed`` is its key in ``COMPLETED``."""
    completion = completing(COMPLETED[completed]) if completed else None
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=completion)


# fmt: off
#: Options of several commands, and of what is done with a result, which are no options of a run.
CONFIG = Option("config", metavar="FILE", panel=GENERAL, help=
    "A YAML or JSON file of options by name, or a result.json. Options on the command line override it.")
SAVE_CONFIG = Option("save_config", metavar="FILE", panel=GENERAL, help=
    "Write the options of this run for --config (.yaml, .yml or .json).")
LIKE = Option("like", metavar="FILE", panel=GENERAL, help=
    "A launch file, whose options the run takes: torchtitan's TOML, Megatron-LM's arguments, DeepSpeed's JSON, accelerate's "
    "YAML, TrainingArguments as JSON, or a script that runs torchrun. --config and the command line override it.")
IGNORE_UNKNOWN = Option("ignore_unknown", "flag", False, panel=GENERAL, help=
    "List what --like does not understand of its file, and leave it out.")
EXPORT = (
    Option("export", metavar="DIR", panel=OUTPUT, help="Write launch files for training frameworks into a folder."),
    Option("frameworks", "object", flag="--for", metavar="NAME", panel=OUTPUT, repeatable=True, help=
        "The framework that --export writes for: torchtitan, megatron, deepspeed or accelerate. Repeatable."),
)
PLOT = Option("plot", metavar="FILE", panel=OUTPUT, help="A picture (png, svg, pdf).")
MONITOR = (
    Option("monitor", "flag", False, panel=OUTPUT, help=
        "Show the run while it goes on, on a page of this machine; its URL is printed on standard error."),
    Option("monitor_port", "whole", least=1, metavar="N", panel=OUTPUT, help="The port of the monitor's page. By default any."),
)
REPORT = Option("report", metavar="FILE", panel=OUTPUT, help=
    "A page (.html) for people who were not at the terminal; it opens without a network.")
WRITE = Option("write", "object", metavar="REPORT=FILE", panel=OUTPUT, repeatable=True, help=
    "A report by name, or a plug-in's (file.py:Class), to a file. Its options are given by --option. Repeatable.")
FORMAT = Option("format", "choice", "table", choices=("table", "json"), metavar="FORM", panel=OUTPUT, help=
    "The form of the output: table, or json alone.")
ROUTING = Option("routing", metavar="LOAD", panel=GENERAL, help=
    "The experts that routers choose are drawn: balanced, uniform, consecutive, power-law=1.5,seed=3 or zipf=1.2,seed=3.")
QUIET = Option("quiet", "flag", False, short="-q", panel=OUTPUT, help="Print no tables and show no progress.")
# fmt: on
TRACE_FORMAT = COMMON["trace_format"]


def takes(*own: Option, run: Iterable[Option] = ()) -> Callable[[Function], Function]:
    """Give a command the parameters of options, which reach it as keywords.

    The command's ``own`` are checked and converted; those of a ``run`` reach it as they were written, None where they were not.
    """

    def with_options(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        arguments = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        every = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*arguments, *map(parameter, (*run, *own)))
        ]

        @wraps(function)
        def command(**given: Any) -> None:
            checked = {option.name: option.parse(given[option.name]) for option in own}
            try:
                with redirect_stdout(sys.stderr if _writes_to_standard_output(checked) else sys.stdout):
                    function(**given | checked)
            except OptionError as error:
                if checked.get("config") is None:
                    raise
                raise at_line(error, checked["config"], _named(given)) from error

        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]  # as inspect documents
        command.__annotations__ = {one.name: one.annotation for one in every}
        return cast(Function, command)

    return with_options


def _writes_to_standard_output(checked: Mapping[str, Any]) -> bool:
    """Whether an output of a command is standard output, which whatever else it prints then leaves alone."""
    written = [value for name, value in checked.items() if name not in _READ]
    return STANDARD_OUTPUT in written or any(
        str(one).endswith(f"={STANDARD_OUTPUT}") for one in checked.get("write") or ()
    )


#: Options of commands that name what is read; ``-`` is then standard input.
_READ = ("config", "like", "models", "topology", "plan", "show", "space")


def _named(given: Mapping[str, Any]) -> set[str]:
    """Return the names of the conditions, and of the options of parts, that a command line gives."""
    conditions = {option.name for option in CONDITIONS if given.get(option.name)}
    return conditions | {text.partition("=")[0] for text in given.get("options") or ()}


def of_run(command: Command) -> list[Option]:
    """Return the options of a run that a command has."""
    return [option for option in (*COMMON.values(), *flags().values(), *CONDITIONS) if command in option.commands]


def parameter(option: Option) -> inspect.Parameter:
    """Return what typer is to know of an option."""
    completed = COMPLETED.get(option.name, (lambda: option.choices) if option.choices else None)
    declared = typer.Option(
        *filter(None, (option.declaration, option.short)),
        metavar=option.metavar or None,
        help=f"{option.help}{_shown_default(option)}",
        rich_help_panel=option.panel or None,
        show_default=False,
        autocompletion=None if completed is None else completing(completed),
    )
    kind, default = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty if option.required else None
    return inspect.Parameter(option.name, kind, default=default, annotation=Annotated[_annotation(option), declared])


def _annotation(option: Option) -> Any:
    if option.repeatable:
        return list[str] | None
    plain = {"flag": bool, "whole": int}.get(option.kind, str)
    return plain if option.required else plain | None


def _shown_default(option: Option) -> str:
    """Return the default as ``--help`` shows it; typer is told of none, so that what was not given is None."""
    value = option.default
    if option.kind == "flag":
        on, _, off = option.declaration.partition("/")
        value = None if value is None or not off else (on if value else off).lstrip("-")
    return "" if value is None or value == "" else f" [dim]\\[default: {value}][/dim]"
