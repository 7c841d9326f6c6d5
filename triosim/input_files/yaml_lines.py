"""Parses YAML with the line number of every key and item, for error messages.

It is YAML 1.1 as PyYAML's safe loader reads it. What hides mistakes or does harm is refused: duplicate keys, aliases (a small
file of them expands without bound), several documents, and nesting deeper than any of our files.
"""

from __future__ import annotations

import re
from typing import Any

from triosim.errors import TopologyError, TriosimError
from triosim.input_files.limits import YAML_BYTES
from triosim.input_files.reading import MOST_DIGITS

Path = tuple[str | int, ...]
DEEPEST = 16
#: Two arguments without a comma between them: what is before the key of the second, and the key.
_TWO = re.compile(r"\s*([^\[{(]*?[^\s=])\s+([A-Za-z_.]\w*)\s*=")


def parse(text: str, source: str, error: type[TriosimError] = TopologyError) -> tuple[Any, dict[Path, int]]:
    """Return the value that a YAML text stands for and the lines of its keys and items, by path; () is the whole.

    Raises ``error`` that names the line of what is no YAML.
    """
    import yaml

    YAML_BYTES.check(len(text), source, error)
    reader = _Reader(yaml, text, source, error)
    try:
        return reader.document(), reader.lines
    except yaml.YAMLError as failed:
        mark = getattr(failed, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        problem = getattr(failed, "problem", None) or getattr(failed, "reason", None) or "it cannot be read"
        raise error(f"not valid YAML: {problem}", where=where) from None


def arguments(text: str, source: str) -> list[tuple[str, Any]]:
    """Return the keys and values of ``8, bandwidth=100 GB/s, overrides=[{...}]``; what has no key has an empty one.

    Values are whole numbers, texts, or YAML in brackets. Raises ``TopologyError`` where a comma is missing between two.
    """
    found: list[tuple[str, Any]] = []
    for argument in split_arguments(text):
        check_comma(argument, source)
        key, _, value = (part.strip() for part in (argument if "=" in argument else f"={argument}").partition("="))
        if value[:1] in ("[", "{"):
            found.append((key, parse(value, source)[0]))
        else:
            found.append((key, int(value) if re.fullmatch(r"-?\d{1,18}", value) else value))
    return found


def check_comma(argument: str, source: str) -> None:
    """Raise ``TopologyError`` where an argument is two: ``8 bandwidth=100 GB/s``."""
    if found := _TWO.match(argument):
        before, key = found.groups()
        raise TopologyError(f"a comma is missing before '{key}'", where=source, fix=f"write '{before}, {key}=...'")


def check_parentheses(text: str, error: type[TriosimError] = TopologyError) -> None:
    """Raise ``error`` for a name with arguments of which a parenthesis is not closed, or not opened."""
    missing = text.count("(") - text.count(")")
    if missing:
        fix = f"end it in '{')' * missing}'" if missing > 0 else "leave it out"
        raise error(f"a parenthesis is not {'closed' if missing > 0 else 'opened'}", where=text, fix=fix)


def split_arguments(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


class _Reader:
    """Builds values from PyYAML's events, which know their lines."""

    def __init__(self, yaml: Any, text: str, source: str, error: type[TriosimError]) -> None:
        self.yaml = yaml
        self.source = source
        self.kind = error
        self.lines: dict[Path, int] = {}
        self.events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self.scalars = yaml.SafeLoader("")

    def document(self) -> Any:
        event = self.next()
        while isinstance(event, (self.yaml.StreamStartEvent, self.yaml.DocumentStartEvent)):
            event = self.next()
        if isinstance(event, self.yaml.StreamEndEvent):
            return None
        value = self.value(event, ())
        self.next()  # the end of the document
        event = self.next()
        if not isinstance(event, self.yaml.StreamEndEvent):
            raise self.error("a second document begins", event, "keep one document a file")
        return value

    def next(self) -> Any:
        return next(self.events)

    def value(self, event: Any, path: Path) -> Any:
        if isinstance(event, self.yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self.error("anchors and aliases (& and *) are not supported", event, "write the value out")
        if len(path) > DEEPEST:
            raise self.error("nested too deep", event, "a topology needs no more than a list of mappings")
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, self.yaml.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, self.yaml.SequenceStartEvent):
            return self.sequence(path)
        return self.scalar(event)

    def mapping(self, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := self.next(), self.yaml.MappingEndEvent):
            if not isinstance(event, self.yaml.ScalarEvent):
                raise self.error("a key must be a word", event)
            key = event.value
            place = (*path, key)
            if key in result:
                fix = f"it is already in line {self.lines[place]}"
                raise self.error(f"key '{key}' is written twice", event, fix)
            self.lines[place] = event.start_mark.line + 1
            result[key] = self.value(self.next(), place)
        return result

    def sequence(self, path: Path) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := self.next(), self.yaml.SequenceEndEvent):
            result.append(self.value(event, (*path, len(result))))
        return result

    def scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self.scalars.resolve(self.yaml.ScalarNode, event.value, event.implicit)
        try:
            value = self.scalars.construct_object(
                self.yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            )
        except (ValueError, TypeError, OverflowError):  # a date such as 2020-99-99
            raise self.error(f"'{event.value}' is not a value", event, "put it in quotes if it is a name") from None
        if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise self.error(f"holds a number of {len(str(event.value))} digits", event, "no quantity has so many")
        return value

    def error(self, what: str, event: Any, fix: str | None = None) -> TriosimError:
        return self.kind(what, where=f"{self.source}:{event.start_mark.line + 1}", fix=fix)
