"""Reads mappings whose keys are declared as fields of dataclasses, and says what is wrong in them and where.

A field is declared with ``key(parse, default)``. ``parse`` turns a value into what the field holds. It raises ``ValueError``
for a wrong value; a parser of values that have parts takes ``Problems`` as well, and reports what is wrong in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from inspect import signature
from typing import Any, TypeVar

from triosim.errors import TopologyError, nearest
from triosim.networks.topology.description import Location
from triosim.yaml_lines import Path

K = TypeVar("K", bound="Keys")
_LONGEST = 200  # characters of a name
_TRUE, _FALSE = frozenset({"true", "yes", "on", "y", "t", "1"}), frozenset({"false", "no", "off", "n", "f", "0"})
_A_MAPPING = "write '{key: value}'"
_A_LIST = "write '[one, two]', or a line '- one' for each"


class Problems:
    """What is wrong in a mapping; the first is said: a misspelt key before the key that is missing for it, then by line."""

    def __init__(self, location: Location, bandwidth_fix: str, path: Path = (), found: list[Any] | None = None) -> None:
        self.location = location
        self.path = path
        self._bandwidth_fix = bandwidth_fix
        self._found: list[tuple[bool, int, TopologyError]] = [] if found is None else found

    def at(self, key: str | int) -> Problems:
        """Return the same problems, to be reported from a place further inside."""
        return Problems(self.location, self._bandwidth_fix, (*self.path, key), self._found)

    def add(self, what: str, fix: str | None = None, *, unknown: bool = False) -> None:
        """Report a problem here."""
        line = self.location.lines.get(self.path, 0)
        self._found.append((not unknown, line, TopologyError(what, where=self.location.where(self.path), fix=fix)))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._found)

    def missing(self, key: str) -> None:
        """Report a key that is missing here."""
        self.at(key).add(f"'{key}' is missing", self._bandwidth_fix if key == "bandwidth" else None)

    def refuse(self) -> None:
        """Raise the first of the problems, if there are any."""
        if self._found:
            raise min(self._found, key=lambda one: one[:2])[2]


Parse = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """The base of what is read from a mapping; ``given`` are the names of the fields whose keys are there."""

    given: frozenset[str] = field(default=frozenset(), kw_only=True)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Return the name of each field by its key."""
        return {one.metadata["called"] or one.name: one.name for one in fields(cls) if one.metadata}

    def check(self) -> None:
        """Raise ``ValueError`` for values that do not go together."""


def key(parse: Parse, default: Any = MISSING, *, called: str = "") -> Any:
    """Declare a field: how its value is parsed, its default unless it must be there, and its key if that is another word."""
    metadata = {"parse": parse, "required": default is MISSING, "called": called}
    return field(default=None if default is MISSING else default, metadata=metadata, kw_only=True)


def nested(keys: type[K], more: Sequence[str] = ()) -> Callable[[Any, Problems], K]:
    """Return what reads a mapping into ``keys``; ``more`` are keys that others read, for suggestions."""

    declared = {one.metadata["called"] or one.name: one for one in fields(keys) if one.metadata}

    def read(value: Any, problems: Problems) -> K:
        if not isinstance(value, Mapping):
            problems.add(f"{_shown(value)} is not a mapping", _A_MAPPING)
            return keys()
        before = problems.count
        values: dict[str, Any] = {}
        for name, one in declared.items():
            if name in value:
                values[one.name] = parsed(one.metadata["parse"], value[name], problems.at(name))
            elif one.metadata["required"]:
                problems.missing(name)
        for name in value:
            if name not in declared:
                problems.at(name).add("unknown key", nearest(str(name), [*declared, *more]), unknown=True)
        made = keys(given=frozenset(values), **values)
        if problems.count == before:
            parsed(lambda _: made.check(), None, problems)
        return made

    return read


def parsed(parse: Parse, value: Any, problems: Problems) -> Any:
    """Return what ``parse`` makes of a value; None where that is wrong, which is reported."""
    try:
        return parse(value, problems) if len(signature(parse).parameters) > 1 else parse(value)
    except ValueError as error:
        problems.add(str(error))
        return None


def listed(parse: Parse, least: int = 0) -> Parse:
    """Return what reads a list, each of whose items is read by ``parse``."""

    def read(value: Any, problems: Problems) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            problems.add(f"{_shown(value)} is not a list", _A_LIST)
            return []
        if len(value) < least:
            raise _not_right(value, f"list should have at least {least} item after validation, not {len(value)}")
        return [parsed(parse, one, problems.at(index)) for index, one in enumerate(value)]

    return read


def optional(parse: Parse) -> Parse:
    """Return what reads a value that may be nothing."""
    return lambda value, problems: None if value is None else parsed(parse, value, problems)


def chosen(*choices: Any) -> Parse:
    """Return what reads one of some values."""
    *others, last = (repr(choice) for choice in choices)

    def read(value: Any) -> Any:
        if value not in choices or isinstance(value, str) != isinstance(choices[0], str):
            raise _not_right(value, f"input should be {', '.join(others)}{' or ' if others else ''}{last}")
        return choices[choices.index(value)]

    return read


def boolean(value: Any) -> bool:
    """Return what a value says: true or yes, false or no."""
    word = str(value).lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    unclear = ", unable to interpret input" if isinstance(value, (str, int)) else ""
    raise _not_right(value, f"input should be a valid boolean{unclear}")


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _not_right(value, "input should be a valid string")
    return value


def named_text(value: Any) -> str:
    """Return a name: a text of 1 to 200 characters."""
    name = text(value)
    if not name:
        raise _not_right(value, "string should have at least 1 character")
    if len(name) > _LONGEST:
        raise _not_right(value, f"string should have at most {_LONGEST} characters")
    return name


def _not_right(value: Any, message: str) -> ValueError:
    return ValueError(f"{_shown(value)} is not valid: {message}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
