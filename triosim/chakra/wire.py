"""The wire form of protobuf: varints, and fields that are a varint, fixed bytes or bytes with their length before them."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are not protobuf: what is wrong with them."""


class CutShort(WireError):
    """Bytes that end too early: within what."""

    def __str__(self) -> str:
        return f"it ends within {self.args[0]}"


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned integer that begins at a place, and where the next thing begins."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise CutShort("a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise WireError("a number of more than 64 bits")
    return value & 0xFFFFFFFFFFFFFFFF, at


def varints(data: bytes) -> tuple[int, ...]:
    """Return the integers of a packed list."""
    if data.isascii():  # each of them is below 128
        return tuple(data)
    at, found = 0, []
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return tuple(found)


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield the number, wire type and value of each field of a message."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value: int | bytes
            value, at = varint(data, at)
        else:
            value, at = _bytes(data, at, wire)
        yield number, wire, value


def _bytes(data: bytes, at: int, wire: int) -> tuple[bytes, int]:
    if wire == LENGTH:
        size, at = varint(data, at)
    elif wire in (FIXED32, FIXED64):
        size = 4 if wire == FIXED32 else 8
    else:
        raise WireError(f"there is no wire type {wire}")
    if at + size > len(data):
        raise CutShort("a field")
    return data[at : at + size], at + size


def signed(value: int) -> int:
    """Return what an int32 or int64 field means: two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def unzigzag(value: int) -> int:
    """Return what a sint32 or sint64 field means."""
    return (value >> 1) ^ -(value & 1)


def to_varint(value: int) -> bytes:
    """Return an integer as it is written; a negative one in ten bytes."""
    value &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def field(number: int, value: int | bytes) -> bytes:
    """Return a field as it is written: an integer as a varint, bytes with their length before them."""
    if isinstance(value, int):
        return to_varint(number << 3 | VARINT) + to_varint(value)
    return to_varint(number << 3 | LENGTH) + to_varint(len(value)) + value
