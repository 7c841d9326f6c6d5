"""Reads launch files of any known framework into the options of a run; the content of a file says whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.errors import OptionError
from triosim.input_files import toml_lines
from triosim.input_files.reading import read_text
from triosim.launch_files.correspondence import Entry, Framework, Reading
from triosim.launch_files.job import ModelSizes, options_of
from triosim.launch_files.torchtitan import TORCHTITAN


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A launch file that was read: its framework, the options of its run by name, and what was ignored of it.

    ``lines`` has the places of the keys that the file gives, by name.
    """

    path: str
    framework: str
    options: Mapping[str, Any]
    ignored: tuple[OptionError, ...]
    lines: Mapping[str, str]


def read_launch_file(path: str, model: ModelSizes, *, ignore_unknown: bool = False) -> LaunchFile:
    """Read a launch file of a job that trains a model.

    Raises ``OptionError`` that names file, line and key of what is not understood, or with ``ignore_unknown`` returns it.
    """
    framework, entries = _entries(path)
    reading = Reading(framework, path, model, ignore_unknown)
    settings = reading.settings(entries)
    places = {name: entry.where for name, entry in entries.items()}
    return LaunchFile(path, framework.name, options_of(settings), tuple(reading.ignored), places)


def _entries(path: str) -> tuple[Framework, dict[str, Entry]]:
    """Return whose file it is, and its entries by key."""
    text = read_text(Path(path), OptionError)
    if path.endswith(".toml"):
        values, lines = toml_lines.parse(text, path)
        return TORCHTITAN, _placed(values, lines, path)
    raise OptionError("is no launch file that triosim knows", where=path, fix="give torchtitan's job.toml")


def _placed(values: Mapping[str, Any], lines: Mapping[str, int], path: str) -> dict[str, Entry]:
    return {
        key: Entry(value, f"{path}:{lines[key]}: {key}" if key in lines else f"{path}: {key}")
        for key, value in values.items()
    }
