"""Pictures are drawn of every kind of topology, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from triosim.errors import OutputError, TopologyError
from triosim.networks.topology import Topology
from triosim.reports.pictures.topology_drawing import drawing_of
from triosim.reports.pictures.topology_layout import layout, merged
from triosim.reports.pictures.topology_picture import draw

FIGURES = "bandwidth=10 GB/s, latency=1 us)"
NAMES = [
    "mesh(4x2, ",
    "torus(3x3x3, ",
    "ring(8, ",
    "mesh(5x1, ",
    "fat_tree(16, ",
    "bus(4, ",
    "pcie_tree(8, ",
    "switch(1, ",
]


def drawn_at(topology: Topology) -> dict[str, tuple[float, float]]:
    return layout(topology, list(topology.nodes), merged(topology, set()))


@pytest.mark.parametrize("name", NAMES)
def test_no_two_nodes_are_drawn_at_one_place(name: str) -> None:
    places = list(drawn_at(Topology.load(name + FIGURES)).values())
    for index, (x, y) in enumerate(places):
        assert all(abs(x - other_x) + abs(y - other_y) > 0.3 for other_x, other_y in places[:index])


def test_a_mesh_is_drawn_by_its_coordinates_and_a_tree_in_layers() -> None:
    mesh = drawn_at(Topology.load("mesh(4x2, " + FIGURES))
    assert (mesh["gpu0"], mesh["gpu3"], mesh["gpu4"]) == ((0.0, 0.0), (3.0, 0.0), (0.0, -1.0))
    tree = drawn_at(Topology.load("fat_tree(16, " + FIGURES))
    assert tree["gpu0"][1] < tree["edge0.0"][1] < tree["aggregation0.0"][1] < tree["core0"][1]
    nodes = drawn_at(Topology.load("dgx-h100", gpus=16))
    assert nodes["node0.switch0"][1] < nodes["gpu0"][1] < nodes["fabric"][1]


def test_directions_that_differ_are_drawn_apart() -> None:
    mesh = {"topology": "ring", "gpus": 4, "bandwidth": 2e9}
    slow = {"overrides": [{"from": "gpu0", "to": "gpu1", "bandwidth": 1e9}]}
    assert [line.arrow for line in merged(Topology.from_dict(mesh), set())] == [False] * 4
    assert sum(line.arrow for line in merged(Topology.from_dict(mesh | slow), set())) == 2


LARGE = [
    "Ring(4, bandwidth=100 GB/s)_FC(2, bandwidth=50 GB/s)_Switch(8, bandwidth=25 GB/s)",
    "dgx-h100(gpus=1024)",
    "gb200-nvl72",
    "ring(200, " + FIGURES,
    "fat_tree(128, " + FIGURES,
    "mesh(12x12, " + FIGURES,
]


@pytest.mark.parametrize("name", LARGE)
def test_a_picture_is_at_most_2000_pixels_wide_and_no_two_nodes_of_it_overlap(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    topology = Topology.load(name)
    draw(topology, tmp_path / "a.png")
    assert int.from_bytes((tmp_path / "a.png").read_bytes()[16:20], "big") <= 2_000
    places = list(drawing_of(topology).at.values())
    for index, (x, y) in enumerate(places):
        assert all(abs(x - other_x) + abs(y - other_y) > 0.3 for other_x, other_y in places[:index])


def test_several_dimensions_are_drawn_as_one_block_of_each() -> None:
    topology = Topology.load(LARGE[0])
    drawing = drawing_of(topology)
    assert [text.split("\n")[0] for text, _ in drawing.captions] == [
        "dimension 1: ring of 4, 16 times",
        "dimension 2: direct links of 2, 32 times",
        "dimension 3: switch of 8, 8 times",
    ]
    assert [node.label for node in drawing.nodes.values()] == [
        *["gpu0", "gpu1", "gpu2", "gpu3"],
        *["0-3", "4-7"],
        *["0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63", "switch"],
    ]
    labels = {name: node.label for name, node in drawing.nodes.items()}

    def ends(source: str, destination: str) -> list[str]:
        (link,) = [one for one in topology.links.values() if (one.source, one.destination) == (source, destination)]
        found = drawing.ends(link)
        return [] if found is None else [labels[name] for name in found]

    assert ends("gpu13", "gpu14") == ["gpu1", "gpu2"]
    assert ends("gpu9", "gpu13") == ["0-3", "4-7"]
    assert ends("dim3.switch5", "gpu29") == ["switch", "24-31"]


def test_of_many_members_the_first_and_the_last_are_drawn_and_dots_stand_for_the_others() -> None:
    labels = [node.label for node in drawing_of(Topology.load("dgx-h100(gpus=1024)")).nodes.values()]
    assert labels[9:] == ["0-7", "8-15", "16-23", "24-31", "32-39", "...", "1016-1023", "switch"]


@pytest.mark.parametrize("name", ["dgx-1-v100", "bus(4, " + FIGURES])
def test_a_picture_is_written_in_the_format_of_its_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(Topology.load(name), tmp_path / "a.png")
    draw(Topology.load(name), tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_what_cannot_be_drawn_or_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    flows = {"links": {"l": {"bandwidth": 1e9}}, "routes": [{"from": "a", "to": "b", "links": ["l"]}]}
    with pytest.raises(TopologyError, match="its links have no ends"):
        draw(Topology.from_dict(flows), tmp_path / "a.png")
    with pytest.raises(OutputError):
        draw(Topology.load("dgx-2"), tmp_path / "nowhere" / "a.png")
    with pytest.raises(OutputError, match="is not a known kind of picture"):
        draw(Topology.load("dgx-2"), tmp_path / "a.docx")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OutputError, match=r"pip install 'triosim\[plot\]'"):
        draw(Topology.load("dgx-2"), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
