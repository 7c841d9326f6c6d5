"""The attributes of nodes: a name and a value of one of sixteen kinds, each also as a list."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from triosim.chakra.nodes import Value
from triosim.chakra.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    CutShort,
    WireError,
    field,
    fields,
    signed,
    signed32,
    unsigned32,
    unzigzag,
    varint,
    varints,
)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


#: How each kind of number is read, by the number of its field: the wire type, and what the wire's value means.
_VARINT_KINDS: Mapping[int, Callable[[int], Value]] = {
    7: signed32,
    9: signed,
    11: unsigned32,
    13: int,
    15: lambda value: unzigzag(unsigned32(value)),
    17: unzigzag,
    27: bool,
}
_FIXED_KINDS = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_TEXT_KINDS: Mapping[int, Callable[[bytes], Value]] = {29: _text, 31: bytes}
_LAST_KIND = 32

_NAME_KEY = 1 << 3 | LENGTH
_ALIKE = 1 << 31  # smaller numbers mean the same in all of these
_WHOLE_KEYS = tuple(number << 3 | VARINT for number in (7, 9, 11, 13))

#: The fields in which the readers of ASTRA-sim and of Chakra expect an attribute, by its name.
_WRITTEN_AS = {
    **dict.fromkeys(("num_ops", "comm_type", "comm_size"), 9),
    **dict.fromkeys(("comm_priority", "comm_src", "comm_dst", "comm_tag", "stream"), 7),
    "tensor_size": 13,
    "is_cpu_op": 27,
    "involved_dim": 28,
    "pg_name": 29,
}


def read_attribute(data: bytes) -> tuple[str, Value | None]:
    """Return the name and the value of an attribute; None where it has none, or one of a kind that the schema does not have."""
    quick = _quick(data)
    if quick is not None:
        return quick
    name, value = "", None
    for number, wire, found in fields(data):
        if number == 1 and isinstance(found, bytes):
            name = _text(found)
        elif 3 <= number <= _LAST_KIND:
            value = _value(number, wire, found)
    return name, value


def _quick(data: bytes) -> tuple[str, Value] | None:
    """Return an attribute of the usual form, a short name and then a whole number, without going field by field."""
    if len(data) < 4 or data[0] != _NAME_KEY or data[1] >= 0x80:
        return None
    end = data[1] + 2
    if end + 1 >= len(data) or data[end] not in _WHOLE_KEYS:
        return None
    value, after = varint(data, end + 1)
    if after != len(data):
        return None
    return _short_name(data[2:end]), value if value < _ALIKE else _VARINT_KINDS[data[end] >> 3](value)


@lru_cache(maxsize=1 << 12)
def _short_name(data: bytes) -> str:
    return _text(data)


def _value(number: int, wire: int, found: int | bytes) -> Value:
    if isinstance(found, int):
        if wire == VARINT and number in _VARINT_KINDS:
            return _VARINT_KINDS[number](found)
    elif number in _TEXT_KINDS and wire == LENGTH:
        return _TEXT_KINDS[number](found)
    elif number in _FIXED_KINDS and wire == (FIXED64 if struct.calcsize(_FIXED_KINDS[number]) == 8 else FIXED32):
        return struct.unpack(_FIXED_KINDS[number], found)[0]  # type: ignore[no-any-return]
    elif number % 2 == 0 and wire == LENGTH:
        return _list(number - 1, found)
    raise WireError(f"the value of an attribute has field {number} of wire type {wire}")


def _list(number: int, data: bytes) -> tuple[Value, ...]:
    """Return the values of a list message, packed or not; ``number`` is the field of one such value."""
    values: list[Value] = []
    for place, wire, found in fields(data):
        if place != 1:
            continue
        if not isinstance(found, bytes) or wire != LENGTH or number in _TEXT_KINDS:
            values.append(_value(number, wire, found))
        elif number in _FIXED_KINDS:
            if len(found) % struct.calcsize(_FIXED_KINDS[number]):
                raise CutShort("a list")
            values += [value for (value,) in struct.iter_unpack(_FIXED_KINDS[number], found)]
        else:
            values += [_VARINT_KINDS[number](value) for value in varints(found)]
    return tuple(values)


EMPTY: Mapping[str, Value | None] = MappingProxyType({})


@lru_cache(maxsize=1 << 16, typed=True)
def write_attribute(name: str, value: Value) -> bytes:
    """Return an attribute as a message, with the integer type that readers expect of its name."""
    number = _WRITTEN_AS.get(name) or _field_of(value)
    if isinstance(value, tuple):
        written = field(number, b"".join(_written(1, one) for one in value))
    else:
        written = _written(number, value)
    return field(1, name.encode()) + written


def _field_of(value: Value) -> int:
    """Return the field for a value whose name says nothing about it."""
    if isinstance(value, tuple):
        return _field_of(value[0]) + 1 if value else 30
    return {bool: 27, int: 9, float: 3, str: 29, bytes: 31}[type(value)]


def _written(number: int, value: Value) -> bytes:
    if isinstance(value, float):
        return bytes([number << 3 | FIXED64]) + struct.pack("<d", value)
    if isinstance(value, str):
        return field(number, value.encode())
    assert not isinstance(value, tuple)
    return field(number, value)
