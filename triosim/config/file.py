"""Configuration files: the options of a run by name, in YAML or JSON, or in the ``result.json`` of a run.

A relative path in such a file is looked for in the folder of the file first. What triosim writes has absolute paths, so that a
run is repeated from any folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triosim import plugins
from triosim.config.option import OBJECT, Option
from triosim.config.parts import flags
from triosim.config.run_config import COMMON, CONDITIONS, option_named
from triosim.errors import OptionError, nearest
from triosim.input_files import yaml_lines
from triosim.input_files.reading import parse_json, read_text
from triosim.output_files import check_ending, writing_text

SUBJECT = "trace"
#: Options of which one replaces the other.
_INSTEAD = {"batch_size": "global_batch_size", "global_batch_size": "batch_size"}


#: Where to write what other keys are tried for: flags of the command line that are no key, and the subject.
_ELSEWHERE = {
    "inference": "write 'training: no'",
    "model": f"write '{SUBJECT}', which may name a model",
    **{one.name: "write it under 'conditions'" for one in CONDITIONS},
}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a configuration file: the trace, or the model, and options as they were written."""

    trace: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_config(path: str) -> ConfigFile:
    """Return what a file says. Raises ``OptionError`` that names the file, the line and the key of what is wrong."""
    content, lines = content_of(path)
    if not isinstance(content, dict):
        raise OptionError(
            "is not a mapping of options to values", where=path, fix="write lines such as 'parallel: ddp'"
        )
    if str(content.get("schema", "")).startswith("triosim-result/"):
        content, lines = _config_of_result(content, path), {}

    def where(*keys: str) -> str:
        return place_of(path, lines, keys)

    folder = Path(path).resolve().parent
    options = {}
    for name, value in content.items():
        if name == SUBJECT or value is None:
            continue
        option = _declared(name, where(name))
        if not str(value).startswith(OBJECT):  # which may be given anew
            _check(option, value, where)
        options[name] = with_paths(option, value, folder)
    trace = content.get(SUBJECT)
    if trace is not None and not isinstance(trace, str):
        raise OptionError(f"{trace} is not a path", where=where(SUBJECT), fix="give a file, a folder or a model's name")
    return ConfigFile(None if trace is None else absolute(trace, folder), options)


def at_line(error: OptionError, path: str, given: Collection[str]) -> OptionError:
    """Return an error about a condition, or about an option of a part, with its line where it comes from the file ``path``.

    Only the part that reads such a value knows what is wrong with it. ``given`` are the names of those on the command line,
    which come before the file's.
    """
    flag = error.where or ""
    names = {one.where: ("conditions", one.name) for one in CONDITIONS}
    keys = ("options", flag.removeprefix("--option ")) if flag.startswith("--option ") else names.get(flag)
    if keys is None or keys[1] in given:
        return error
    content, lines = content_of(path)
    if str(content.get("schema", "")).startswith("triosim-result/"):
        content, lines = _config_of_result(content, path), {}
    said = content.get(keys[0])
    if not isinstance(said, Mapping) or keys[1] not in said:
        return error
    return OptionError(error.what, where=place_of(path, lines, keys), fix=error.fix)


def place_of(path: str, lines: Mapping[tuple[str | int, ...], int], keys: tuple[str, ...]) -> str:
    """Return file, line and keys, for an error."""
    return ": ".join((f"{path}:{lines[keys]}" if keys in lines else path, *keys))


