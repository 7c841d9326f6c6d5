"""Reads launch files of any known framework into the options of a run; the content of a file says whose it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from triosim.errors import OptionError
from triosim.input_files import toml_lines, yaml_lines
from triosim.input_files.reading import parse_json, read_text
from triosim.launch_files.accelerate import ACCELERATE
from triosim.launch_files.command_line import DEEPSPEED_LAUNCHER, TORCHRUN, arguments, launch_command
from triosim.launch_files.correspondence import Entry, Framework, Launched, Reading
from triosim.launch_files.deepspeed import DEEPSPEED
from triosim.launch_files.job import ModelSizes, options_of
from triosim.launch_files.megatron import MEGATRON
from triosim.launch_files.places import Places
from triosim.launch_files.torchtitan import TORCHTITAN
from triosim.launch_files.trainer import TRAINER

_LAUNCHERS = {"torchrun": TORCHRUN, "deepspeed": DEEPSPEED_LAUNCHER}
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".txt", ".args", ".cmd")
#: Where accelerate's file names one of DeepSpeed.
_OTHER_FILE = "deepspeed_config.deepspeed_config_file"
#: The arguments of the Trainer that DeepSpeed's keys have where they are "auto".
_FILLED = {
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
#: What is left open where such a key is "auto" and nobody is known to fill it in.
_OPEN = {
    "bf16.enabled": "dtype",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batches",
}
#: Arguments by which a script's are told from those of others.
_MEGATRONS = frozenset({"tensor-model-parallel-size", "micro-batch-size", "num-layers", "pipeline-model-parallel-size"})
_TRAINERS = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps", "output_dir"})
#: The flags of ``accelerate launch`` that say of which type a job is.
_KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}
#: The keys by which a file is told from those of others.
_TOLD_BY = (
    (ACCELERATE, frozenset({"distributed_type", "compute_environment", "num_processes"})),
    (TRAINER, frozenset({"per_device_train_batch_size", "output_dir", "num_train_epochs", "learning_rate"})),
    (DEEPSPEED, frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "bf16", "fp16"})),
)
_KNOWN = (
    "give torchtitan's TOML, Megatron-LM's arguments, DeepSpeed's JSON, accelerate's YAML, the JSON of TrainingArguments, or a "
    "script that runs torchrun"
)


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A launch file that was read: its frameworks, the options of its run by name, and what was ignored.

    ``entries`` are the keys that it gives, ``unsaid`` the options that its frameworks leave to the training script, ``places``
    where it gives each setting.
    """

    path: str
    frameworks: tuple[str, ...]
    options: Mapping[str, Any]
    ignored: tuple[OptionError, ...]
    entries: Mapping[str, Entry]
    unsaid: tuple[str, ...] = ()
    places: Places = field(default_factory=Places)

    @property
    def lines(self) -> Mapping[str, str]:
        """The places of the keys that the file gives, by name."""
        return {name: entry.where for name, entry in self.entries.items()}


def read_launch_file(path: str, model: ModelSizes, *, ignore_unknown: bool = False) -> LaunchFile:
    """Read a launch file of a job that trains a model.

    Raises ``OptionError`` that names file, line and key of what is not understood, or with ``ignore_unknown`` returns it.
    """
    readings = _Readings(model, ignore_unknown)
    readings.read(path)
    frameworks = tuple(one.name for one in readings.frameworks)
    unsaid = {
        name for one in readings.frameworks for name in one.of_script
    } - readings.settings.keys() | readings.left_open
    return LaunchFile(
        *(path, frameworks, options_of(readings.settings), tuple(readings.ignored), readings.entries),
        unsaid=tuple(sorted(unsaid)),
        places=Places(readings.places),
    )


