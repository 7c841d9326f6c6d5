"""Collectives of a whole world on one link of each class take the time, and carry the bytes, that they do on all links."""

from __future__ import annotations

import pytest
import simpy

from triosim.errors import AsymmetryError
from triosim.folding.dry_run import TransferPattern
from triosim.live.network.world_network import WorldNetwork, world_network
from triosim.networks import PacketNetwork, Topology
from triosim.networks.base import Network
from triosim.networks.extensions import LinkCounter

WORLD = 32
RANKS = tuple(range(WORLD))
GATHER, SCATTER = TransferPattern("all_gather", RANKS), TransferPattern("reduce_scatter", RANKS)
TOPOLOGIES = [f"dgx-h100(gpus={WORLD})", f"ring({WORLD}, bandwidth=50 GB/s)"]


def new_network(topology: str) -> Network:
    return PacketNetwork(simpy.Environment(), Topology.load(topology))


def overlapping(network: Network) -> tuple[list[float], dict[str, float]]:
    """Return when two collectives end of which one begins while the other runs, and the bytes on each link."""
    ends = []

    def run(kind: str, nbytes: float, start: float) -> simpy.events.ProcessGenerator:
        yield network.env.timeout(start)
        yield network.collective(kind, RANKS, nbytes)  # type: ignore[arg-type]
        ends.append(network.env.now)

    network.env.process(run("all_gather", 1e8, 0.0))
    network.env.process(run("reduce_scatter", 3e8, 1e-4))
    network.env.run()
    assert isinstance(network, LinkCounter)
    return ends, network.bytes_by_link()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_overlapping_collectives_end_when_they_do_on_all_links(topology: str) -> None:
    network = world_network(lambda: new_network(topology), WORLD, {GATHER: [1e8], SCATTER: [3e8]})
    assert isinstance(network, WorldNetwork)
    ends, carried = overlapping(network)
    ends_of_all, carried_of_all = overlapping(new_network(topology))
    assert ends == pytest.approx(ends_of_all, rel=1e-12)
    assert carried == pytest.approx(carried_of_all)


def test_a_size_that_was_not_known_shares_the_links_too() -> None:
    network = world_network(lambda: new_network(TOPOLOGIES[0]), WORLD, {GATHER: [1e8]})
    assert overlapping(network)[0] == pytest.approx(overlapping(new_network(TOPOLOGIES[0]))[0], rel=1e-12)


def test_what_only_some_ranks_do_takes_the_time_of_an_idle_network() -> None:
    network = world_network(lambda: new_network(TOPOLOGIES[0]), WORLD, {GATHER: [1e8]})
    for started in (
        lambda one: one.transfer(0, 9, 1e8),
        lambda one: one.collective("all_reduce", (0, 1, 2, 3), 1e8),
        lambda one: one.collective("all_gather", RANKS, 1e8, shares=(5e7, *[0.0] * (WORLD - 2), 5e7)),
    ):
        seconds = []
        for one in (network, new_network(TOPOLOGIES[0])):
            began = one.env.now
            one.env.run(until=started(one))
            seconds.append(one.env.now - began)
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


def test_where_ranks_do_different_things_all_links_are_simulated() -> None:
    line = "mesh(4x8, bandwidth=50 GB/s)"
    assert isinstance(world_network(lambda: new_network(line), WORLD, {GATHER: [1e8]}), PacketNetwork)
    from_one = TransferPattern("broadcast", RANKS, 0)
    assert isinstance(world_network(lambda: new_network(TOPOLOGIES[1]), WORLD, {from_one: [1e8]}), PacketNetwork)


def test_what_only_some_ranks_do_beside_the_world_is_not_simulated_apart_from_it() -> None:
    network = world_network(lambda: new_network(TOPOLOGIES[0]), WORLD, {GATHER: [1e8]})
    network.collective("all_gather", RANKS, 1e8)
    with pytest.raises(AsymmetryError, match="at the same time"):
        network.collective("all_reduce", (0, 1, 2, 3), 1e8)
    network.collective("all_reduce", (0, 1, 2, 3), 8.0)  # such as a flag: it takes its latency
