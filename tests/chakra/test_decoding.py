"""The decoder against protobuf's wire format: any order, packing and kinds that writers choose, and broken bytes."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from chakra.graphs import all_reduce, computation

from triosim.chakra.attributes import read_attribute, write_attribute
from triosim.chakra.nodes import Node, NodeType, Value
from triosim.chakra.reading import EtReader
from triosim.chakra.writing import write_et
from triosim.errors import TraceError

ID, NAME, TYPE = b"\x08\x05", b"\x12\x01c", b"\x18\x04"  # id 5, name "c", type COMP
DEPS = b"\x2a\x03\x01\xac\x02"  # data_deps 1 and 300, packed
IS_CPU = b"\x52\x10" + b"\x0a\x09is_cpu_op" + b"\xd8\x01\x01" + b"\x12\x00"  # field 27, true; no doc_string
NODE = Node(5, "c", NodeType.COMP, (), (1, 300), 0, 0, {"is_cpu_op": True})


def read(folder: Path, *bodies: bytes) -> list[Node]:
    path = folder / "w.0.et"
    path.write_bytes(b"\x07\x0a\x050.0.4" + b"".join(bytes([len(body)]) + body for body in bodies))
    return EtReader().nodes(path)


@pytest.mark.parametrize(
    "body",
    [
        ID + NAME + TYPE + DEPS + IS_CPU,
        IS_CPU + DEPS + TYPE + NAME + ID,
        ID + IS_CPU + b"\x28\x01\x28\xac\x02" + TYPE + NAME,  # the list one by one, after the attributes
        ID + NAME + TYPE + b"\x2a\x01\x01" + b"\x28\xac\x02" + IS_CPU,  # packed and not
        ID + b"\x12\x01x" + NAME + TYPE + b"\x08\x05" + DEPS + IS_CPU,  # the last name counts
        ID + NAME + TYPE + DEPS + b"\x7a\x02ab" + IS_CPU,  # field 15 is of a later schema
        ID + NAME + TYPE + DEPS + b"\xe1\x12" + b"\xff" * 8 + IS_CPU,  # and field 300, eight fixed bytes
        ID + NAME + TYPE + DEPS + IS_CPU + b"\xe8\x12\x80\x01",  # field 301, a varint
    ],
)
def test_a_node_is_the_same_in_whatever_order_its_fields_come(tmp_path: Path, body: bytes) -> None:
    assert read(tmp_path, body) == [NODE]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x19" + struct.pack("<d", 2.5), 2.5),
        (b"\x22\x0a\x0a\x08" + struct.pack("<d", 2.5), (2.5,)),
        (b"\x22\x09\x09" + struct.pack("<d", 2.5), (2.5,)),
        (b"\x2d" + struct.pack("<f", 0.5), 0.5),
        (b"\x38\xff\xff\xff\xff\x0f", -1),  # an int32 in five bytes
        (b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -1),  # and in ten
        (b"\x42\x04\x0a\x02\x01\x02", (1, 2)),
        (b"\x42\x04\x08\x01\x08\x02", (1, 2)),
        (b"\x48\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", -(2**63)),
        (b"\x58\xff\xff\xff\xff\x0f", 2**32 - 1),
        (b"\x68\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 2**64 - 1),
        (b"\x78\x03", -2),
        (b"\x88\x01\x04", 2),
        (b"\x9d\x01\x07\x00\x00\x00", 7),
        (b"\xa9\x01" + b"\xff" * 8, 2**64 - 1),
        (b"\xbd\x01" + b"\xff" * 4, -1),
        (b"\xc9\x01" + b"\xff" * 8, -1),
        (b"\xd8\x01\x01", True),
        (b"\xe2\x01\x04\x0a\x02\x01\x00", (True, False)),
        (b"\xea\x01\x02ab", "ab"),
        (b"\xf2\x01\x06\x0a\x01a\x0a\x01b", ("a", "b")),
        (b"\xfa\x01\x01\xff", b"\xff"),
        (b"\x82\x02\x03\x0a\x01z", (b"z",)),
        (b"\x82\x02\x00", ()),
        (b"\x48\x01\x48\x02", 2),  # of several the last counts
        (b"\x98\x03\x05", None),  # field 51 is of no schema
        (b"", None),
    ],
)
def test_attributes_of_every_kind_are_read(value: bytes, expected: Value) -> None:
    assert read_attribute(b"\x0a\x01n" + value) == ("n", expected)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\x0d\x05\x00\x00\x00" + TYPE, "the field id of a node has wire type 5"),
        (ID + b"\x10\x05", "the field name of a node has wire type 0"),
        (ID + b"\x1a\x00", "the field type of a node has wire type 2"),
        (ID + TYPE + b"\x0b", "there is no wire type 3"),
        (ID + TYPE + b"\x2a\x02\x01\x80", "it ends within a number"),
        (ID + TYPE + b"\x52\x06\x0a\x01n\x3d\x00\x00", "it ends within a field"),
        (ID + TYPE + b"\x52\x05\x0a\x01n\x4a\x00", "the value of an attribute has field 9 of wire type 2"),
        (b"\x18\x0b", "a node of type 11"),
    ],
)
def test_wrong_types_are_named(tmp_path: Path, body: bytes, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        read(tmp_path, body)


def test_a_file_without_metadata_loses_no_node(tmp_path: Path) -> None:
    (tmp_path / "w.0.et").write_bytes(b"\x04" + ID + TYPE)
    with pytest.raises(TraceError, match="its first message is a node, where GlobalMetadata should be"):
        EtReader().nodes(tmp_path / "w.0.et")


def test_a_name_of_more_than_127_bytes_is_read_whole() -> None:
    assert read_attribute(write_attribute("n" * 200, 5)) == ("n" * 200, 5)


def test_broken_bytes_are_an_error_or_other_nodes_and_nothing_else(tmp_path: Path) -> None:
    path, chance = tmp_path / "w.0.et", random.Random(0)
    write_et(path, [computation(0, 300), all_reduce(1, 1 << 40, 0, pg_name="3", involved_dim=(True, False), f=0.5)] * 3)
    whole, errors = path.read_bytes(), list[str]()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 4))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.choice((len(data), chance.randrange(1, len(data))))]))
        try:
            EtReader().nodes(path)
        except TraceError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert all(error.startswith(f"{path}: ") for error in errors)