class _Readings:
    """Reads a launch file, and the files that it names, into the settings of one job; what is read later comes first."""

    def __init__(self, model: ModelSizes, ignore: bool) -> None:
        self._model, self._ignore = model, ignore
        self.settings: dict[str, Any] = {}
        self.ignored: list[OptionError] = []
        self.entries: dict[str, Entry] = {}
        self.frameworks: tuple[Framework, ...] = ()
        self._read: set[str] = set()
        self.left_open: set[str] = set()
        self.places: dict[str, tuple[str, ...]] = {}
        self._trainer: Mapping[str, Entry] = {}
        self._is_named = False

    def read(self, path: str, over: Mapping[str, Entry] = MappingProxyType({})) -> None:
        """Read a file of any kind, once; entries ``over`` those of a mapping come from the command that names it."""
        if "\0" in path:
            raise OptionError("is not a path", where=path, fix="name a file")
        if (real := os.path.realpath(path)) in self._read:
            raise OptionError("names itself, or a file that names it", where=path, fix="leave one of the two out")
        self._read.add(real)
        text = read_text(Path(path), OptionError)
        if path.endswith(".toml"):
            self._toml(text, path, {})
        elif path.endswith((".yaml", ".yml")):
            content, lines = yaml_lines.parse(text, path, OptionError)
            self._mapping(content, lines, path, over)
        elif path.endswith(".json") or text.lstrip()[:1] == "{":
            self._mapping(parse_json(text, path, OptionError), _lines_of_json(text, path), path, over)
        elif path.endswith(_SCRIPTS) or text.startswith(("#!", "--")):
            self._command(text, path)
        else:
            raise OptionError("is no launch file that triosim knows", where=path, fix=_KNOWN)

    def _toml(self, text: str, path: str, over: Mapping[str, Entry]) -> None:
        values, lines = toml_lines.parse(text, path)
        self._take(TORCHTITAN, path, {**_placed(values, lines, path), **over})

    def _mapping(
        self, content: Any, lines: Mapping[tuple[str | int, ...], int], path: str, over: Mapping[str, Entry]
    ) -> None:
        """Read what DeepSpeed's JSON, the Trainer's JSON or accelerate's YAML holds."""
        if not isinstance(content, dict):
            raise OptionError("is not a mapping of keys to values", where=path, fix=_KNOWN)
        values = dict(toml_lines.dotted(content))
        places = {".".join(map(str, place)): line for place, line in lines.items()}
        entries = _placed(values, places, path)
        framework = next((one for one, keys in _TOLD_BY if keys & content.keys()), None)
        if framework is None:
            raise OptionError("has no key of a framework that triosim knows", where=path, fix=_KNOWN)
        self._nested(framework, {**entries, **over}, path)

    def _nested(self, framework: Framework, entries: dict[str, Entry], path: str) -> None:
        """Read entries, and first the file of DeepSpeed that they name, if they do."""
        other = entries.get(_OTHER_FILE)
        if framework is TRAINER:
            other, self._trainer = entries.get("deepspeed"), entries
        own = {name: entry for name, entry in entries.items() if name.startswith("deepspeed.")}
        if own:  # written out
            entries = {name: entry for name, entry in entries.items() if name not in own}
            entries["deepspeed"] = next(iter(own.values()))
            written = {name.partition(".")[2]: entry for name, entry in own.items()}
            self._take(DEEPSPEED, path, _filled(written, self._trainer))
        elif other is not None and isinstance(other.value, str) and other.value not in ("", "none"):
            self._is_named = True
            self.read(str(Path(path).parent / other.value))
        elif framework is DEEPSPEED and not self._is_named:
            entries = self._with_open(entries)
        self._take(framework, path, _filled(entries, self._trainer) if framework is DEEPSPEED else entries)

    def _with_open(self, entries: dict[str, Entry]) -> dict[str, Entry]:
        """Note what is "auto" in a file of DeepSpeed that no other names, and read its dtype as bf16, unless it is fp16."""
        auto = {name for name in _OPEN if name in entries and entries[name].value == "auto"}
        half = entries.get("fp16.enabled")
        if "bf16.enabled" in auto and half is not None and half.value is True:
            auto.remove("bf16.enabled")
        self.left_open |= {_OPEN[name] for name in auto}
        filled = {name: replace(entries[name], value=True) for name in auto & {"bf16.enabled"}}
        return {**entries, **filled}

    def _command(self, text: str, path: str) -> None:
        command = launch_command(text, path, self._refuse)
        given = arguments(command.words, path)
        if command.launcher == "accelerate":
            self._accelerate(command.entries, path)
        elif command.launcher in _LAUNCHERS:
            self._take(_LAUNCHERS[command.launcher], path, command.entries)
        job = given.pop("job.config_file", None) or given.pop("job.config-file", None)
        files = [given.pop(name, None) for name in ("deepspeed_config", "deepspeed-config")]
        underlined = {name.replace("-", "_"): entry for name, entry in given.items()}
        if job is not None:
            toml = str(Path(path).parent / str(job.value))
            self._toml(read_text(Path(toml), OptionError), toml, _with_negated(underlined))
        elif _MEGATRONS & given.keys() and command.launcher != "accelerate":
            self._take(MEGATRON, path, given)
        elif _TRAINERS & underlined.keys():
            self._nested(TRAINER, underlined, path)
        elif any(one is not None for one in files):
            file = next(str(one.value) for one in files if one is not None)
            self.read(str(Path(path).parent / file))
        elif not self.settings:
            raise OptionError("has no arguments of a framework that triosim knows", where=path, fix=_KNOWN)

    def _accelerate(self, entries: Mapping[str, Entry], path: str) -> None:
        """Read the arguments of ``accelerate launch``: keys of its file without their sections, in whose place they are."""
        sections = {key.rpartition(".")[2]: key for key in ACCELERATE.keys}
        sections |= {key.name.rpartition(".")[2]: key.name for key in ACCELERATE.unmodelled}
        given = {sections.get(name, name): entry for name, entry in entries.items() if name != "config_file"}
        kind = next((kind for name, kind in _KINDS.items() if name in given), None)
        if kind is not None:
            given["distributed_type"] = Entry(kind, next(given[name].where for name in _KINDS if name in given))
        if (file := entries.get("config_file")) is None:
            self._take(ACCELERATE, path, given)
        else:
            self.read(str(Path(path).parent / str(file.value)), given)

    def _take(self, framework: Framework, path: str, entries: Mapping[str, Entry]) -> None:
        """Read the entries of a framework."""
        reading = Reading(
            framework, path, self._model, self._ignore, Launched(dict(self.settings), self._is_of_deepspeed)
        )
        self.settings |= reading.settings(entries)
        self.places |= reading.places
        self.ignored += reading.ignored
        self.entries |= entries
        self.frameworks += (framework,)

    @property
    def _is_of_deepspeed(self) -> bool:
        kind = self.entries.get("distributed_type")
        return DEEPSPEED in self.frameworks or (kind is not None and kind.value == "DEEPSPEED")

    def _refuse(self, error: OptionError) -> None:
        if not self._ignore:
            raise error
        self.ignored.append(error)


