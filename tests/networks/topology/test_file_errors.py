"""Whatever is wrong in a topology ends in one line that names the file, the line and the key, and says what would be right."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from triosim.errors import TopologyError
from triosim.networks.topology import Topology

MESH = """\
topology: mesh
shape: [4, 2]
bandwidth: 65 GB/s
latency: 500 ns
overrides:
  - {from: gpu0, to: gpu1, bandwidth: 20 GB/s}
"""
CUSTOM = """\
nodes: [gpu0, gpu1, {name: sw, kind: switch}]
links:
  - {from: gpu0, to: sw, bandwidth: 1 GB/s}
  - {from: gpu1, to: sw, bandwidth: 1 GB/s, name: up}
routes:
  - {from: gpu0, to: gpu1, links: [gpu0->sw, up.back]}
"""


def message(folder: Path, text: str | bytes, **options: Any) -> str:
    """Return what loading a file says, without the folder; it must be one line."""
    path = folder / "mesh.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TopologyError) as caught:
        Topology.load(path, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    return str(caught.value).replace(str(folder) + "/", "")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("65 GB/s", "65 GBs", "mesh.yaml:3: bandwidth: unknown unit 'GBs' in '65 GBs'; write a bandwidth such as '450 GB/s'"),
        ("65 GB/s", "65", "mesh.yaml:3: bandwidth: 65 has no unit and is read as 65 B/s; write one, such as '65 GB/s', or"),
        ("20 GB/s", "20", "mesh.yaml:6: overrides[0].bandwidth: 20 has no unit and is read as 20 B/s"),
        ("500 ns", "500", "mesh.yaml:4: latency: 500 has no unit and is read as 500 s; write one, such as '500 ns'"),
        ("500 ns", "1", "mesh.yaml:4: latency: 1 has no unit and is read as 1 s; write one, such as '1 us', or '1 s'"),
        ("500 ns", "500 s", "mesh.yaml:4: latency: '500 s' is more than any link has; write a time such as '500 ns'"),
        ("65 GB/s", "0", "mesh.yaml:3: bandwidth: '0' is not a positive number"),
        ("65 GB/s", "-65 GB/s", "mesh.yaml:3: bandwidth: '-65 GB/s' is not a positive number"),
        ("65 GB/s", ".nan", "mesh.yaml:3: bandwidth: 'nan' is not a positive number"),
        ("65 GB/s", ".inf", "mesh.yaml:3: bandwidth: 'inf' is not a positive number"),
        ("65 GB/s", "1e400", "mesh.yaml:3: bandwidth: '1e400' is more than any machine has"),
        ("65 GB/s", "true", "mesh.yaml:3: bandwidth: True is not a quantity"),
        ("65 GB/s", "[1]", "mesh.yaml:3: bandwidth: [1] is not a quantity"),
        ("65 GB/s", "", "mesh.yaml:3: bandwidth: None is not a quantity"),
        ("500 ns", "-1 ns", "mesh.yaml:4: latency: '-1 ns' is not a time of 0 or more"),
        ("500 ns", "500 GB/s", "mesh.yaml:4: latency: unknown unit 'GB/s'"),
        ("bandwidth: 65", "bandwith: 65", "mesh.yaml:3: bandwith: unknown key; did you mean 'bandwidth'?"),
        ("bandwidth: 65 GB/s\n", "", "mesh.yaml: bandwidth: 'bandwidth' is missing; write for example 'bandwidth: 100 GB/s'"),
        ("topology: mesh", "topology: mehs", "mesh.yaml:1: topology: unknown topology 'mehs'; did you mean 'mesh'?"),
        ("topology: mesh", "topology: dgx-h100", "mesh.yaml:1: topology: unknown topology 'dgx-h100'; it is a preset"),
        ("topology: mesh", "topology: [mesh]", "mesh.yaml:1: topology: unknown topology"),
        ("topology: mesh\n", "", "mesh.yaml: 'topology' is missing"),
        ("[4, 2]", "[4, 0]", "mesh.yaml:2: shape: 0 is not a whole number from 1 to 200000"),
        ("[4, 2]", "[4, -2]", "mesh.yaml:2: shape: -2 is not a whole number"),
        ("[4, 2]", "[4, 2.5]", "mesh.yaml:2: shape: 2.5 is not a whole number"),
        ("[4, 2]", "[4000, 2000]", "mesh.yaml:2: shape: 8,000,000 GPUs are more than the limit of 200,000"),
        ("[4, 2]", "[]", "mesh.yaml:2: shape: 0 sides are not from 1 to 6"),
        ("[4, 2]", "4 by 2", "mesh.yaml:2: shape: '4 by 2' is not a whole number"),
        ("latency:", "gpus: 9\nlatency:", "mesh.yaml:4: gpus: shape 4x2 has 8 GPUs, not 9; leave one of the two out"),
        ("latency:", "k: 4\nlatency:", "mesh.yaml:4: k: a mesh has no 'k'; it is for fat_tree"),
        ("latency:", "nodes: 4\nlatency:", "mesh.yaml:4: nodes: 'nodes' needs 'inter_node'"),
        ("latency:", "routing: random\nlatency:", "mesh.yaml:4: routing: 'random' is not valid"),
        ("latency:", "host: 5\nlatency:", "mesh.yaml:4: host: 5 is not a mapping; write '{key: value}'"),
        ("overrides:\n  - {from", "overrides:\n  {from", "mesh.yaml:5: overrides: {"),
        ("latency:", "shape: [8]\nlatency:", "mesh.yaml:4: key 'shape' is written twice; it is already in line 2"),
        ("gpu1", "gpu9", "mesh.yaml:6: overrides[0]: unknown node 'gpu9'"),
        ("gpu1", "gpu7", "mesh.yaml:6: overrides[0]: there is no link from gpu0 to gpu7; gpu0 is linked to gpu1, gpu4"),
        (", bandwidth: 20 GB/s", "", "mesh.yaml:6: overrides[0]: an override needs a bandwidth or a latency"),
        ("20 GB/s", "20 GX/s", "mesh.yaml:6: overrides[0].bandwidth: unknown unit 'GX'"),
        ("from:", "form:", "mesh.yaml:6: overrides[0].form: unknown key; did you mean 'from'?"),
        ("from: gpu0, ", "", "mesh.yaml:6: overrides[0].from: 'from' is missing"),
        ("shape: [4, 2]", "shape: [4, 2", "mesh.yaml:3: not valid YAML"),
        ("[4, 2]", "&a [4, 2]", "mesh.yaml:2: anchors and aliases (& and *) are not supported"),
        ("[4, 2]", "*a", "mesh.yaml:2: anchors and aliases"),
        ("[4, 2]", "!!python/object:os.system {}", "mesh.yaml:2: shape"),
        ("shape", "[1, 2]: 3\nshape", "mesh.yaml:2: a key must be a word"),
        ("latency:", "---\nlatency:", "mesh.yaml:4: a second document begins"),
        ("500 ns", "2020-99-99", "mesh.yaml:4: '2020-99-99' is not a value"),
        ("500 ns", "[" * 200 + "]" * 200, "mesh.yaml:4: nested too deep"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named_with_its_line_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in MESH
    assert message(tmp_path, MESH.replace(old, new, 1)).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu0, gpu1,", "gpu0, gpu0,", "mesh.yaml:1: nodes[1]: node 'gpu0' is declared twice"),
        ("name: up", "name: gpu0->sw", "mesh.yaml:4: links[1]: link 'gpu0->sw' is declared twice"),
        ("{from: gpu1, to: sw,", "{from: gpu0, to: sw,", "mesh.yaml:6: routes[0]: the route"),
        (
            "to: sw, bandwidth: 1 GB/s, name",
            "to: sx, bandwidth: 1 GB/s, name",
            "mesh.yaml:4: links[1]: unknown node 'sx'",
        ),
        (
            "name: up",
            "both: false, name: up",
            "mesh.yaml:6: routes[0]: unknown link 'up.back'; known: gpu0->sw, sw->gpu0, up",
        ),
        (
            "to: sw, bandwidth: 1 GB/s}",
            "to: gpu0, bandwidth: 1}",
            "mesh.yaml:3: links[0]: a link leads from gpu0 to itself",
        ),
        ("kind: switch", "kind: swich", "mesh.yaml:1: nodes[2].kind: 'swich' is not valid"),
        ("1 GB/s, name", "0, name", "mesh.yaml:4: links[1].bandwidth: '0' is not a positive number"),
        (", bandwidth: 1 GB/s, name", ", name", "mesh.yaml:4: links[1]: bandwidth is missing"),
        (
            "up.back]",
            "up]",
            "mesh.yaml:6: routes[0]: the route from gpu0 to gpu1 is not a path: link 'up' begins at gpu1, not sw",
        ),
        (", up.back]", "]", "mesh.yaml:6: routes[0]: the route from gpu0 to gpu1 ends at sw; end it at gpu1"),
        ("from: gpu0, to: gpu1, links", "from: gpu0, to: gpu2, links", "mesh.yaml:6: routes[0]: unknown node 'gpu2'"),
        ("routes:", "gpus: 2\nroutes:", "mesh.yaml:5: gpus: unknown key"),
        ("links:", "lincs:", "mesh.yaml:2: lincs: unknown key; did you mean 'links'?"),
    ],
)
def test_a_mistake_in_a_free_list_is_named_too(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in CUSTOM
    assert message(tmp_path, CUSTOM.replace(old, new, 1)).startswith(expected)


def test_gpus_that_cannot_reach_each_other_are_named(tmp_path: Path) -> None:
    one_way = "links:\n  - {from: gpu0, to: gpu1, bandwidth: 1 GB/s, both: false}\n"
    assert message(tmp_path, one_way).startswith("mesh.yaml: no links lead from gpu1 to gpu0; add a link")
    apart = "nodes: [gpu0, gpu1, gpu2]\nlinks: [{from: gpu0, to: gpu2, bandwidth: 1e9}]\n"
    assert message(tmp_path, apart).startswith("mesh.yaml: no links lead from gpu0 to gpu1")
    through_memory = "bandwidth: 1e9\nlinks: [{from: gpu0, to: mem}, {from: mem, to: gpu1}]\n"
    assert message(tmp_path, through_memory).startswith("mesh.yaml: no links lead from gpu0 to gpu1")


@pytest.mark.parametrize("content", [b"", b"# nothing\n"])
def test_an_empty_file_says_so(tmp_path: Path, content: bytes) -> None:
    assert message(tmp_path, content) == "mesh.yaml: is empty; begin with 'topology: switch', say"


@pytest.mark.parametrize("content", [b"- 1\n", b"just words", b"3"])
def test_a_file_that_is_no_mapping(tmp_path: Path, content: bytes) -> None:
    assert message(tmp_path, content).startswith("mesh.yaml: not a mapping of keys to values")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert message(tmp_path, b"\x89PNG\r\n\x1a\n\xff\xfe").startswith("mesh.yaml: is not text: byte 0 is not UTF-8")
    assert message(tmp_path, b"topology: \x00mesh").startswith("mesh.yaml")
    with pytest.raises(TopologyError, match=r"nothing\.yaml: no such file"):
        Topology.load(tmp_path / "nothing.yaml")
    with pytest.raises(TopologyError, match=r"cannot be read: Is a directory"):
        Topology.load(tmp_path)


def test_a_small_file_of_aliases_does_not_grow(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    assert "anchors and aliases" in message(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dgx-h100(gpus=16", "dgx-h100(gpus=16: a parenthesis is not closed; end it in ')'"),
        ("Ring(4)_FC(2", "Ring(4)_FC(2: a parenthesis is not closed; end it in ')'"),
        ("ring(8))", "ring(8)): a parenthesis is not opened; leave it out"),
        ("Ring(4)_FC(2)_Swich(8)", "Ring(4)_FC(2)_Swich(8): unknown block 'Swich'; did you mean 'Switch'?"),
        ("Ring(4 bandwidth=1)_FC(2)", "Ring(4 bandwidth=1)_FC(2): a comma is missing before 'bandwidth'; write '4, ban"),
        ("switch(8 bandwidth=65 GB/s)", "switch(8 bandwidth=65 GB/s): a comma is missing before 'bandwidth'; write '8, ban"),
        ("switch(8, bandwidth=1 latency=1)", "switch(8, bandwidth=1 latency=1): a comma is missing before 'latency'"),
        ("ring(8, bandwidth=1 GB/s, latency=3 s)", "ring(8, bandwidth=1 GB/s, latency=3 s): latency: '3 s' is more than"),
        ("mehs", "unknown topology 'mehs'; did you mean 'mesh'?"),
        ("dgx-h10", "unknown topology 'dgx-h10'; did you mean 'dgx-h100'?"),
        ("mehs(4x2)", "unknown topology 'mehs'; did you mean 'mesh'?"),
        ("ring(8, bandwidth=5)", "ring(8, bandwidth=5): bandwidth: 5 has no unit and is read as 5 B/s"),
        ("Ring(8, bandwidth=5)_FC(2)", "Ring(8, bandwidth=5)_FC(2): FC: 'bandwidth' is missing"),
        ("Ring(8, bandwidth=5)", "Ring(8, bandwidth=5): bandwidth[0]: 5 has no unit and is read as 5 B/s"),
        ("switch(8)", "switch(8): bandwidth: 'bandwidth' is missing; write for example 'switch(8, bandwidth=100 GB/s)'"),
        ("switch", "switch: bandwidth: 'bandwidth' is missing"),
        ("switch(bandwidth=1 GB/s)", "switch(bandwidth=1 GB/s): the number of GPUs is missing"),
        ("mesh(4x2, bandwith=1 GB/s)", "mesh(4x2, bandwith=1 GB/s): bandwith: unknown key; did you mean 'bandwidth'?"),
        ("ring(8, 9, bandwidth=1)", "ring(8, 9, bandwidth=1): ring has one number of GPUs, and 2 are given"),
        ("ring(0, bandwidth=1)", "ring(0, bandwidth=1): gpus: 0 is not a whole number from 1 to 200000"),
        ("ring(-3, bandwidth=1)", "ring(-3, bandwidth=1): gpus: -3 is not a whole number"),
        ("ring(eight, bandwidth=1)", "ring(eight, bandwidth=1): gpus: 'eight' is not a whole number"),
        ("switch(2000000, bandwidth=1)", "switch(2000000, bandwidth=1): gpus: 2000000 is more than the limit of 200,000; set"),
        ("mesh(12x7, 65 GB/s)", "mesh(12x7, 65 GB/s): '65 GB/s' has no key; write 'bandwidth=65 GB/s'"),
        ("ring(8, bandwidth=1, 2 us)", "ring(8, bandwidth=1, 2 us): '2 us' has no key; write 'latency=2 us'"),
        ("fully_connected(90000, bandwidth=1)", "fully_connected(90000, bandwidth=1): gpus: 8,099,910,000 links of GPUs"),
        ("tree(levels=900000, bandwidth=1)", "tree(levels=900000, bandwidth=1): levels: 900000 is more than the limit"),
        ("fat_tree(k=3, bandwidth=1)", "fat_tree(k=3, bandwidth=1): k: 3 is not an even number"),
        ("hybrid_cube_mesh(4, bandwidth=1)", "hybrid_cube_mesh(4, bandwidth=1): gpus: a hybrid cube mesh has 8 GPUs, not 4"),
        ("dgx-h100(gpus=12)", "dgx-h100(gpus=12): gpus: 12 GPUs are not whole nodes of 8; write 16"),
        ("bus(4, bandwidth=1, reverse_bandwidth=2)", "bus(4, bandwidth=1, reverse_bandwidth=2): reverse_bandwidth: a bus"),
        ("dgx-2(inter_node={bandwidth: 50 GX/s})", "dgx-2(inter_node={bandwidth: 50 GX/s}): inter_node.bandwidth: unknown"),
        ("ring", "ring: bandwidth: 'bandwidth' is missing; write for example 'ring(bandwidth=100 GB/s)'"),
        ("", "unknown topology ''"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_name_is_named(name: str, expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.load(name)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("asked", [0, -1])
def test_no_gpus_cannot_be_asked(asked: int) -> None:
    with pytest.raises(TopologyError, match="ask for at least one"):
        Topology.load("dgx-h100", gpus=asked)


def test_a_mapping_is_checked_like_a_file_and_named_as_it_is_told() -> None:
    with pytest.raises(TopologyError, match=r"^my system: links\.l0\.bandwidth: 'nan' is not a positive number"):
        Topology.from_dict({"links": {"l0": {"bandwidth": math.nan}}}, source="my system")
    with pytest.raises(TopologyError, match="topology: list is not a mapping"):
        Topology.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="unknown preset 'dgx'"):
        Topology.from_dict({"preset": "dgx"})
    with pytest.raises(TopologyError, match="a preset has a topology of its own"):
        Topology.from_dict({"preset": "dgx-2", "topology": "ring"})


WORDS = [
    "", "mesh", "rin", "0", "-1", "1e400", ".nan", "65 GBs", "-5 GB/s", "5 fs", "[]", "{}", "null", "true", "*a", "&a x",
    "gpu0", "sw", "999999999999", "[4, 2, 0]", "{from: gpu0}", "!!set {a}", "'", '"', "[", "}", ": :", "0x10", "1:30", "~",
    "\t", "ü", "- - 1",
]  # fmt: skip
GOOD = [
    MESH,
    CUSTOM,
    "preset: dgx-1-v100\ngpus: 16\noverrides:\n  - {from: gpu0, to: gpu3, latency: 2 us, both: true}\n",
    "topology: switch\nnodes: 2\ngpus_per_node: 4\nbandwidth: 1 GB/s\ninter_node: {bandwidth: 1e9}\nhost: {bandwidth: 1e9}\n",
    "links:\n  l0: {bandwidth: 1e9, latency: 0}\n  l4: {bandwidth: 1e9}\nroutes:\n  - {from: s0, to: d0, links: [l4, l0]}\n",
]


@settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(GOOD), st.integers(0, 2**32))
@example(MESH, 0)
def test_no_mutation_of_a_file_gives_anything_but_a_topology_or_one_line(tmp_path: Path, text: str, seed: int) -> None:
    mutated, line, key = mutate(text, random.Random(seed))
    path = tmp_path / "t.yaml"
    path.write_bytes(mutated.encode("utf-8", "surrogateescape"))
    found = complaint(lambda: Topology.load(path))
    if found is None:
        return
    assert "\n" not in found
    assert found.startswith(str(path))
    # What is wrong with the whole (a GPU is cut off, a bracket is missing) shows elsewhere than where it was written.
    elsewhere = (
        "no links lead",
        "not valid YAML",
        "the route from",
        "declared twice",
        "unknown node",
        "unknown link",
        "no link from",
    )
    if line is not None and not any(words in found for words in elsewhere):
        assert f":{line}" in found or f"line {line}" in found or key in found, found


def complaint(load: Callable[[], Topology]) -> str | None:
    """Return what the error says, or None if there is none; an error of another kind goes through."""
    try:
        load()
    except TopologyError as error:
        return str(error)
    return None


def mutate(text: str, rng: random.Random) -> tuple[str, int | None, str]:
    """Change a value, a key, a line or a character; also return the line and the key if there is one."""
    lines = text.splitlines()
    spots = [(i, match) for i, line in enumerate(lines) for match in re.finditer(r"(\w+): ([^,{}\[\]]+)", line)]
    kind = rng.randrange(5)
    number, match = rng.choice(spots)
    line = lines[number]
    if kind == 0:
        lines[number] = line[: match.start(2)] + rng.choice(WORDS) + line[match.end(2) :]
    elif kind == 1:
        lines[number] = (
            line[: match.start(1)] + rng.choice([match[1] + "x", match[1][1:], "gpus", "nodes"]) + line[match.end(1) :]
        )
    elif kind == 2:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    elif kind == 3:
        del lines[rng.randrange(len(lines))]
    else:
        place = rng.randrange(len(text))
        return (
            text[:place] + chr(rng.choice([0, 9, 32, 58, 91, 123, 0x80, 0x2028, 0xFEFF, 0x1F600])) + text[place + 1 :],
            None,
            "",
        )
    return "\n".join(lines) + "\n", number + 1 if kind < 2 else None, match[1]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "topology",
    "preset",
    "shape",
    "gpus",
    "bandwidth",
    "latency",
    "overrides",
    "nodes",
    "links",
    "routes",
    "host",
    "inter_node",
    "k",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3), st.booleans())
def test_no_mapping_gives_anything_but_a_topology_or_one_line(changes: dict[str, Any], valid: bool) -> None:
    base: dict[str, Any] = {"topology": "mesh", "shape": [4, 2], "bandwidth": "65 GB/s"} if valid else {}
    found = complaint(lambda: Topology.from_dict(base | changes, source="here"))
    assert found is None or (found.startswith("here") and "\n" not in found)


@pytest.mark.parametrize(
    "said",
    [
        "mesh(12, 7, bandwidth=1 GB/s)",
        "mesh((12, 7), bandwidth=1 GB/s)",
        "mesh([12, 7], bandwidth=1 GB/s)",
        "mesh(12*7, bandwidth=1 GB/s)",
        "mesh(gpus=84, shape=(12, 7), bandwidth=1 GB/s)",
    ],
)
def test_sides_are_read_as_python_has_them(said: str) -> None:
    assert Topology.load(said).name == Topology.load("mesh(12x7, bandwidth=1 GB/s)").name
