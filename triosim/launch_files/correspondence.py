"""Correspondences of a framework's keys to the settings of a job: one table that both writes launch files and reads them.

A ``Correspondence`` turns the values of some keys into settings (``read``), and a job into the values of these keys
(``write``). What a written file does not say as the job has it is found by reading it back, so that the two directions cannot
differ unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triosim.config import COMMON, Option
from triosim.config.option import MODEL
from triosim.errors import OptionError, nearest
from triosim.launch_files.job import Job, ModelSizes

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A value in a launch file and its place: ``job.toml:12: training.seq_len``."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True)
class Launched:
    """What was read ahead of a file: the settings that its launcher makes, and whether DeepSpeed trains."""

    settings: Settings = field(default_factory=dict)
    by_deepspeed: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """The values of a framework's keys, by name: those of a file, and the framework's defaults of all others.

    ``launched`` is what was read ahead of it.
    """

    values: Mapping[str, Any]
    entries: Mapping[str, Entry]
    model: ModelSizes
    path: str
    launched: Launched = field(default_factory=Launched)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def refused(self, key: str, what: str, fix: str | None = None) -> OptionError:
        """Return an error about a key, at its place in the file."""
        where = self.entries[key].where if key in self.entries else f"{self.path}: {key}"
        return OptionError(what, where=where, fix=fix)

    def without(self, key: Option) -> Given:
        """Return the values of a file that does not give a key."""
        entries = {name: entry for name, entry in self.entries.items() if name != key.name}
        return replace(self, values={**self.values, key.name: key.parsed_default}, entries=entries)


def switches(*names: str) -> tuple[Option, ...]:
    """Return keys that are yes or no, and no by default."""
    return tuple(Option(name, "flag", False) for name in names)


@dataclass(frozen=True, slots=True)
class Correspondence:
    """Some keys of a framework and the settings that they stand for; ``option`` is what documents call these.

    ``read`` returns the settings, or raises ``OptionError`` by ``Given.refused``; ``write`` the keys' values for a job.
    """

    option: str
    keys: tuple[Option, ...]
    read: Callable[[Given], Settings]
    write: Callable[[Job], Settings]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework: its name, the versions whose keys these are, and its correspondences.

    A key that is ``unmodelled`` changes a step in a way that is not simulated, unless it has its default. One
    ``without_effect`` changes no step; where it ends in a dot or a dash, so do all keys that begin so.
    Settings ``of_script`` are in no file of the framework where it has no key for them: a training script says them.
    The keys are ``arguments`` of a command, or those of a file of values. ``of_model`` says what the framework trains otherwise
    than a model has it, where its keys name a model of its own.
    """

    name: str
    versions: str
    table: tuple[Correspondence, ...]
    unmodelled: tuple[Option, ...] = ()
    without_effect: frozenset[str] = frozenset()
    of_script: frozenset[str] = frozenset()
    architectures: frozenset[str] = frozenset()
    arguments: bool = False
    of_model: Callable[[ModelSizes], Iterator[str]] = lambda model: iter(())
    _keys: dict[str, Option] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Mapping[str, Option]:
        """All keys of the table by name."""
        if not self._keys:
            self._keys.update({key.name: key for row in self.table for key in row.keys})
        return self._keys

    def trains(self, model: ModelSizes, *, has_tokens: bool) -> bool:
        """Whether the framework trains a model; of a trace only whether its samples have tokens is known."""
        if not self.architectures:
            return True
        return model.architecture in self.architectures if model.described else has_tokens

    def written(self, job: Job) -> dict[str, Any]:
        """Return the values of keys for a job, in the order of the table; None stands for a key that is left out."""
        found: dict[str, Any] = {}
        for row in self.table:
            found.update(row.write(job))
        return {key: value for key, value in found.items() if value is not None}

    def has_no_effect(self, key: str) -> bool:
        """Whether a key changes no step."""
        beginnings = (key[: at + 1] for at, character in enumerate(key) if character in ".-_")
        return key in self.without_effect or any(one in self.without_effect for one in beginnings)