def _with_negated(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return arguments by the names of their keys: ``--compile.no-enable`` turns ``compile.enable`` off."""
    found: dict[str, Entry] = {}
    for name, entry in entries.items():
        section, _, key = name.rpartition(".")
        negated = entry.value is True and key.startswith("no_")
        found[f"{section}.{key.removeprefix('no_')}" if negated else name] = (
            replace(entry, value=False) if negated else entry
        )
    return found


def _filled(entries: Mapping[str, Entry], by: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of DeepSpeed's file with the Trainer's in the place of "auto", and without those that it has not."""
    found = {name: by.get(_FILLED.get(name, ""), entry) for name, entry in entries.items() if entry.value == "auto"}
    found |= {name: entry for name, entry in entries.items() if entry.value != "auto"}
    return {name: entry for name, entry in found.items() if entry.value != "auto"}


def _lines_of_json(text: str, path: str) -> dict[tuple[str | int, ...], int]:
    """Return the lines of keys, where JSON is YAML too, which tabs may prevent."""
    try:
        return dict(yaml_lines.parse(text.replace("\t", " "), path, OptionError)[1])
    except OptionError:
        return {}


def _placed(values: Mapping[str, Any], lines: Mapping[str, int], path: str) -> dict[str, Entry]:
    return {
        key: Entry(value, f"{path}:{lines[key]}: {key}" if key in lines else f"{path}: {key}")
        for key, value in values.items()
    }
