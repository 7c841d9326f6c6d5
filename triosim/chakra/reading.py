"""Reads the nodes of an ``.et`` file: protobuf messages, each with its length before it, the first being metadata.

A decoder of our own needs no generated code, which ties a reader to one version of protobuf, and is quick because most nodes
have the attributes of another: equal bytes are decoded once.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from triosim.chakra.attributes import EMPTY, read_attribute
from triosim.chakra.nodes import Node, NodeType, Value
from triosim.chakra.wire import CutShort, WireError, fields, varint, varints
from triosim.errors import TraceError
from triosim.garbage_collector import without_collecting

_GZIP = b"\x1f\x8b"
_MOST_REMEMBERED = 200_000
_Decoded = TypeVar("_Decoded")

#: The keys of a node's fields, with their wire types: all are one byte. Lists of numbers may also come one by one.
_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION = 0x08, 0x12, 0x18, 0x22, 0x2A, 0x30, 0x38
_INPUTS, _OUTPUTS, _ATTRIBUTE = 0x42, 0x4A, 0x52
_NUMBERS = frozenset((_ID, _TYPE, _START, _DURATION))
_WITH_LENGTH = frozenset((_NAME, _CTRL, _DATA, _INPUTS, _OUTPUTS))
_LISTS = {0x20: _CTRL, 0x28: _DATA}
_WORDS = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start_time_micros", 7: "duration_micros"}


class EtReader:
    """Reads ``.et`` files, of which many nodes have equal attributes. ``metadata`` are the attributes of the last file."""

    def __init__(self) -> None:
        self.metadata: Mapping[str, Value | None] = EMPTY
        self._attributes: dict[bytes, Mapping[str, Value | None]] = {b"": EMPTY}
        self._single: dict[bytes, tuple[str, Value | None]] = {}
        self._names: dict[bytes, str] = {}

    @without_collecting()
    def nodes(self, path: Path) -> list[Node]:
        """Return the nodes of a file in its order. Raises ``TraceError`` where it is not an execution trace."""
        data = _content(path)
        found: list[Node] = []
        try:
            messages = _messages(data)
            self.metadata = _metadata(next(messages, b""))
            for message in messages:
                found.append(self._node(message))
        except WireError as error:
            cut = found and isinstance(error, CutShort)
            fix = "the file is cut short: copy it again" if cut else "give an .et file of Chakra 0.0.4 or later"
            raise TraceError(f"{error}, after {len(found)} nodes", where=str(path), fix=fix) from None
        if found and found[0].type not in NodeType._value2member_map_:
            raise TraceError(f"a node of type {found[0].type}", where=str(path), fix="older schemas are not read")
        return found

    def _node(self, data: bytes) -> Node:
        """Return a node. Attributes are its last fields, as every writer of protobuf puts them."""
        at, end = 0, len(data)
        numbers: dict[int, int] = {}
        pieces: dict[int, bytes] = {}
        while at < end:
            key = data[at]
            if key == _ATTRIBUTE:
                pieces[key] = data[at:]
                break
            number, after = _length(data, at + 1)
            if key in _NUMBERS:
                numbers[key] = number
            elif key in _LISTS:  # an item of a list that is not packed
                pieces[_LISTS[key]] = pieces.get(_LISTS[key], b"") + data[at + 1 : after]
            elif key not in _WITH_LENGTH:
                raise WireError(_unexpected(key))
            else:
                after, begin = after + number, after
                pieces[key] = pieces.get(key, b"") + data[begin:after]
            at = after
        if at > end:
            raise CutShort("a node")
        tail, name = pieces.get(_ATTRIBUTE, b""), pieces.get(_NAME, b"")
        attributes = self._attributes.get(tail)
        return Node(
            numbers.get(_ID, 0),
            self._names.get(name) or _kept(self._names, name, name.decode("utf-8", errors="replace")),
            numbers.get(_TYPE, 0),
            varints(pieces[_CTRL]) if _CTRL in pieces else (),
            varints(pieces[_DATA]) if _DATA in pieces else (),
            numbers.get(_START, 0),
            numbers.get(_DURATION, 0),
            self._read(tail) if attributes is None else attributes,
            _first_text(pieces[_INPUTS]) if _INPUTS in pieces else "",
        )

    def _read(self, tail: bytes) -> Mapping[str, Value | None]:
        found: dict[str, Value | None] = {}
        at, end = 0, len(tail)
        while at < end:
            key = tail[at]
            size, at = _length(tail, at + 1)
            if key != _ATTRIBUTE or at + size > end:
                raise CutShort("a node") if key == _ATTRIBUTE else WireError(_unexpected(key))
            piece, at = tail[at : at + size], at + size
            name, value = self._single.get(piece) or _kept(self._single, piece, read_attribute(piece))
            found[name] = value
        return _kept(self._attributes, tail, found)


def _kept(memory: dict[bytes, _Decoded], data: bytes, decoded: _Decoded) -> _Decoded:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[data] = decoded
    return decoded


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return what ``varint`` does, sooner for one byte, as most are."""
    return (data[at], at + 1) if at < len(data) and data[at] < 0x80 else varint(data, at)


def _unexpected(key: int) -> str:
    word = _WORDS.get(key >> 3, str(key >> 3))
    return f"the field {word} of a node has wire type {key & 7}"


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == _GZIP else data
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot be read: {error}", where=str(path), fix="give a readable .et file") from None
    if not data:
        raise TraceError("the file is empty", where=str(path), fix="write the trace again")
    return data


def _messages(data: bytes) -> Iterator[bytes]:
    at, end = 0, len(data)
    while at < end:
        size, at = varint(data, at)
        if at + size > end:
            raise CutShort("a message")
        yield data[at : at + size]
        at += size


def _metadata(data: bytes) -> Mapping[str, Value | None]:
    return dict(read_attribute(piece) for number, _, piece in fields(data) if number == 2 and isinstance(piece, bytes))


def _first_text(data: bytes) -> str:
    """Return the values of an IOInfo: its first field, a text."""
    for number, _, found in fields(data):
        if number == 1 and isinstance(found, bytes):
            return found.decode("utf-8", errors="replace")
    return ""
