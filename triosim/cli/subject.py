"""The subject of ``simulate``, ``compare`` and ``memory``: a trace or a model, and options from the command line and a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any

from triosim import plugins
from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import CONDITIONS, Option, RunConfig, parsed
from triosim.config.file import ConfigFile, check_config_name, files_named, merged, read_config, write_config
from triosim.config.option import Command
from triosim.config.run_config import option_named
from triosim.errors import OptionError, printable, shortened
from triosim.output_files import check_outputs

reports = LaterModule("results.report")
launch_reading = LaterModule("launch_files.reading")
launch_jobs = LaterModule("launch_files.job")

TracePath = Annotated[
    str | None,
    o.argument(
        "TRACE|MODEL",
        "A trace in any known format, a file or a folder; or a model that 'triosim describe' knows, its name or config.json.",
        "subject",
    ),
]

#: Options of a run that a command declares with a help text of its own.
_REDECLARED = ("gpu", "gpus", "topology")


@dataclass(frozen=True, slots=True)
class ConfiguredRun:
    """The subject of a run and its options; ``given`` are those that differ from the defaults, as they were written.

    ``source`` is the file of ``--config``, ``like`` that of ``--like``, ``target`` that of ``--save-config``; ``places`` are
    those of the options that the launch file gives.
    """

    subject: str
    config: RunConfig
    given: Mapping[str, Any]
    source: str | None
    target: str | None
    like: str | None = None
    places: Any = None

    def naming_places(self) -> AbstractContextManager[None]:
        """Let errors about options that a launch file gives name its lines."""
        found: AbstractContextManager[None] = nullcontext() if self.places is None else self.places.named()
        return found

    def check_outputs(self, *paths: str | None, reading: Iterable[str] = ()) -> None:
        """Raise ``OutputError`` where an output cannot be written, or would replace a file that the run reads."""
        read = [self.subject, *reading, *(path for path in (self.source, self.like) if path is not None)]
        for name, value in self.given.items():
            read.extend(files_named(option_named(name), value))
        check_outputs(*paths, self.target, reading=read)
        if self.target is not None:
            check_config_name(self.target)

    def with_options(self, **options: Any) -> ConfiguredRun:
        """Return it with other values of some options."""
        return replace(self, config=self.config.replaced(**options))

    def save(self) -> None:
        """Write what was given to the file of ``--save-config``, once everything else is written."""
        if self.target is not None:
            write_config(self.target, {"trace": self.subject, **self.given})


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report that is to be written: its class, its file, and its options."""

    kind: Any
    path: str
    options: Mapping[str, Any]

    def write(self, written: Any) -> None:
        """Write the report of a result or a comparison."""
        reports.write(self.kind, written, self.path, self.options)


def with_reports(
    run: ConfiguredRun, named: Sequence[tuple[str, str]], *outputs: str | None, subject: str = "result"
) -> tuple[ConfiguredRun, list[WrittenReport]]:
    """Return the reports of a ``subject`` that are asked for, by name and file, and the run without their options.

    Raises ``TriosimError`` where one of them, or another of the ``outputs``, could not be written.
    """
    kinds = [(reports.find(name, subject), path) for name, path in named]
    files = [path for kind, path in kinds if not getattr(kind, "is_folder", False)]
    run.check_outputs(*outputs, *files, reading=[plugins.file_of(name) for name, _ in named])
    found, taken = [], set()
    for kind, path in kinds:
        reports.check(kind, path)
        own = {*plugins.option_names(kind)} & run.config.options.keys()
        options = parsed(kind, {key: run.config.options[key] for key in own})
        found.append(WrittenReport(kind, path, options))
        taken |= own
    others = {key: value for key, value in run.config.options.items() if key not in taken}
    return run.with_options(options=others), found