@dataclass(slots=True)
class Reading:
    """The reading of one launch file: what is not understood is refused, or kept in ``ignored`` where that is asked for.

    ``launched`` is what was read before. ``places`` says of each setting where the keys stand that make it.
    """

    framework: Framework
    path: str
    model: ModelSizes
    ignore: bool = False
    launched: Launched = field(default_factory=Launched)
    ignored: list[OptionError] = field(default_factory=list)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def settings(self, entries: Mapping[str, Entry]) -> dict[str, Any]:
        """Return the settings that the entries of a file stand for; those of a described model only where one is.

        Raises ``OptionError`` that names file, line and key.
        """
        known = dict(self._checked(entries))
        found: dict[str, Any] = {}
        values = {name: known.get(name, key.parsed_default) for name, key in self.framework.keys.items()}
        given = Given(values, entries, self.model, self.path, self.launched)
        for row in self.framework.table:
            try:
                settings = row.read(given)
            except OptionError as error:
                self.refuse(error)
                continue
            found.update(settings)
            self.places.update(_places(row, given, settings))
        if self.model.described:
            return found
        return {name: value for name, value in found.items() if name not in COMMON or COMMON[name].panel != MODEL}

    def _checked(self, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Any]]:
        """Yield the values of the table's keys, converted."""
        unmodelled = {key.name: key for key in self.framework.unmodelled}
        for name, entry in entries.items():
            try:
                if name in self.framework.keys:
                    yield name, self.framework.keys[name].parse(entry.value, entry.where)
                elif name in unmodelled:
                    _check_unmodelled(unmodelled[name], entry)
                elif not self.framework.has_no_effect(name) and not (entry.value == {} and self._is_section(name)):
                    raise self._unknown(name, entry, unmodelled)
            except OptionError as error:
                self.refuse(error)

    def _is_section(self, name: str) -> bool:
        return any(key.startswith(f"{name}.") for key in self.framework.keys)

    def _unknown(self, name: str, entry: Entry, unmodelled: Iterable[str]) -> OptionError:
        known = [*self.framework.keys, *unmodelled, *self.framework.without_effect]
        section, dot, key = name.rpartition(".")
        beside = [one.rpartition(".")[2] for one in known if dot and one.rpartition(".")[0] == section]
        near = nearest(key, beside, 0).replace("mean '", f"mean '{section}.") if beside else nearest(name, known, 0)
        fix = near if near.startswith("did you mean") else "leave it out, or give --ignore-unknown"
        return OptionError(f"is no key of {self.framework.name} that triosim knows", where=entry.where, fix=fix)

    def refuse(self, error: OptionError) -> None:
        """Raise an error, or keep it where what is not understood is to be ignored."""
        if not self.ignore:
            raise error
        self.ignored.append(error)


def _places(row: Correspondence, given: Given, settings: Settings) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the places of the keys that make each setting: those without which it would be another, or all of the row."""
    keys = [key for key in row.keys if key.name in given.entries]
    without = {key.name: _read_without(row, given, key) for key in keys}
    for name, value in settings.items():
        own = [key for key in keys if without[key.name].get(name) != value] or keys
        yield name, tuple(given.entries[key.name].where for key in own)


def _read_without(row: Correspondence, given: Given, key: Option) -> Settings:
    try:
        return row.read(given.without(key))
    except OptionError:
        return {}


def _check_unmodelled(key: Option, entry: Entry) -> None:
    value = entry.value
    neutral = value in (key.default, None, "", [], {})
    if key.kind == "flag":
        neutral = neutral or key.parse(value, entry.where) == bool(key.default)
    if not neutral:
        fix = (
            f"leave it out, or give --ignore-unknown; {key.help}"
            if key.help
            else "leave it out, or give --ignore-unknown"
        )
        raise OptionError(f"'{value}' changes the step in a way that is not simulated", where=entry.where, fix=fix)


# ---- correspondences of one key ------------------------------------------------


def same(setting: str, key: Option) -> Correspondence:
    """Return the correspondence of a key whose values are those of a setting; a value of None leaves the setting out."""

    def read(given: Given) -> Settings:
        value = given[key.name]
        return {} if value is None else {setting: value}

    return Correspondence(setting, (key,), read, lambda job: {key.name: job.get(setting)})


def of_model(name: str, key: Option) -> Correspondence:
    """Return the correspondence of a key that is a size of the model: it must be that of the model that is simulated."""

    def read(given: Given) -> Settings:
        theirs, ours = given[key.name], given.model.sizes.get(name)
        if theirs is not None and ours is not None and theirs != ours:
            what = f"{theirs} is not the {name.replace('_', ' ')} of {given.model.name}, which is {ours}"
            raise given.refused(key.name, what, "name the model that the file trains")
        return {}

    return Correspondence(f"{name} of the model", (key,), read, lambda job: {key.name: job.model.sizes.get(name)})
