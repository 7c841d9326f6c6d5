"""Networks of several dimensions: how many links the notation makes, what ASTRA-sim's file says, what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from triosim.errors import TopologyError
from triosim.networks import Dimension, Topology

FIGURES = "bandwidth=10 GB/s, latency=1 us"


@pytest.mark.parametrize(
    ("name", "gpus", "links"),
    [
        (f"Ring(4, {FIGURES})_Switch(2, {FIGURES})", 8, 2 * (8 + 8)),
        (f"Ring(2, {FIGURES})_FC(3, {FIGURES})", 6, 2 * (3 + 6)),  # two in a ring have one cable
        (f"Ring(4, {FIGURES})_FC(2, {FIGURES})_Switch(8, {FIGURES})", 64, 2 * (64 + 32 + 64)),
        (f"SW(3, {FIGURES})_FullyConnected(1, {FIGURES})", 3, 2 * 3),
        (f"Ring(5, {FIGURES})", 5, 10),
    ],
)
def test_a_name_has_as_many_gpus_and_links_as_its_blocks(name: str, gpus: int, links: int) -> None:
    topology = Topology.load(name)
    assert topology.gpus == tuple(f"gpu{rank}" for rank in range(gpus))
    assert len(topology.links) == links


def test_the_first_dimension_is_the_innermost_and_messages_go_along_it_first() -> None:
    topology = Topology.load(f"Ring(4, {FIGURES})_FC(2, {FIGURES})_Switch(8, {FIGURES})")
    names = [link.name for link in topology.route(0, 63)]  # (0, 0, 0) to (3, 1, 7)
    assert names == ["gpu0->gpu3", "gpu3->gpu7", "gpu7->dim3.switch7", "dim3.switch7->gpu63"]


def test_a_bandwidth_is_that_of_a_gpu_on_the_dimension() -> None:
    """One of all linked to all has 3 links of a third of it; behind a switch, or to the next in a ring, one of all."""
    straight = Topology.load("FC(4, bandwidth=30 GB/s)")
    assert {link.bandwidth for link in straight.links.values()} == {10e9}
    ring = Topology.load("Ring(4, bandwidth=30 GB/s)_Switch(2, bandwidth=20 GB/s)")
    assert {link.bandwidth for link in ring.links.values()} == {30e9, 20e9}


def test_latency_and_bandwidth_between_two_ranks_are_those_of_their_route() -> None:
    """Worked out from the coordinates in the one case, from the links in the other."""
    name = "Ring(5, bandwidth=40 GB/s, latency=1 us)_FC(3, bandwidth=8 GB/s, latency=7 us)_Switch(4, bandwidth=5 GB/s)"
    topology = Topology.load(name)
    rng = random.Random(1)
    for _ in range(200):
        source, destination = rng.randrange(60), rng.randrange(60)
        route = topology.route(source, destination)
        latency, bandwidth = topology.latency_and_bandwidth(source, destination)
        assert latency == pytest.approx(sum(link.latency for link in route), abs=1e-15)
        assert bandwidth == min((link.bandwidth for link in route), default=float("inf"))


def test_a_network_of_astra_sim_is_read_as_it_is(tmp_path: Path) -> None:
    """Its GB is 2^30 bytes, its latencies are ns."""
    path = tmp_path / "network.yml"
    path.write_text(
        "topology: [ Ring, Switch ]  # a comment\nnpus_count: [ 4, 2 ]\n"
        "bandwidth: [ 50.0, 25 ]  # GB/s\nlatency: [ 500.0, 2000 ]  # ns\n"
    )
    topology = Topology.load(path)
    assert topology.dimensions == (
        Dimension("ring", 4, 50 * 2.0**30, 500e-9),
        Dimension("switch", 2, 25 * 2.0**30, 2000e-9),
    )
    assert len(topology.links) == 2 * (8 + 8)


def test_astra_sims_bandwidth_is_that_of_a_link_also_where_all_are_linked(tmp_path: Path) -> None:
    path = tmp_path / "network.yml"
    path.write_text("topology: [FullyConnected]\nnpus_count: [8]\nbandwidth: [50]\nlatency: [500]\n", encoding="utf-8")
    topology = Topology.load(path)
    assert topology.latency_and_bandwidth(0, 5) == (500e-9, 50 * 2.0**30)
    assert topology.dimensions == (Dimension("fully_connected", 8, 7 * 50 * 2.0**30, 500e-9),)


def test_one_figure_stands_for_all_dimensions_and_a_link_may_differ() -> None:
    said = {"topology": "Ring(4)_Switch(2)", "bandwidth": "10 GB/s", "latency": ["1 us", "2 us"]}
    assert [dimension.latency for dimension in Topology.from_dict(said).dimensions] == [1e-6, 2e-6]
    slow = Topology.from_dict({**said, "overrides": [{"from": "gpu0", "to": "gpu1", "bandwidth": "1 GB/s"}]})
    assert slow.links["gpu0->gpu1"].bandwidth == 1e9
    assert not slow.uniform
    assert slow.latency_and_bandwidth(0, 1)[1] == 1e9


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"topology": "Ring(4)_FD(2)", "bandwidth": "1 GB/s"}, "unknown block 'FD'"),
        ({"topology": "Ring(4)_FC(2)", "bandwidth": ["1 GB/s"]}, "bandwidth: 1 values for 2 dimensions"),
        ({"topology": "Ring(four)_FC(2)", "bandwidth": "1 GB/s"}, "'four' is not a number of GPUs"),
        ({"topology": "Ring(0)_FC(2)", "bandwidth": "1 GB/s"}, "'0' is not a number of GPUs"),
        ({"topology": "Ring(4)_FC(2)"}, "'bandwidth' is missing"),
        ({"topology": "Ring(4)_FC(2)", "bandwidth": "-1 GB/s"}, "not a positive number"),
        ({"topology": "Ring(4000)_FC(2000)", "bandwidth": "1 GB/s"}, "8,000,000 GPUs are more than"),
        ({"topology": "Ring(2)_FC(708)", "bandwidth": "1 GB/s"}, "500,556 links of GPUs that are all connected"),
        ({"topology": "Ring(4)_FC(2)", "bandwidth": "1 GB/s", "shape": [4, 2]}, "unknown key"),
        ({"topology": ["Ring"], "npus_count": [4], "bandwidth": ["1 GB/s"], "latency": [1]}, "as ASTRA-sim writes"),
        ({"topology": ["Ring"], "npus_count": [4], "bandwidth": [1]}, "'latency' is missing"),
        ({"topology": ["Ring"], "npus_count": [4, 2], "bandwidth": [1], "latency": [1]}, "2 values for 1 dim"),
        ({"topology": ["Ring"], "npus_count": [4], "bandwidth": [1], "latency": [1, 2]}, "2 values for 1 dim"),
        ({"npus_count": [4], "bandwidth": [1], "latency": [1]}, "topology"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(said: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology.from_dict(said)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Ring(4)_FC(2)", "'bandwidth' is missing; write for example 'Ring"),
        ("Ring(4, bandwith=1 GB/s)_FC(2)", "did you mean 'bandwidth'"),
        ("Ring(4, bandwidth=0)_FC(2, bandwidth=1 GB/s)", "not a positive number"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology.load(name)
    with pytest.raises(TopologyError, match="8 GPUs, 9 are asked"):
        Topology.load(f"Ring(4, {FIGURES})_FC(2, {FIGURES})", gpus=9)
