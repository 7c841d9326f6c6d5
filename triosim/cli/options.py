"""Options of the command line: those of a run, made from their declarations, and those that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from triosim import plugins
from triosim.config import COMMON, CONDITIONS, Option, flags
from triosim.config.option import OUTPUT, Command
from triosim.errors import OptionError, nearest

Function = TypeVar("Function", bound=Callable[..., None])


def one_of(option: str, words: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that make an option complete some words and refuse all others."""
    known = tuple(words)

    def check(value: str | None) -> str | None:
        if value is not None and value not in known:
            raise OptionError(f"'{value}' is not known", where=option, fix=nearest(value, known))
        return value

    return {"callback": check, "autocompletion": completing(lambda: known)}


def completing(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a shell completion over words that are found when they are needed."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def plugin_names(group: str) -> Callable[[], list[str]]:
    """Return what finds the names of a plug-in group."""
    return lambda: plugins.names(cast(plugins.Group, group))


def topology_names() -> list[str]:
    """Return the topologies that have a name, and the files here that may be one."""
    return [*_words("triosim.networks.topology.presets", "PRESETS"), *_words("triosim.networks.topology.shapes", "SHAPES"),
            *_files("*.yaml"), *_files("*.yml")]  # fmt: skip


def gpu_names() -> list[str]:
    """Return the GPUs of the catalogue, and the files here that may be one."""
    return [*(gpu.name for gpu in import_module("triosim.gpus").catalogue()), *_files("*.yaml")]


def schedule_names() -> list[str]:
    """Return the pipeline schedules that have a name, and the files here that may be one."""
    return [*plugins.names("schedules"), *_files("*.csv")]


def recompute_policies() -> list[str]:
    """Return the words that ``--recompute`` knows."""
    return [*_words("triosim.extrapolators.core.recompute", "POLICIES"), "save="]


def subjects() -> list[str]:
    """Return what may be simulated: files here, and models that have a name."""
    return [*_files("*"), *model_names()]


def model_names() -> list[str]:
    """Return the models that have a name."""
    return sorted(_words("triosim.models.catalogue", "MODELS"))


def _words(module: str, name: str) -> Iterable[str]:
    """Return words that a module above knows, which is loaded when a shell asks for them."""
    found: Iterable[str] = getattr(import_module(module), name)
    return found


def _files(pattern: str) -> list[str]:
    return [str(path) for path in sorted(Path().glob(pattern))]


#: What a shell completes, by an option's name.
_COMPLETED: Mapping[str, Callable[[], Iterable[str]]] = {
    "parallel": plugin_names("extrapolators"),
    "network": plugin_names("networks"),
    "collective": plugin_names("collective_algorithms"),
    "compute_model": plugin_names("compute_models"),
    "trace_format": plugin_names("trace_formats"),
    "topology": topology_names,
    "gpu": gpu_names,
    "schedule": schedule_names,
    "recompute": recompute_policies,
}

#: What several commands do with what comes back, which is no option of a run.
CONFIG = Option(
    "config",
    help="A YAML or JSON file of options by name, or a result.json. Options on the command line override it.",
    metavar="FILE",
    panel="",
)
SAVE_CONFIG = Option(
    "save_config", help="Write the options of this run for --config (.yaml or .json).", metavar="FILE", panel=""
)
PLOT = Option("plot", help="A picture (png, svg, pdf).", metavar="FILE", panel=OUTPUT)
WRITE = Option(
    "write",
    "mapping",
    help="A report by name, or a plug-in's (file.py:Class), to a file. Repeatable.",
    metavar="REPORT=FILE",
    panel=OUTPUT,
    repeatable=True,
)
FORMAT = Option(
    "format",
    "choice",
    "table",
    "The form of what is printed: table, or json alone.",
    choices=("table", "json"),
    metavar="FORM",
    panel=OUTPUT,
)
QUIET = Option("quiet", "flag", False, "Print no tables and show no progress.", short="-q", panel=OUTPUT)


def reports(written: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the reports that ``--write`` asks for, with the files that they are written to."""
    for text in written or ():
        report, separator, path = text.rpartition("=")
        if not separator or not report or not path:
            raise OptionError(f"'{text}' is not a report and a file", where="--write", fix="write csv=run.csv")
        yield report, path


def takes(*options: Option) -> Callable[[Function], Function]:
    """Give a command the parameters of ``options``, which reach it as keywords; None is one that was not given."""

    def with_options(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *map(parameter, options))]

        @wraps(function)
        def command(**given: Any) -> None:
            function(**given)

        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]  # as inspect documents
        command.__annotations__ = {one.name: one.annotation for one in every}
        return cast(Function, command)

    return with_options


def of_run(command: Command, own: Sequence[Option]) -> tuple[Option, ...]:
    """Return the options of a run that a command has, and then its own."""
    every = (*COMMON.values(), *flags().values(), *CONDITIONS)
    return (*(option for option in every if command in option.commands), *own)


def parameter(option: Option) -> inspect.Parameter:
    """Return what typer is to know of an option."""
    completed = _COMPLETED.get(option.name, (lambda: option.choices) if option.choices else None)
    declared = typer.Option(
        *filter(None, (option.declaration, option.short)),
        metavar=option.metavar or None,
        help=f"{option.help}{_shown_default(option)}",
        rich_help_panel=option.panel or None,
        show_default=False,
        autocompletion=None if completed is None else completing(completed),
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, kind, default=None, annotation=Annotated[_annotation(option), declared])


def _annotation(option: Option) -> Any:
    if option.repeatable:
        return list[str] | None
    return {"flag": bool, "whole": int}.get(option.kind, str) | None


def _shown_default(option: Option) -> str:
    """Return the default as ``--help`` shows it; typer is told of none, so that what was not given is None."""
    value = option.default
    if option.kind == "flag":
        on, _, off = option.declaration.partition("/")
        value = None if value is None or not off else (on if value else off).lstrip("-")
    return "" if value is None or value == "" else f" [dim]\\[default: {value}][/dim]"


#: Options of a run that a command declares with a help text of its own.
_OWN = ("gpu", "gpus")


def chosen(own: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``triosim.simulate`` for options of a command line that were given, but for a command's own."""
    conditions = {option.name for option in CONDITIONS}
    others = conditions.union(option.name for option in own).difference(_OWN)
    said = {name: value for name, value in given.items() if value not in (None, [])}
    found = {name: value for name, value in said.items() if name not in others}
    if "training" in found:
        found["training"] = False  # --inference
    if conditions & said.keys():
        found["conditions"] = {name: value for name, value in said.items() if name in conditions}
    return found


Format = Annotated[
    str,
    typer.Option(
        "--format", **one_of("--format", FORMAT.choices), metavar="FORM", rich_help_panel=OUTPUT, help=FORMAT.help
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help=QUIET.help)]
TraceFormat = Annotated[
    str | None,
    typer.Option(
        "--trace-format",
        metavar="NAME",
        autocompletion=completing(plugin_names("trace_formats")),
        show_default=False,
        help=COMMON["trace_format"].help,
    ),
]
