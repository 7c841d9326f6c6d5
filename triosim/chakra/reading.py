"""Reads the nodes of an ``.et`` file: protobuf messages, each with its length before it, the first being metadata.

A decoder of our own needs no generated code, which ties a reader to one version of protobuf, and is quick because most nodes
have the attributes of another: equal bytes are decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from triosim.chakra.attributes import EMPTY, read_attribute
from triosim.chakra.nodes import Node, NodeType, Value
from triosim.chakra.wire import LENGTH, VARINT, CutShort, WireError, field, fields, to_varint, varint, varints
from triosim.errors import TraceError
from triosim.garbage_collector import without_collecting
from triosim.input_files.reading import read_bytes

_MOST_REMEMBERED = 200_000
_Decoded = TypeVar("_Decoded")

#: The fields of a node by their number, with the wire type of each; lists of numbers may also come one by one.
_FIELDS = {
    **{1: ("id", VARINT), 2: ("name", LENGTH), 3: ("type", VARINT), 4: ("ctrl_deps", LENGTH), 5: ("data_deps", LENGTH)},
    **{6: ("start_time_micros", VARINT), 7: ("duration_micros", VARINT), 8: ("inputs", LENGTH), 9: ("outputs", LENGTH)},
    10: ("attr", LENGTH),
}
_LISTS = (4, 5)
#: Their keys on the wire, one byte each.
_ID, _NAME, _TYPE, _CTRL, _DATA, _START, _DURATION, _INPUTS, _OUTPUTS, _ATTRIBUTE = (
    number << 3 | wire for number, (_, wire) in _FIELDS.items()
)
_NUMBERS = frozenset((_ID, _TYPE, _START, _DURATION))
_PIECES = frozenset((_NAME, _CTRL, _DATA, _INPUTS, _OUTPUTS))


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
            fix = "the file is cut short: copy it again" if cut else "give an .et file of Chakra 0.0.4 or later, whole"
            raise TraceError(f"{error}, after {len(found)} nodes", where=str(path), fix=fix) from None
        if found and found[0].type not in NodeType._value2member_map_:
            raise TraceError(f"a node of type {found[0].type}", where=str(path), fix="older schemas are not read")
        return found

    def _node(self, data: bytes) -> Node:
        """Return a node. Every writer of protobuf puts its fields in order, and the attributes last; see ``_in_order``."""
        at, end = 0, len(data)
        numbers: dict[int, int] = {}
        pieces: dict[int, bytes] = {}
        while at < end:
            key = data[at]
            if key == _ATTRIBUTE:
                break
            if key in _NUMBERS:
                numbers[key], at = _length(data, at + 1)
            elif key in _PIECES and key not in pieces:
                size, begin = _length(data, at + 1)
                at = begin + size
                pieces[key] = data[begin:at]
            else:
                return self._node(_in_order(data))
        if at > end:
            raise CutShort("a node")
        tail, name = data[at:], pieces.get(_NAME, b"")
        attributes = self._attributes.get(tail)
        if attributes is None:
            attributes = self._read(tail)
        if attributes is None:
            return self._node(_in_order(data))
        kind = numbers.get(_TYPE, 0)
        return Node(
            numbers.get(_ID, 0),
            self._names.get(name) or _kept(self._names, name, name.decode("utf-8", errors="replace")),
            kind,
            varints(pieces[_CTRL]) if _CTRL in pieces else (),
            varints(pieces[_DATA]) if _DATA in pieces else (),
            numbers.get(_START, 0),
            numbers.get(_DURATION, 0),
            attributes,
            _first_text(pieces[_INPUTS]) if kind == NodeType.METADATA and _INPUTS in pieces else "",
        )

    def _read(self, tail: bytes) -> Mapping[str, Value | None] | None:
        """Return the attributes of a node, or None where other fields are among them."""
        found: dict[str, Value | None] = {}
        at, end = 0, len(tail)
        while at < end:
            if tail[at] != _ATTRIBUTE:
                return None
            size, at = _length(tail, at + 1)
            if at + size > end:
                raise CutShort("a node")
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


def _in_order(data: bytes) -> bytes:
    """Return a node with its fields in order and its lists packed, and without fields that the schema does not have."""
    found: dict[int, bytes] = {}
    for number, wire, value in fields(data):
        if number not in _FIELDS:
            continue
        word, expected = _FIELDS[number]
        if number in _LISTS and isinstance(value, int):
            value, wire = to_varint(value), LENGTH
        if wire != expected:
            raise WireError(f"the field {word} of a node has wire type {wire}")
        if number in _LISTS and isinstance(value, bytes):
            found[number] = found.get(number, b"") + value
        elif word == "attr":
            found[number] = found.get(number, b"") + field(number, value)
        else:  # the last of several counts
            found[number] = field(number, value)
    written = (field(number, value) if number in _LISTS else value for number, value in sorted(found.items()))
    return b"".join(written)


def _content(path: Path) -> bytes:
    data = read_bytes(path)
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
    """Return the attributes of the first message. Raises ``WireError`` where that is a node, whose id and type are numbers."""
    found = list(fields(data))
    if any(wire != LENGTH for number, wire, _ in found if number in (1, 3)):
        raise WireError("its first message is a node, where GlobalMetadata should be")
    return dict(read_attribute(piece) for number, _, piece in found if number == 2 and isinstance(piece, bytes))


def _first_text(data: bytes) -> str:
    """Return the values of an IOInfo: its first field, a text."""
    for number, _, found in fields(data):
        if number == 1 and isinstance(found, bytes):
            return found.decode("utf-8", errors="replace")
    return ""
