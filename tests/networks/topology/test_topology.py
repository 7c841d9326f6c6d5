"""What topologies hold: how many links a shape has, what a file, a name and a preset come to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triosim import cli
from triosim.errors import TopologyError
from triosim.networks.topology import Link, Node, Topology
from triosim.networks.topology.presets import PRESETS
from triosim.networks.topology.summary import summary

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "topologies").glob("*.yaml"))
FIGURES = "bandwidth=10 GB/s, latency=1 us)"


@pytest.mark.parametrize(
    ("name", "gpus", "links"),
    [
        ("ring(8, ", 8, 16),
        ("ring(2, ", 2, 2),  # one cable, not two
        ("ring(1, ", 1, 0),
        ("mesh(4x2, ", 8, 2 * (3 * 2 + 4)),
        ("mesh(2x3x4, ", 24, 2 * (1 * 12 + 2 * 8 + 3 * 6)),
        ("torus(4x4, ", 16, 2 * 32),
        ("torus(4x2, ", 8, 2 * (4 * 2 + 4)),  # a side of two does not wrap
        ("torus(3x3x3, ", 27, 2 * 81),
        ("fully_connected(5, ", 5, 20),
        ("switch(8, ", 8, 16),
        ("bus(6, ", 6, 13),
        ("tree(8, ", 8, 2 * (8 + 4 + 2)),
        ("tree(9, fanout=3, ", 9, 2 * (9 + 3)),
        ("fat_tree(k=4, ", 16, 2 * 48),
        ("pcie_tree(8, ", 8, 2 * (8 + 2)),
        ("hybrid_cube_mesh(", 8, 2 * 16),
    ],
)
def test_shapes_have_as_many_gpus_and_links_as_their_definition_says(name: str, gpus: int, links: int) -> None:
    topology = Topology.load(name + FIGURES)
    assert len(topology.gpus) == gpus
    assert topology.gpus == tuple(f"gpu{rank}" for rank in range(gpus))
    assert len(topology.links) == links
    assert all(
        (link.bandwidth, link.latency) in {(1e10, 1e-6), (2e10, 1e-6), (1e10, 0.0)} for link in topology.links.values()
    )


def test_a_mesh_counts_along_its_first_side_and_sends_along_it_first() -> None:
    mesh = Topology.load("mesh(4x2, " + FIGURES)
    assert mesh.coordinates["gpu3"] == (3, 0)
    assert mesh.coordinates["gpu4"] == (0, 1)
    assert [link.name for link in mesh.route(0, 6)] == ["gpu0->gpu1", "gpu1->gpu2", "gpu2->gpu6"]


def test_the_file_of_the_readme_says_what_it_seems_to() -> None:
    mesh = Topology.load(Path(__file__).parents[3] / "examples" / "topologies" / "mesh.yaml")
    assert mesh.links["gpu0->gpu1"] == Link("gpu0->gpu1", "gpu0", "gpu1", 20e9, 5e-7)
    assert mesh.links["gpu1->gpu0"].bandwidth == 65e9
    assert {link.bandwidth for link in mesh.links.values()} == {20e9, 65e9}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_can_be_read_and_named(path: Path) -> None:
    topology = Topology.load(path)
    assert topology.links
    if path.name == "flows.yaml":
        assert [link.name for link in topology.route("s0", "d0")] == ["a", "trunk"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_stands_for_a_system_with_hosts_to_copy_from(name: str) -> None:
    topology = Topology.load(name)
    assert topology.name == name
    for gpu in topology.gpus:
        host = topology.host_of(gpu)
        assert host is not None
        assert topology.nodes[host].kind in ("host", "memory")
        assert topology.route(host, gpu)
    assert topology.outline is not None
    if topology.outline.spec.topology != "pcie_tree":  # in which GPUs reach each other through the host
        assert not any(link.source == topology.host_of(0) for link in topology.route(0, len(topology.gpus) - 1))


def test_presets_have_the_figures_of_the_data_sheets() -> None:
    def bandwidth(name: str, a: int, b: int, gpus: int | None = None) -> float:
        return min(link.bandwidth for link in Topology.load(name, gpus=gpus).route(a, b))

    assert bandwidth("dgx-a100", 0, 7) == 300e9
    assert bandwidth("dgx-h100", 0, 7) == bandwidth("dgx-h200", 0, 7) == 450e9
    assert bandwidth("dgx-b200", 0, 7) == 900e9
    assert bandwidth("dgx-2", 0, 15) == 150e9
    assert bandwidth("dgx-1-v100", 0, 1) == 25e9
    assert bandwidth("dgx-1-v100", 0, 3) == 50e9
    assert bandwidth("dgx-a100", 0, 8, 16) == 200e9 / 8
    assert bandwidth("dgx-h100", 0, 8, 16) == 400e9 / 8
    assert bandwidth("dgx-1-v100", 0, 8, 16) == 100e9 / 8
    assert bandwidth("tpu-v4", 0, 1) == 50e9
    assert len(Topology.load("wafer-84").gpus) == 84
    assert len(Topology.load("a40-pcie").gpus) == 2
    assert len(Topology.load("dgx-2").gpus) == 16
    assert bandwidth("dgx-b300", 0, 7) == bandwidth("gb200-nvl4", 0, 3) == bandwidth("gb200-nvl72", 0, 71) == 900e9
    assert bandwidth("dgx-b300", 0, 8, 16) == bandwidth("gb300-nvl4", 0, 4, 8) == 800e9 / 8
    assert bandwidth("mi300x", 0, 7) == 64e9
    assert bandwidth("v100-nvl4", 0, 3) == 2 * 25e9
    assert bandwidth("gb10", 0, 1, 2) == 200e9 / 8


def test_every_gpu_of_a_dgx_1_has_six_nvlinks() -> None:
    topology = Topology.load("dgx-1-v100")
    for gpu in topology.gpus:
        leaving = [
            link.bandwidth for link in topology.links.values() if link.source == gpu and "gpu" in link.destination
        ]
        assert sum(leaving) == 6 * 25e9


def test_a_preset_grows_by_whole_nodes() -> None:
    for asked, gpus in ((1, 8), (8, 8), (9, 16), (1024, 1024)):
        assert len(Topology.load("dgx-h100", gpus=asked).gpus) == gpus
    two = Topology.load("dgx-h100", gpus=16)
    assert [two.host_of(rank) for rank in (3, 4, 7, 8)] == ["host0", "host1", "host1", "host2"]  # sockets
    assert [link.name for link in two.route(1, 9)] == ["gpu1->fabric", "fabric->gpu9"]
    assert len(Topology.load("dgx-h100(gpus=16)").gpus) == 16


def test_gpus_that_share_a_network_card_share_its_link() -> None:
    two = Topology.load("dgx-1-v100", gpus=16)
    assert two.route(0, 8)[1] == two.route(1, 9)[1]
    assert two.route(0, 8)[1] != two.route(2, 10)[1]


def test_names_without_a_count_are_built_for_what_is_asked() -> None:
    assert len(Topology.load("switch(bandwidth=1 GB/s)", gpus=6).gpus) == 6
    assert Topology.load("mesh(bandwidth=1 GB/s)", gpus=12).name == "mesh 4x3"
    assert Topology.load("torus(dimensions=3, bandwidth=1 GB/s)", gpus=64).name == "torus 4x4x4"
    assert len(Topology.load("tpu-v4", gpus=8).gpus) == 8
    assert len(Topology.load("fat_tree(bandwidth=1 GB/s)", gpus=100).gpus) == 100


def test_fewer_gpus_than_asked_is_an_error_that_names_both() -> None:
    with pytest.raises(TopologyError, match=r"wafer-84 has 84 GPUs, 85 are asked"):
        Topology.load("wafer-84", gpus=85)
    with pytest.raises(TopologyError, match=r"4 GPUs, 5 are asked"):
        Topology.load("ring(4, bandwidth=1 GB/s)", gpus=5)
    with pytest.raises(TopologyError, match=r"1 GPUs, 2 are asked.*kind: gpu"):
        Topology.from_dict({"nodes": ["gpu0", "s1"], "links": [{"from": "gpu0", "to": "s1", "bandwidth": 1}]}, gpus=2)


def test_links_by_name_and_routes_that_are_given() -> None:
    topology = Topology.from_dict(
        {
            "links": {"l0": {"bandwidth": 1e9, "latency": 0}, "l4": {"bandwidth": "2 GB/s", "latency": "1 us"}},
            "routes": [{"from": "s0", "to": "d0", "links": ["l4", "l0"]}, {"from": "s1", "to": "d0", "links": ["l0"]}],
        }
    )
    assert [(link.name, link.bandwidth, link.latency) for link in topology.route("s0", "d0")] == [
        ("l4", 2e9, 1e-6),
        ("l0", 1e9, 0.0),
    ]
    assert topology.gpus == ()
    with pytest.raises(TopologyError, match="no links lead from d0 to s0"):
        topology.route("d0", "s0")


def test_a_route_that_is_given_goes_before_a_shorter_one() -> None:
    ring = {
        "topology": "custom",
        "bandwidth": 1e9,
        "links": [{"from": f"gpu{i}", "to": f"gpu{(i + 1) % 4}"} for i in range(4)],
    }
    round_about = ["gpu0->gpu3", "gpu3->gpu2", "gpu2->gpu1"]
    topology = Topology.from_dict(ring | {"routes": [{"from": "gpu0", "to": "gpu1", "links": round_about}]})
    assert [link.name for link in topology.route(0, 1)] == round_about
    assert topology.routes(0, 1) == (topology.route(0, 1),)


def test_gpus_that_are_not_listed_are_ranked_by_their_numbers() -> None:
    links = [{"from": f"gpu{i}", "to": "hub", "bandwidth": 1e9} for i in (10, 2, 0, 1)]
    assert Topology.from_dict({"links": links}).gpus == ("gpu0", "gpu1", "gpu2", "gpu10")


def test_reverse_bandwidth_is_that_of_the_other_direction() -> None:
    topology = Topology.load("switch(2, bandwidth=1 GB/s, reverse_bandwidth=3 GB/s)")
    assert [link.bandwidth for link in topology.route(0, 1)] == [1e9, 3e9]


def test_uplinks_of_a_tree_carry_all_below_them_unless_oversubscribed() -> None:
    full = Topology.load("tree(16, fanout=4, oversubscription=1, bandwidth=1 GB/s)")
    half = Topology.load("tree(16, fanout=4, oversubscription=2, bandwidth=1 GB/s)")
    plain = Topology.load("tree(16, fanout=4, bandwidth=1 GB/s)")
    assert [t.links["switch0.0->switch1.0"].bandwidth for t in (full, half, plain)] == [4e9, 2e9, 1e9]
    assert [summary(t).bisection for t in (full, half, plain)] == [8e9, 4e9, 2e9]


def test_all_transfers_on_a_bus_cross_the_one_medium() -> None:
    bus = Topology.load("bus(4, bandwidth=1 GB/s, latency=1 us)")
    for a in range(4):
        for b in range(4):
            if a != b:
                assert bus.links["bus->bus.out"] in bus.route(a, b)
                assert sum(link.latency for link in bus.route(a, b)) == 1e-6


def test_a_fat_tree_has_full_bisection_and_spreads_its_load() -> None:
    tree = Topology.load("fat_tree(k=4, bandwidth=1 GB/s)")
    assert summary(tree).bisection == 8e9
    assert tree.routing == "ecmp"
    assert len(tree.routes(0, 15)) == 4


def test_summary_of_a_mesh() -> None:
    found = summary(Topology.load("mesh(4x2, bandwidth=10 GB/s, latency=1 us)"))
    assert (found.gpus, found.nodes, found.diameter, found.bisection) == (8, {"gpu": 8}, 4, 40e9)
    assert found.longest_latency == pytest.approx(4e-6)
    (links,) = found.links
    assert (links.source, links.destination, links.bandwidth, links.latency, links.count) == (
        "gpu",
        "gpu",
        1e10,
        1e-6,
        20,
    )


def test_nodes_are_named_by_rank_or_name_and_a_wrong_one_gets_the_nearest() -> None:
    topology = Topology.load("switch(4, bandwidth=1 GB/s)")
    assert topology.node(3) == topology.node("gpu3") == "gpu3"
    with pytest.raises(TopologyError, match=r"unknown node 'gpu33'; did you mean 'gpu3'\?"):
        topology.node("gpu33")
    with pytest.raises(TopologyError, match="rank 4 has no GPU: there are 4"):
        topology.node(4)


def test_a_topology_can_be_put_together_in_python() -> None:
    topology = Topology(
        "pair", [Node("a", "gpu"), Node("b", "gpu")], [Link("x", "a", "b", 1e9), Link("y", "b", "a", 1e9)]
    )
    assert topology.route("a", "b") == (topology.links["x"],)
    with pytest.raises(TopologyError, match="bandwidth of link 'z'"):
        Link("z", "a", "b", 0.0)
    with pytest.raises(TopologyError, match="declared twice"):
        Topology("twice", [Node("a", "gpu"), Node("a", "gpu")], [])
    with pytest.raises(TopologyError, match=r"unknown kind of node 'gpuu'; did you mean 'gpu'\?"):
        Node("a", "gpuu")  # type: ignore[arg-type]


def test_importing_topologies_and_loading_a_preset_needs_no_heavy_package() -> None:
    code = (
        "import sys; from triosim.networks.topology import Topology; Topology.load('dgx-h100', gpus=16);"
        "print([m for m in ('pydantic', 'networkx', 'yaml', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_table_says_what_the_photonic_network_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wafer.yaml"
    file.write_text(
        "topology: mesh\nshape: [2, 2]\nbandwidth: 50 GB/s\nlatency: 1 us\n"
        "photonic: {ports: 4, ports_per_circuit: 2, setup: 3 ms}\n"
    )
    assert cli.run(["topology", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 ports a GPU of 60.5 GB/s, 2 to a circuit, set up in 3.00 ms with a latency of 500 ns" in shown
