"""Execution traces: what the wire says is what is read, and whatever is wrong is one line that names file and node."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from chakra.graphs import all_reduce, computation, write_graphs

from triosim.chakra.attributes import read_attribute, write_attribute
from triosim.chakra.graph import rank_graph
from triosim.chakra.inputs.groups import read_groups
from triosim.chakra.inputs.network_file import read_network
from triosim.chakra.nodes import Node, NodeType, Value
from triosim.chakra.reading import EtReader
from triosim.chakra.wire import to_varint, varint
from triosim.chakra.workload import read_workload
from triosim.chakra.writing import write_et
from triosim.cli import run
from triosim.errors import TopologyError, TraceError


def test_a_node_is_read_from_its_bytes(tmp_path: Path) -> None:
    """Field by field as ``et_def.proto`` numbers them: id 300 is 0xAC 0x02 after key 0x08."""
    body = b"\x08\xac\x02" + b"\x12\x02ab" + b"\x18\x04" + b"\x2a\x03\x01\xac\x02" + b"\x38\x05"
    attribute = b"\x0a\x07num_ops" + b"\x48\x09"
    body += b"\x52" + bytes([len(attribute)]) + attribute
    path = tmp_path / "w.0.et"
    path.write_bytes(b"\x02\x0a\x00" + bytes([len(body)]) + body)
    assert EtReader().nodes(path) == [Node(300, "ab", NodeType.COMP, (), (1, 300), 0, 5, {"num_ops": 9})]


def test_a_list_may_be_packed_or_not(tmp_path: Path) -> None:
    path = tmp_path / "w.0.et"
    body = b"\x20\x07\x20\xac\x02"  # ctrl_deps 7 and 300, one by one
    path.write_bytes(b"\x00" + bytes([len(body)]) + body)
    assert EtReader().nodes(path)[0].ctrl_deps == (7, 300)


@pytest.mark.parametrize("value", [0, 127, 128, 2**32, 2**63, 2**64 - 1])
def test_a_varint_is_read_as_it_is_written(value: int) -> None:
    data = to_varint(value)
    assert varint(data, 0) == (value, len(data))
    assert len(data) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_ops", 2**62), ("x", -3), ("is_cpu_op", True), ("pg_name", "7"), ("involved_dim", (True, False)), ("f", 0.5)],
)
def test_an_attribute_is_read_as_it_is_written(name: str, value: Value) -> None:
    assert read_attribute(write_attribute(name, value)) == (name, value)


@pytest.mark.parametrize(("name", "key"), [("comm_size", 0x48), ("comm_tag", 0x38), ("tensor_size", 0x68)])
def test_an_integer_is_written_in_the_field_that_chakras_feeder_reads(name: str, key: int) -> None:
    assert write_attribute(name, 1)[-2:] == bytes([key, 1])


def test_files_are_compressed_or_not_and_equal_nodes_are_equal_bytes(tmp_path: Path) -> None:
    nodes = [computation(0, 3), all_reduce(1, 64, 0, pg_name="1")]
    for name in ("a.0.et", "b.0.et", "c.0.et.gz"):
        write_et(tmp_path / name, nodes)
    assert (tmp_path / "a.0.et").read_bytes() == (tmp_path / "b.0.et").read_bytes()
    assert gzip.decompress((tmp_path / "c.0.et.gz").read_bytes()) == (tmp_path / "a.0.et").read_bytes()
    assert EtReader().nodes(tmp_path / "c.0.et.gz") == nodes


def cut(data: bytes) -> bytes:
    return data[:-1]


def endless(data: bytes) -> bytes:
    return data + b"\xff" * 11


def wrong_type(data: bytes) -> bytes:
    return b"\x00\x09\x09" + bytes(8)  # the id as eight fixed bytes


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (cut, "it ends within a message, after 1 nodes; the file is cut short: copy it again"),
        (endless, "a number of more than 64 bits"),
        (wrong_type, "the field id of a node has wire type 1"),
        (lambda _: b"", "the file is empty"),
        (lambda data: b"\x1f\x8b" + data, "is a damaged gzip file"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, change: Callable[[bytes], bytes], what: str) -> None:
    prefix = write_graphs(tmp_path, [[computation(0, 3), computation(1, 3, 0)]])
    path = tmp_path / "w.0.et"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TraceError) as found:
        read_workload(prefix)
    assert str(found.value).startswith(f"{path}: ")
    assert what in str(found.value)


def test_a_network_that_is_shown_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "network.yml"
    path.write_text("npus_count: [8]\n", encoding="utf-8")
    assert run(["show", str(path)]) == 2
    assert f"{path}: is a network of ASTRA-sim's, not a trace; give it to a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("bandwidth: [.nan]", "bandwidth nan of a dimension; write a number above 0"),
        ("latency: [.inf]", "latency inf of a dimension"),
        ("npus_count: [1]", "npus_count 1 of a dimension; write a whole number above 1"),
        ("topology: [Torus]", "there is no block 'Torus'; write one of Ring, FullyConnected, Switch"),
        (
            "latency: 5",
            "is not a network of ASTRA-sim's: topology, npus_count, bandwidth, latency; give each as a list",
        ),
    ],
)
def test_a_network_that_cannot_be_is_named(tmp_path: Path, line: str, what: str) -> None:
    lines = {"topology": "[Ring]", "npus_count": "[4]", "bandwidth": "[50]", "latency": "[500]"}
    key, _, value = line.partition(": ")
    text = "".join(f"{name}: {found}\n" for name, found in {**lines, key: value}.items())
    (tmp_path / "network.yml").write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as found:
        read_network(tmp_path / "network.yml")
    assert what in str(found.value)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    prefix = write_graphs(tmp_path, [[computation(0, 1)]] * 3)
    (tmp_path / "w.1.et").unlink()
    with pytest.raises(TraceError, match=r"rank 1 of 3 has no file; write w\.1\.et"):
        read_workload(prefix)


def test_a_rank_has_one_file_and_a_place_on_the_network(tmp_path: Path) -> None:
    """ASTRA-sim leaves out the files of ranks that its network does not have."""
    prefix = write_graphs(tmp_path, [[computation(0, 1)]] * 3)
    with pytest.raises(TraceError, match="there is a rank 2, on a network of 2; give a network of all ranks"):
        read_workload(prefix, 2)
    assert "ranks 2 are not on the network" in read_workload(prefix, 2, lenient=True)[0].notes[0]
    write_et(tmp_path / "w.1.et.gz", [])
    with pytest.raises(TraceError, match=r"rank 1 has two files, w\.1\.et and w\.1\.et\.gz"):
        read_workload(prefix)


def test_a_folder_is_a_prefix_where_it_holds_one_workload(tmp_path: Path) -> None:
    write_graphs(tmp_path, [[computation(0, 1)]] * 2)
    assert len(read_workload(tmp_path)) == 2
    write_et(tmp_path / "v.0.et", [])
    with pytest.raises(TraceError, match="it holds v and w; give one as 'folder/stem'"):
        read_workload(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "what"),
    [
        ([computation(0, 1, 7)], "node 0 'n0': it waits for node 7, which is not there"),
        ([computation(0, 1), computation(0, 2)], "node 0 is there 2 times"),
        (
            [computation(1, 1, 3), computation(2, 1, 1), computation(3, 1, 2)],
            "nodes wait for each other: 1 -> 2 -> 3 -> 1",
        ),
        ([computation(n, 1, (n + 1) % 50) for n in range(50)], r"each other: 0 -> 49 -> .* -> 39 -> \.\.\. -> 0;"),
        ([computation(0, 2**64 - 3)], "node 0 'n0': duration_micros is -3"),
    ],
)
def test_a_graph_that_cannot_be_run_is_named(nodes: list[Node], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        rank_graph(Path("w.0.et"), nodes)


@pytest.mark.parametrize("size", [-1, 2**63, "4", None])
def test_a_size_is_a_whole_number_of_bytes(size: Value) -> None:
    graph = rank_graph(Path("w.0.et"), [all_reduce(0, size)])  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"w\.0\.et: node 0 'n0': the attribute 'comm_size' is"):
        graph.whole(graph.nodes[0], "comm_size")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"1": [0, 9]}', "group 1 has rank 9 of 4; ranks are 0 to 3"),
        ('{"1": [0, 0]}', "group 1 has a rank twice"),
        ('{"0": [0, 1]}', "the group '0'; number groups from 1"),
        ('{"1": "all"}', "group 1 is 'all'"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_a_group_that_cannot_be_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "comm_group.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError, match=what):
        read_groups(path, 4)
