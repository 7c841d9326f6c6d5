"""What each link carried and when: exact to the byte, and free for those who do not ask."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import simpy
import traces

from triosim.errors import OptionError
from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
from triosim.networks.calibration import stored
from triosim.networks.extensions import LinkCounter
from triosim.results.link_loads import busiest_slot, edges, link_classes, loads
from triosim.results.result import Result
from triosim.simulation import simulate

MB = 1e6
RING = "ring(4, bandwidth=10 GB/s)"


def all_reduced(nbytes: float) -> PacketNetwork:
    network = PacketNetwork(simpy.Environment(), Topology.load(RING), record=True)
    network.env.run(network.collective("all_reduce", range(4), nbytes))
    return network


def test_each_link_of_a_ring_carries_two_times_three_quarters_of_what_is_reduced() -> None:
    network = all_reduced(40 * MB)
    found = loads(network.rates, network.env.now)
    assert len(found) == 4  # one direction of each of four pairs
    for load in found.values():
        assert load.carried(edges(0.006, 3)) == pytest.approx([20 * MB] * 3)  # 60 MB in 6 ms at 10 GB/s
        assert load.busy_s == pytest.approx(0.006)
        assert load.peak == 1.0


def test_a_link_is_busiest_when_it_carries_most() -> None:
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load(RING), record=True)
    network.transfer(0, 1, 10 * MB)  # a quarter of the time from 0 to 4 ms, then all of it from 6 to 8 ms
    env.run(6e-3)
    network.transfer(0, 1, 20 * MB)
    env.run()
    (load,) = loads(network.rates, env.now).values()
    assert busiest_slot(load, env.now, slots=4) == pytest.approx((6e-3, 8e-3))
    assert load.busy_s == pytest.approx(3e-3)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_over_a_link_summed_over_time_are_what_its_flows_carried(seed: int) -> None:
    chance = random.Random(seed)
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load("mesh(3x3, bandwidth=10 GB/s, latency=1 us)"), record=True)
    for _ in range(60):
        env.run(env.now + chance.random() * 1e-4 + 1e-9)
        source, destination = chance.sample(range(9), 2)
        network.transfer(source, destination, chance.random() * MB)
    env.run()
    carried = {
        name: float(load.carried(edges(env.now, 17)).sum()) for name, load in loads(network.rates, env.now).items()
    }
    sent: dict[str, float] = {}
    for flow in network.flows:
        for link in flow.links:
            sent[link] = sent.get(link, 0.0) + flow.nbytes
    assert carried == pytest.approx(sent, rel=1e-9)


def test_calibrated_collectives_take_more_of_a_link_than_their_bytes() -> None:
    """A collective that takes as long as was measured keeps its links for longer, and carries no more.

    The gradients are 1,140 floats: 16 x 32 + 32, 32 x 16 + 16 and 16 x 4 + 4. Of 4,560 bytes a ring of eight sends 2 x 7/8 over
    each link, which at 300 GB/s would be busy for 26.6 ns; it is busy for as long as the bytes were measured to take.
    """
    result = simulate(traces.mlp(), "ddp", gpus=8, topology="dgx-a100", links=True)
    parts = stored.shipped("dgx-a100").parts("all_reduce", 8, 4560)
    assert parts is not None
    loaded = [link for link in result.data.links if link.bytes]
    assert len(loaded) == 16  # of each GPU to the switch and back
    carried = result.link_loads(slots=13).sum()
    for link in loaded:
        assert link.bytes == pytest.approx(7980)
        assert carried[link.name] == pytest.approx(7980)
        assert link.utilisation * result.step_time_s == pytest.approx(26.6e-9)
        assert link.busy_s == pytest.approx(parts.moving, rel=1e-6)
        assert link.peak == pytest.approx(1.0)
    assert parts.moving > 26.6e-9


def test_a_link_that_degrades_is_as_full_with_less() -> None:
    env = simpy.Environment()
    network = PacketNetwork(env, Topology.load(RING), record=True)
    network.transfer(0, 1, 20 * MB)
    env.run(1e-3)
    network.set_bandwidth(0, 1, 5e9)
    env.run()
    (load,) = loads(network.rates, env.now).values()
    assert load.shares[1:] == (1.0, 1.0)
    assert load.rates[1:] == (10e9, 5e9)
    assert env.now == pytest.approx(3e-3)


@pytest.mark.parametrize("network", ["packet", "photonic"])
def test_who_does_not_ask_pays_nothing_and_sees_the_same_step(network: str) -> None:
    asked, plain = (
        simulate(traces.mlp(), "ddp", gpus=4, topology=RING, network=network, links=links) for links in (True, False)
    )
    assert asked.step_time_s == plain.step_time_s
    assert plain.network is not None
    assert not plain.network.rates
    assert not plain.network.flows
    assert all(link.peak is None for link in plain.data.links)
    loaded = [link for link in asked.data.links if link.bytes]
    assert [link.bytes for link in loaded] == [link.bytes for link in plain.data.links if link.bytes]
    assert all(link.peak == pytest.approx(1.0) for link in loaded)
    with pytest.raises(OptionError, match="links=True"):
        plain.link_loads()


def test_every_step_of_several_counts_as_one() -> None:
    once, thrice = (
        simulate(traces.mlp(), "ddp", gpus=4, topology=RING, iterations=n, links=True).data.links[0] for n in (1, 3)
    )
    assert thrice.bytes == pytest.approx(once.bytes)
    assert thrice.busy_s == pytest.approx(once.busy_s)
    assert thrice.utilisation == pytest.approx(once.utilisation)


def test_a_network_without_links_says_so_and_shows_no_zeros() -> None:
    result = simulate(traces.mlp(), "ddp", gpus=4, topology=RING, network="analytical", links=True)
    assert result.data.links == ()
    assert "AnalyticalNetwork simulates no links: the bytes of each link are unknown" in result.notes


def test_a_network_that_counts_bytes_and_no_times_says_so() -> None:
    class Counting(AnalyticalNetwork, LinkCounter):
        def bytes_by_link(self) -> dict[str, float]:
            return {"gpu0->gpu1": 1.0}

    result = simulate(traces.mlp(), "ddp", gpus=4, topology=RING, network=Counting, links=True)
    assert "Counting records the bytes of each link, but not their times" in result.notes
    assert result.data.links[0].bytes == 1.0
    assert result.data.links[0].peak is None
    with pytest.raises(OptionError, match="no link loads"):
        result.plot_links("links.png")


def test_links_that_are_alike_are_one_class() -> None:
    classes = link_classes(Topology.load("dgx-h100", gpus=16))
    sizes = {(kind.source, kind.destination, kind.bandwidth): len(links) for kind, links in classes.items()}
    assert sizes["gpu", "switch", 450e9] == 32  # to NVSwitch and back
    assert sizes["gpu", "switch", 50e9] == 32  # to the fabric and back


@pytest.mark.parametrize("topology", [RING, "dgx-a100", "mesh(5x4, bandwidth=65 GB/s)"])
def test_a_heat_map_is_a_picture(topology: str, tmp_path: Path) -> None:
    gpus = 20 if "mesh" in topology else 4
    simulate(traces.mlp(), "ddp", gpus=gpus, topology=topology, links=True).plot_links(tmp_path / "links.png")
    assert (tmp_path / "links.png").read_bytes().startswith(b"\x89PNG")


def test_where_nothing_is_sent_there_is_no_heat_map(tmp_path: Path) -> None:
    result = simulate(traces.mlp(), "single", gpus=1, topology=RING, links=True)
    with pytest.raises(OptionError, match="nothing was sent"):
        result.plot_links(tmp_path / "links.png")


def test_loads_survive_a_file(tmp_path: Path) -> None:
    result = simulate(traces.mlp(), "ddp", gpus=4, topology=RING, links=True)
    result.save(tmp_path / "result.json")
    again = Result.load(tmp_path / "result.json")
    assert again.data.links == result.data.links
    assert again.data.exposed_communication == result.data.exposed_communication
    assert "busiest at" in str(again)
