"""What a topology is made of: the spec of a node, the number of nodes, and the network between them."""

from __future__ import annotations

import pytest

from triosim.errors import TopologyError
from triosim.networks.topology import Topology
from triosim.networks.topology.node_bandwidth import node_bandwidth
from triosim.networks.topology.shapes import Wire


def node(name: str, gpus: int | None = None) -> float:
    """The bandwidth of a GPU inside a node, in GB/s."""
    outline = Topology.load(name).outline
    assert outline is not None
    return node_bandwidth(outline.spec, gpus) / 1e9


def test_a_preset_and_a_shape_say_of_what_nodes_they_are_made() -> None:
    outline = Topology.load("dgx-h100", gpus=20).outline
    assert outline is not None
    assert (outline.nodes, outline.spec.gpus, outline.spec.topology) == (3, 8, "switch")
    spelled = {"topology": "switch", "nodes": 3, "gpus_per_node": 8, "bandwidth": "450 GB/s", "latency": "500 ns"}
    between = {"bandwidth": "400 Gb/s", "latency": "1 us", "network": "roce"}
    same = Topology.from_dict({**spelled, "inter_node": between}).outline
    assert same is not None
    assert (same.nodes, same.spec.gpus, same.spec.bandwidth) == (3, 8, outline.spec.bandwidth)
    assert same.spec.inter_node is not None
    assert same.spec.inter_node.network == "roce"


def test_changed_links_leave_a_topology_made_of_the_same_nodes() -> None:
    topology = Topology.load("dgx-a100", gpus=16)
    assert topology.with_links(lambda link: link).outline == topology.outline
    slower = [{"from": "gpu0", "to": "node0.switch0", "bandwidth": "1 GB/s"}]
    assert Topology.from_dict({"preset": "dgx-a100", "gpus": 16, "overrides": slower}).outline == topology.outline


@pytest.mark.parametrize(
    "mapping",
    [
        {"links": [{"from": "gpu0", "to": "gpu1", "bandwidth": 1e9}]},
        {"topology": "Ring(4)_Switch(2)", "bandwidth": 1e9},
        {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]},
    ],
    ids=["custom", "notation", "ASTRA-sim"],
)
def test_links_and_dimensions_are_made_of_no_nodes(mapping: dict[str, object]) -> None:
    assert Topology.from_dict(mapping).outline is None


def test_cards_are_infiniband_unless_something_else_is_said() -> None:
    def network(name: str) -> str:
        outline = Topology.load(name).outline
        assert outline is not None
        assert outline.spec.inter_node is not None
        return outline.spec.inter_node.network

    assert network("dgx-h100") == "infiniband"
    assert network("dgx-h100(gpus=64, network=efa)") == "efa"
    assert network("dgx-h100(inter_node={bandwidth: 100 Gb/s, network: sockets})") == "sockets"
    with pytest.raises(TopologyError, match=r"network: 'rose' is not valid: input should be 'infiniband', 'roce'"):
        network("dgx-h100(network=rose)")
    with pytest.raises(TopologyError, match=r"nothing is between nodes of a wafer-84; leave it out"):
        network("wafer-84(network=roce)")


def test_a_gpu_reaches_the_others_of_its_node_by_its_links() -> None:
    assert node("dgx-h100") == 450
    assert node("mi300x") == 7 * 64
    assert node("mi300x", 2) == 64  # of a pair, one link
    assert node("v100-nvl4") == node("dgx-1-v100") == 6 * 25
    assert [node("dgx-1-v100", gpus) for gpus in (2, 3, 4, 6, 7)] == [25, 50, 100, 50, 100]  # rings that share no link
    assert node("l40s-pcie") == 25
    assert node("ring(8, bandwidth=10 GB/s)") == 20
    assert node("torus(4x2, bandwidth=10 GB/s)") == 30  # of the side of two, one link
    assert node("switch(8, bandwidth=10 GB/s, reverse_bandwidth=8 GB/s)") == 8


def test_a_network_card_is_shared_by_gpus_of_one_node() -> None:
    """Of six GPUs a node, four share its first card and two its second one."""
    wire = {"bandwidth": "100 Gb/s", "gpus_per_nic": 4}
    two = {"topology": "switch", "nodes": 2, "gpus_per_node": 6, "bandwidth": "100 GB/s", "inter_node": wire}
    topology = Topology.from_dict(two)
    assert {link.destination for gpu in range(6, 10) for link in topology.route(gpu, 0)[:1]} == {"nic2"}
    assert [topology.route(gpu, 6)[0].destination for gpu in range(6)] == ["nic0"] * 4 + ["nic1"] * 2


def test_the_network_between_the_nodes_of_a_preset_has_what_is_not_said_from_the_preset() -> None:
    """A T4 server has one card for its four GPUs, on TCP; here it is twice as fast."""
    outline = Topology.load("t4-pcie(nodes=2, inter_node={bandwidth: 100 Gb/s})").outline
    assert outline is not None
    assert outline.spec.inter_node == Wire(12.5e9, 1e-6, gpus_per_nic=4, network="sockets")