def named_reports(written: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the reports that ``--write`` asks for, with the files that they are written to."""
    for text in written or ():
        report, separator, path = text.rpartition("=")
        if not separator or not report or not path:
            raise OptionError(f"'{text}' is not a report and a file", where="--write", fix="write csv=run.csv")
        yield report, path


def configured(
    command: Command, trace: str | None, given: Mapping[str, Any], own: Sequence[Option], *, shown: str | None = None
) -> ConfiguredRun:
    """Return the run that a command line and its ``--config`` ask for; ``own`` are options that are not of the run.

    ``shown`` is the name of a command that takes the options of another. Raises ``OptionError`` for what cannot be.
    """
    path = given["config"]
    file = ConfigFile() if path is None else read_config(path)
    subject = trace if trace is not None else file.trace
    if subject is None:
        raise OptionError("Missing argument 'TRACE'", fix=f"see 'triosim {shown or command} --help'")
    said = merged(_of_command(command, file.options, path), chosen(own, given))
    like, places = given.get("like"), None
    if like is not None:
        options, found = _of_launch_file(like, subject, said, ignore_unknown=bool(given["ignore_unknown"]))
        places, said = found.without(said), merged(options, said)
    elif given.get("ignore_unknown"):
        raise OptionError("has no effect without --like", where="--ignore-unknown", fix="leave it out")
    with nullcontext() if places is None else places.named():
        config = RunConfig.of(**said)
    return ConfiguredRun(subject, config, said, path, given["save_config"], like, places)


def _of_launch_file(
    path: str, subject: str, said: Mapping[str, Any], *, ignore_unknown: bool
) -> tuple[dict[str, Any], Any]:
    """Return the options of a launch file, without those that others replace, and their places; list what is ignored of it."""
    of_model = RunConfig.of(**{name: said[name] for name in ("layers", "seq", "trace_format") if name in said})
    model = launch_jobs.ModelSizes.of(subject, of_model)
    found = launch_reading.read_launch_file(path, model, ignore_unknown=ignore_unknown)
    for one in found.ignored:
        print(shortened(printable(f"triosim: ignored: {one.where}: {one.what}")), file=sys.stderr)
    _note_what_is_unsaid(found, model, said)
    batch = {"micro_batches", "global_batch_size"} if said.keys() & {"batch_size", "global_batch_size"} else set[str]()
    return {name: value for name, value in found.options.items() if name not in batch}, found.places


def _note_what_is_unsaid(found: Any, model: Any, said: Mapping[str, Any]) -> None:
    """Say what a launch file leaves to the training script, and what is simulated of that where nobody says more."""
    if not model.described:
        return
    batched = said.keys() & {"batch_size", "global_batch_size"}
    shown = []
    for name in found.unsaid:
        if name in said or (batched and name in ("micro_batches", "micro_batch_size")):
            continue
        usual = {"seq": model.size("sequence"), "micro_batch_size": 1, "micro_batches": 1}
        value = found.options.get(name, usual.get(name, option_named(name).default))
        shown.append(f"{option_named(name).where} ({value if value is not None else 'as the stack has it'})")
    if shown:
        text = f"does not say {', '.join(shown)}: give what the training script does"
        print(f"triosim: note: {found.path} {text}", file=sys.stderr)


def chosen(own: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``triosim.simulate`` for options of a command line that were given, but for a command's own."""
    conditions = {option.name for option in CONDITIONS}
    others = conditions.union(option.name for option in own).difference(_REDECLARED)
    said = {name: value for name, value in given.items() if value not in (None, [])}
    found = {name: value for name, value in said.items() if name not in others}
    if "training" in found:
        found["training"] = False  # --inference
    if conditions & said.keys():
        found["conditions"] = {name: value for name, value in said.items() if name in conditions}
    return found


def _of_command(command: Command, options: Mapping[str, Any], path: str | None) -> dict[str, Any]:
    """Return the options of a file that a command has; say which others are given, since they have no effect."""
    if not options:
        return {}
    have = {option.name for option in o.of_run(command)}.union((*_REDECLARED, "conditions", "timeline", "links"))
    others = {name: value for name, value in options.items() if name not in have}
    config = RunConfig.of(**others)
    useless = [name for name in others if config.is_given(name)]
    if useless:
        verb = "has" if len(useless) == 1 else "have"
        print(f"triosim: note: {path}: {', '.join(useless)} {verb} no effect in {command}", file=sys.stderr)
    return {name: value for name, value in options.items() if name in have}
