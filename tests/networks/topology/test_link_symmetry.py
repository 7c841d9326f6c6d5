"""Symmetry classes of links: which links rotations map to each other, and that one flow takes as long as all of its class."""

from __future__ import annotations

import pytest
import simpy

from triosim.errors import AsymmetryError
from triosim.networks.flow.packet import PacketNetwork
from triosim.networks.topology import Topology
from triosim.networks.topology.link_symmetry import LinkClasses, LinkPermutations, Rotation
from triosim.tasks import CollectiveKind

NODES = Rotation(stride=8, size=4)
GPUS = Rotation(stride=1, size=8)


def link_classes(topology: Topology, *rotations: Rotation) -> LinkClasses:
    permutations = LinkPermutations(topology, len(topology.gpus))
    found = {rotation: permutations.of(rotation) for rotation in rotations}
    known = {rotation: links for rotation, links in found.items() if links is not None}
    assert len(known) == len(rotations)
    return LinkClasses(topology, known)


def test_a_rotation_moves_ranks_along_one_axis_and_the_last_to_the_first() -> None:
    assert [NODES.shifted(rank, 1) for rank in (0, 5, 24, 31)] == [8, 13, 0, 7]
    assert list(Rotation(stride=2, size=12).prime_factors()) == [Rotation(2, 2), Rotation(4, 2), Rotation(8, 3)]


def test_a_route_between_two_nodes_is_of_the_class_of_routes_between_others() -> None:
    topology = Topology.load("dgx-a100(gpus=32)")
    one = link_classes(topology, NODES, GPUS)
    assert one.route("gpu0", "gpu8") == one.route("gpu19", "gpu27")
    assert one.route("gpu0", "gpu1") != one.route("gpu0", "gpu8")
    first = topology.route(0, 8)[0].name
    carried = one.expanded({first: 5.0})
    assert sum(carried.values()) == 5.0 * 32


def test_no_rotation_maps_a_link_to_one_of_another_speed() -> None:
    slow = {
        **{"topology": "switch", "gpus": 4, "bandwidth": "5 GB/s", "latency": "1 us"},
        "overrides": [{"from": "gpu1", "to": "switch0", "bandwidth": "1 GB/s"}],
    }
    assert LinkPermutations(Topology.from_dict(slow), 4).of(Rotation(1, 4)) is None
    assert (
        LinkPermutations(Topology.load("switch(4, bandwidth=5 GB/s, latency=1 us)"), 4).of(Rotation(1, 4)) is not None
    )
    assert LinkPermutations(Topology.load("mesh(4x1, bandwidth=5 GB/s, latency=1 us)"), 4).of(Rotation(1, 4)) is None


def test_a_link_with_several_flows_of_one_class_is_refused() -> None:
    """On a ring, what goes two links far crosses each link twice, for two ranks; half around there are two ways."""
    topology = Topology.load("ring(6, bandwidth=5 GB/s, latency=1 us)")
    ring = link_classes(topology, Rotation(1, 6))
    assert len(ring.route("gpu0", "gpu1")) == 1
    with pytest.raises(AsymmetryError, match="crosses two links"):
        ring.route("gpu0", "gpu2")
    with pytest.raises(AsymmetryError):
        link_classes(topology, Rotation(3, 2)).route("gpu0", "gpu3")


@pytest.mark.parametrize("system", ["ring(8, bandwidth=25 GB/s, latency=1 us)", "dgx-a100(gpus=8, calibration=none)"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_one_flow_takes_as_long_as_all_of_its_class(system: str, kind: CollectiveKind) -> None:
    topology = Topology.load(system)

    def ran(folded: bool) -> tuple[float, dict[str, float]]:
        network = PacketNetwork(simpy.Environment(), topology)
        one = link_classes(topology, Rotation(1, 8))
        if folded:
            network.use_link_classes(one)
        event = network.collective(kind, range(8), 1e8)
        network.env.run(until=event)
        carried = network.bytes_by_link()
        return network.env.now, one.expanded(carried) if folded else carried

    seconds, carried = ran(False)
    try:
        folded_seconds, folded_carried = ran(True)
    except AsymmetryError:
        assert system.startswith("ring")
        assert kind == "all_to_all"  # which crosses links of others
        return
    assert folded_seconds == pytest.approx(seconds, rel=1e-12)
    assert folded_carried == pytest.approx(carried, rel=1e-9)


def test_a_chain_is_not_the_same_seen_from_every_rank() -> None:
    network = PacketNetwork(simpy.Environment(), Topology.load("switch(8, bandwidth=25 GB/s, latency=1 us)"))
    network.use_link_classes(link_classes(network.topology, Rotation(1, 8)))
    with pytest.raises(AsymmetryError, match=r"some of ranks .* send more than others"):
        network.collective("broadcast", range(8), 1e6)
