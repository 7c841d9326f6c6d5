"""The declaration of one option: its name, kind, default and help text, and how a value that a user gives is checked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triosim.errors import OptionError, TriosimError, nearest
from triosim.plugins import Group
from triosim.trace import DTYPE_BYTES, dtype_name
from triosim.units import format_ranks, has_unit, parse_bandwidth, parse_bytes, parse_ranks, parse_time

#: What an option's value is. ``part`` is the name of a plug-in or a class; ``file`` a path, or a name that is no file;
#: ``names`` are several words; ``ranks`` is ``0-3,8``; ``mapping`` is ``KEY=VALUE`` pairs; ``object`` is left as it
#: is for whoever reads it.
Kind = Literal[
    "text", "whole", "number", "probability", "flag", "choice", "bytes", "time", "bandwidth", "dtype",
    "names", "ranks", "mapping", "part", "file", "parallel",
    "topology", "object",
]  # fmt: skip

#: The headings under which ``--help`` and the documents show options.
GENERAL = ""
PARALLELISM, SYSTEM, CONDITION = "Parallelism", "System", "Conditions"
TIMES, MODEL, OUTPUT = "Operator times", "Described model", "Output"
CHAKRA = "Chakra graphs"
#: How a configuration begins to name an object that no file can hold.
OBJECT = "object "
Command = Literal["simulate", "compare", "memory"]
EVERY_COMMAND: tuple[Command, ...] = ("simulate", "compare", "memory")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a run.

    ``name`` is the keyword of ``triosim.simulate`` and the key of a configuration file. On the command line it is
    ``--name-with-dashes``, or ``flag``; that of a part without a flag is given as ``--option NAME=VALUE``, by ``key`` where
    that is not its name. ``choices`` are all words that a ``choice`` knows, all dtypes that a ``dtype`` may be (none: any),
    and the words that another kind takes beside its values. ``least`` is the smallest whole number, ``most`` the largest; of
    bytes, ``least`` is the smallest text without a unit, which would otherwise be one of MB or GB. Of times, ``longest_bare``
    is the longest text without a unit, in seconds: what is longer was meant in another. What is ``of_training`` is read by
    nobody in inference, and what is ``of_step`` changes the step that is simulated, so that captured task streams cannot
    follow it. On the command line, what is ``required`` must be given, and what is ``repeatable`` may be given several times.
    ``commands`` have it. The value of a ``part`` names a part of the plug-in ``group``, whose parts may declare options of
    their own. ``python_help`` is its text in Python, where that is another.
    """

    name: str
    kind: Kind = "text"
    default: Any = None
    help: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = 10**12
    longest_bare: float = math.inf
    metavar: str = ""
    panel: str = PARALLELISM
    short: str = ""
    flag: str = ""
    key: str = ""
    of_training: bool = False
    of_step: bool = False
    repeatable: bool = False
    commands: tuple[Command, ...] = EVERY_COMMAND
    group: Group | None = None
    python_help: str = ""
    required: bool = False

    @property
    def where(self) -> str:
        """What errors and notes call it: as it stands on the command line."""
        return self.declaration.partition("/")[0]

    @property
    def declaration(self) -> str:
        """Its flag, and the one that turns it off where there is one: ``--fold/--no-fold``."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    def parse(self, value: Any, where: str | None = None) -> Any:
        """Return a value as it is used inside: bytes and seconds as numbers, dtypes by PyTorch's names.

        None stands for the default. Raises ``OptionError`` for what it cannot be; ``where`` is the option unless it is said.
        """
        if value is None:
            return self.parsed_default
        try:
            return _PARSERS[self.kind](self, value)
        except OptionError as error:
            raise OptionError(error.what, where=where or self.where, fix=error.fix) from None

    @property
    def parsed_default(self) -> Any:
        """The default, as it is used inside."""
        return None if self.default is None else _PARSERS[self.kind](self, self.default)


def _text(option: Option, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"  # what YAML makes of these words, and what Python has for them
    if isinstance(value, (list, tuple, Mapping)):
        raise OptionError(f"'{value}' is not a word", fix="give one word")
    return str(value)


def _whole(option: Option, value: Any) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError):
        raise OptionError(f"'{value}' is not a whole number", fix=f"give {option.least} or more") from None
    if number < option.least:
        raise OptionError(f"{number} is less than {option.least}", fix=f"give {option.least} or more")
    if number > option.most:
        raise OptionError(f"{number} is more than {option.most}", fix=f"give {option.most} or less")
    return number


def _number(option: Option, value: Any) -> float:
    number = _float(value)
    if not 0 < number <= option.most:
        what = "is more than 1e12" if option.most < number < math.inf else "is not a number above 0"
        raise OptionError(f"'{value}' {what}", fix="give one such as 2.5")
    return number


def _probability(option: Option, value: Any) -> float:
    number = _float(value)
    if not 0 <= number < 1:
        raise OptionError(f"'{value}' is not a probability", fix="give 0 or more, and less than 1")
    return number


def _float(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (ValueError, TypeError):
        return math.nan


def _flag(option: Option, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"yes": True, "true": True, "no": False, "false": False}
    if not isinstance(value, str) or value.lower() not in known:
        raise OptionError(f"'{value}' is neither yes nor no", fix="give one of the two")
    return known[value.lower()]


def _choice(option: Option, value: Any) -> str:
    text = _text(option, value)
    if text not in option.choices:
        raise OptionError(f"'{text}' is not known", fix=nearest(text, option.choices))
    return text


def _bytes(option: Option, value: Any) -> float | str:
    if value in option.choices:
        return str(value)
    number = _quantity(parse_bytes, value)
    if not number >= 0:
        raise OptionError(f"{value} is not a number of bytes", fix="give 0 or more")
    if isinstance(value, str) and 0 < number < option.least and not has_unit(value):
        unit = "MB" if option.least < 1e6 else "GB"
        raise OptionError(f"{value} has no unit, and is taken for bytes", fix=f"write '{value} {unit}', or '{value} B'")
    return number


def _time(option: Option, value: Any) -> float | str:
    if value in option.choices:
        return str(value)
    seconds = _quantity(parse_time, value)
    if not 0 <= seconds < math.inf:
        words = "".join(f"'{word}', " for word in option.choices[:-1])
        words += "".join(f"'{word}' or " for word in option.choices[-1:])
        raise OptionError(f"{value} is not a time of 0 or more", fix=f"give {words}a time like '5 us'")
    if isinstance(value, str) and seconds > option.longest_bare and not has_unit(value):
        raise OptionError(f"{value} has no unit, and would be seconds", fix=f"write for example '{value} us'")
    return seconds


def _bandwidth(option: Option, value: Any) -> float:
    number = _quantity(parse_bandwidth, value)
    if not 0 < number < math.inf:
        raise OptionError(f"{value} is not a positive bandwidth", fix="give one such as '50 GB/s'")
    return number


def _quantity(parse: Callable[[Any], float], value: Any) -> float:
    try:
        return parse(value)
    except TriosimError as error:
        raise OptionError(error.what, fix=error.fix) from None


def _dtype(option: Option, value: Any) -> str:
    name, known = dtype_name(str(value)), option.choices or tuple(DTYPE_BYTES)
    if name not in known:
        raise OptionError(f"unknown dtype '{value}'", fix=nearest(name, known))
    return name


def _names(option: Option, value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Sequence):
        raise OptionError(f"'{value}' is not a list of names", fix="write a,b")
    return tuple(str(word).strip() for word in words)


def _ranks(option: Option, value: Any) -> str:
    """Return ranks as text, ``0-3,8``."""
    try:
        found = parse_ranks(value) if isinstance(value, str) else [int(one) for one in value]
    except (ValueError, TypeError):
        found = []
    if not found or min(found) < 0:
        raise OptionError(f"'{value}' names no ranks", fix="write 0,8 or 0-3")
    return format_ranks(found)


def _mapping(option: Option, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"'{value}' is not a mapping", fix="write key: value")
    found: dict[str, Any] = {}
    for pair in value:
        key, separator, text = str(pair).partition("=")
        if not separator or not key:
            raise OptionError(f"'{pair}' is not a key and a value", fix="write key=value")
        if key in found:
            raise OptionError(f"'{key}' is given twice")
        found[key] = text
    return found


def _part(option: Option, value: Any) -> Any:
    if not (isinstance(value, str) or callable(value)):
        raise OptionError(f"'{value}' is neither a name nor a class", fix="give a name, or file.py:Class")
    return value


def _file(option: Option, value: Any) -> Any:
    if isinstance(value, (int, float, list, tuple, Mapping)):
        raise OptionError(f"'{value}' is neither a name nor a path", fix="give a name or a path")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _parallel(option: Option, value: Any) -> Any:
    if not (isinstance(value, (str, Mapping)) or callable(value)):
        raise OptionError(
            f"'{value}' names no parallelism", fix="write ddp or dp=2,tp=4; in Python also {'dp': 2, 'tp': 4}"
        )
    return value


def _topology(option: Option, value: Any) -> Any:
    if isinstance(value, str) and value.startswith(OBJECT):
        what = f"'{value.removeprefix(OBJECT)}' was made in Python, so that the configuration has no more than its name"
        raise OptionError(what, fix="give it again")
    if isinstance(value, (int, float, list, tuple)):
        raise OptionError(
            f"'{value}' is not a topology",
            fix="give a file, or a name such as dgx-h100; in Python also a Topology or a mapping",
        )
    return os.fspath(value) if isinstance(value, os.PathLike) else value


_PARSERS: Mapping[Kind, Callable[[Option, Any], Any]] = {
    "text": _text,
    "whole": _whole,
    "number": _number,
    "probability": _probability,
    "flag": _flag,
    "choice": _choice,
    "bytes": _bytes,
    "time": _time,
    "bandwidth": _bandwidth,
    "dtype": _dtype,
    "names": _names,
    "ranks": _ranks,
    "mapping": _mapping,
    "part": _part,
    "file": _file,
    "parallel": _parallel,
    "topology": _topology,
    "object": lambda option, value: value,
}
