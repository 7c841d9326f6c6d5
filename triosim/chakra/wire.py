"""The wire form of protobuf: varints, and fields that are a varint, fixed bytes or bytes with their length before them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MOST_REMEMBERED = 200_000
_ONE_VARINT = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")


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


class _Remembered(dict[bytes, int]):
    """Varints by their bytes: the ids of nodes come again wherever others wait for them."""

    def __missing__(self, data: bytes) -> int:
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        value, _ = varint(data, 0)
        self[data] = value
        return value


_remembered = _Remembered()


def varints(data: bytes) -> tuple[int, ...]:
    """Return the integers of a packed list."""
    if data.isascii():  # each of them is below 128
        return tuple(data)
    if data[-1] >= 0x80:
        raise CutShort("a number")
    return tuple(map(_remembered.__getitem__, _ONE_VARINT.findall(data)))


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
    """Return what an int64 field means: two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def unsigned32(value: int) -> int:
    """Return what a uint32 field means: the lower 32 bits."""
    return value & 0xFFFFFFFF


def signed32(value: int) -> int:
    """Return what an int32 or enum field means: two's complement of the lower 32 bits."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def unzigzag(value: int) -> int:
    """Return what a sint64 field means, and a sint32 of its lower bits."""
    return (value >> 1) ^ -(value & 1)


@lru_cache(maxsize=1 << 16)
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