def merged(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file with those of the command line, which come first; mappings are merged key by key."""
    found = {name: value for name, value in file.items() if _INSTEAD.get(name) not in given}
    for name, value in given.items():
        option = option_named(name)
        if option.kind == "mapping" and name in found:
            found[name] = {**option.parse(found[name]), **option.parse(value)}
        else:
            found[name] = value
    return found


def check_config_name(path: str) -> None:
    """Refuse a name under which nobody would look for YAML or JSON. Raises ``OutputError``."""
    check_ending(path, (".yaml", ".yml", ".json"), "a configuration", "--save-config")


def write_config(path: str, options: Mapping[str, Any]) -> None:
    """Write options to a YAML file, or a JSON one where the name ends so, with absolute paths."""
    values = {
        name: absolute(value) if name == SUBJECT else as_json(option_named(name), value)
        for name, value in options.items()
    }
    with writing_text(path) as file:
        if path.endswith(".json"):
            file.write(json.dumps(values, indent=2) + "\n")
            return
        import yaml

        file.write(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def as_json(option: Option, value: Any) -> Any:
    """Return an option's value as a file can hold it, with absolute paths."""
    parsed = option.parse(value) if option.kind == "mapping" else value
    return _plain(with_paths(option, parsed, Path()))


def with_paths(option: Option, value: Any, folder: Path) -> Any:
    """Return an option's value with absolute paths where they name files of a folder."""
    if not isinstance(value, str):
        return value
    if option.kind in ("file", "topology", "part"):
        return absolute(value, folder)
    if option.kind == "parallel":
        return ",".join(absolute(part, folder) for part in value.split(","))
    return value


def files_named(option: Option, value: Any) -> Iterator[str]:
    """Yield what may be files in an option's value: names of files, and of ``file.py:Class`` the file."""
    if option.kind == "parallel" and isinstance(value, (str, Mapping)):
        parts = value.split(",") if isinstance(value, str) else value
        yield from (plugins.file_of(str(part)) for part in parts)
    elif option.name == "conditions" and isinstance(value, Mapping):
        kinds = value.get("gpu_kinds") or ()
        named = kinds.values() if isinstance(kinds, Mapping) else kinds
        yield from (str(kind).rpartition("=")[2] for kind in named)
    elif isinstance(value, str) and (option.kind in ("file", "topology", "part") or option.name == "trace_format"):
        yield plugins.file_of(value)


def absolute(name: str, folder: Path = Path()) -> str:
    """Return a name, absolute where it is that of a file or folder; ``file.py:Class`` is one too."""
    file, separator, attribute = name.partition(".py:")
    path = folder / (f"{file}.py" if separator else name)
    if not os.path.exists(path):
        return name
    return f"{path.resolve()}{f':{attribute}' if separator else ''}"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "mapping"):  # a topology
        return f"{OBJECT}{value.name}" if value.mapping is None else _plain(value.mapping)
    return str(getattr(value, "name", value))  # a GPU


def content_of(path: str) -> tuple[Any, Mapping[tuple[str | int, ...], int]]:
    """Return what a file holds, and the lines of its keys where it is YAML."""
    text = read_text(Path(path), OptionError)
    if path.endswith((".json", ".json.gz")):
        return parse_json(text, path, OptionError), {}
    return yaml_lines.parse(text, path, OptionError)


def _config_of_result(content: Mapping[str, Any], path: str) -> Any:
    inputs = content.get("inputs")
    config = inputs.get("config") if isinstance(inputs, dict) else None
    if not isinstance(config, dict):
        raise OptionError("the result has no configuration", where=path, fix="simulate it again with this version")
    return config


def _declared(name: str, where: str) -> Option:
    if name not in COMMON and name not in flags():
        fix = _ELSEWHERE.get(name) or nearest(name, [SUBJECT, *COMMON, *flags()])
        raise OptionError(f"there is no option '{name}'", where=where, fix=fix)
    return option_named(name)


def _check(option: Option, value: Any, where: Any) -> None:
    """Refuse a value that the option cannot have, and unknown conditions."""
    option.parse(value, where(option.name))
    if option.name == "conditions":
        known = [one.name for one in CONDITIONS]
        for key in option.parse(value, where(option.name)):
            if key not in known:
                raise OptionError(
                    f"there is no condition '{key}'", where=where("conditions", key), fix=nearest(key, known)
                )
