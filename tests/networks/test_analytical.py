"""The analytical network: published figures of ASTRA-sim, formulas by hand, and that nothing slows anything else down."""

from __future__ import annotations

from pathlib import Path

import pytest
import simpy

from triosim.errors import TriosimError
from triosim.networks import AnalyticalNetwork, Topology
from triosim.tasks import Communicator

#: ASTRA-sim 2.0, Table IV: 1 GiB all-reduce on Ring_FC_Ring_Switch, 1000, 200, 100 and 50 GB/s; microseconds.
TABLE_IV: dict[tuple[int, ...], float] = {
    (2, 8, 8, 4): 4392.85,
    (2, 8, 8, 32): 4392.85,
    (4, 8, 8, 4): 2212.60,
    (8, 8, 8, 4): 1753.48,
    (16, 8, 8, 4): 1879.17,
}


@pytest.mark.parametrize("shape", TABLE_IV)
def test_table_iv_of_astra_sim(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "network.yml"
    path.write_text(
        f"topology: [ Ring, FullyConnected, Ring, Switch ]\nnpus_count: {list(shape)}\n"
        f"bandwidth: [ 1000.0, {200 / (shape[1] - 1)}, 100.0, 50.0 ]\nlatency: [ 0, 0, 0, 0 ]\n"
    )
    topology = Topology.load(path)
    env = simpy.Environment()
    env.run(AnalyticalNetwork(env, topology).collective("all_reduce", range(len(topology.gpus)), 2**30))
    assert env.now * 1e6 == pytest.approx(TABLE_IV[shape], rel=1.5e-2)


def seconds(topology: Topology, kind: str, group: object, nbytes: float, **keys: object) -> float:
    return AnalyticalNetwork(simpy.Environment(), topology).seconds(kind, group, nbytes, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dgx-h100(4096)", "torus(64x64, bandwidth=1 GB/s)", "switch(4096, bandwidth=1 GB/s)"])
def test_a_closed_form_makes_no_link(name: str) -> None:
    topology = Topology.load(name)
    network = AnalyticalNetwork(simpy.Environment(), topology)
    assert network.seconds("all_reduce", range(4096), 1e6) > 0
    assert "links" not in vars(topology)
    assert len(topology.links) >= 2 * 4096  # now that somebody looks
    assert topology.node(4095) == "gpu4095"
    with pytest.raises(AttributeError):
        topology.nothing  # noqa: B018


def test_65536_gpus_by_hand() -> None:
    """Of 1 GB, dimension i moves 2 15/16 1/16^(i-1): 18.75, 2.34, 0.29 and 0.15 ms; the first is the slowest.

    Latencies: there and back 15 hops of a ring, one, 15, and 4 rounds of two links.
    """
    topology = Topology.load(
        "Ring(16, bandwidth=100 GB/s, latency=1 us)_FC(16, bandwidth=50 GB/s, latency=1 us)_"
        "Ring(16, bandwidth=25 GB/s, latency=1 us)_Switch(16, bandwidth=3.125 GB/s, latency=1 us)"
    )
    everybody = range(65_536)
    expected = 2 * 15 / 16 * 1e9 / 100e9 + 2 * (15 + 1 + 15 + 8) * 1e-6
    assert seconds(topology, "all_reduce", everybody, 1e9) == pytest.approx(expected, rel=1e-9)
    # Without the first dimension, what fills the pipeline before the slowest: none, as the second is that now.
    inner = range(0, 65_536, 16)
    expected = 2 * 15 / 16 * 1e9 / 50e9 + 2 * (1 + 15 + 8) * 1e-6
    assert seconds(topology, "all_reduce", inner, 1e9) == pytest.approx(expected, rel=1e-9)


def test_a_transfer_takes_latency_and_its_slowest_link() -> None:
    topology = Topology.load("Ring(4, bandwidth=10 GB/s, latency=1 us)_Switch(2, bandwidth=1 GB/s, latency=5 us)")
    env = simpy.Environment()
    network = AnalyticalNetwork(env, topology)
    env.run(network.transfer(0, 6, 1e6))  # two hops of the ring, two links of the switch
    assert env.now == pytest.approx(12e-6 + 1e6 / 1e9, rel=1e-12)
    env.run(simpy.AllOf(env, [network.transfer(0, 6, 1e6) for _ in range(5)]))
    assert env.now == pytest.approx(2 * (12e-6 + 1e6 / 1e9), rel=1e-12)
    env.run(network.transfer("gpu3", "gpu3", 1e6))
    assert env.now == pytest.approx(2 * (12e-6 + 1e6 / 1e9), rel=1e-12)


def test_collectives_do_not_slow_each_other_down() -> None:
    topology = Topology.load("ring(4, bandwidth=10 GB/s, latency=2 us)")
    env = simpy.Environment()
    network = AnalyticalNetwork(env, topology)
    both = [network.collective("all_reduce", Communicator((0, 1, 2, 3), name), 40e6) for name in ("a", "b")]
    env.run(simpy.AllOf(env, both))
    assert env.now == pytest.approx(6 * (1e-3 + 2e-6), rel=1e-9)


def test_a_group_takes_as_long_wherever_it_is() -> None:
    """On links that are all alike; a slow link on one group's way is noticed."""
    alike = Topology.load("dgx-a100(gpus=32)")
    times = {seconds(alike, "all_reduce", range(first, first + 8), 1e8) for first in (0, 8, 16, 24)}
    assert len(times) == 1
    assert seconds(alike, "broadcast", range(8, 16), 1e8, root=11) == pytest.approx(
        seconds(alike, "broadcast", range(8), 1e8, root=3), rel=1e-12
    )
    slow = Topology.load("dgx-a100(gpus=32, overrides=[{from: gpu9, to: node1.switch0, bandwidth: 1 GB/s}])")
    assert seconds(slow, "all_reduce", range(8, 16), 1e8) > 10 * seconds(slow, "all_reduce", range(8), 1e8)


def test_a_group_may_be_a_range_a_list_a_tuple_or_a_communicator() -> None:
    topology = Topology.load("ring(6, bandwidth=10 GB/s, latency=2 us)")
    network = AnalyticalNetwork(simpy.Environment(), topology)
    ranks = (0, 1, 2, 3, 4, 5)
    found = {network.seconds("all_gather", group, 6e6) for group in (range(6), list(ranks), ranks, Communicator(ranks))}
    assert len(found) == 1
    assert found.pop() == pytest.approx(5 * (1e-4 + 2e-6), rel=1e-9)
    assert network.seconds("all_gather", [3], 6e6) == 0
    assert network.seconds("all_gather", ranks[:2], 4e6, shares=[3e6, 1e6]) == pytest.approx(3e6 / 10e9 + 2e-6)


@pytest.mark.parametrize("group", [range(2, 9), [0, 0], [], [7]])
def test_what_cannot_be_is_refused(group: object) -> None:
    topology = Topology.load("ring(6, bandwidth=10 GB/s)")
    with pytest.raises(TriosimError):
        seconds(topology, "all_reduce", group, 1.0)
    with pytest.raises(TriosimError, match="number of bytes"):
        seconds(topology, "all_reduce", range(6), -1.0)


def test_a_list_that_changes_is_another_group() -> None:
    topology = Topology.load("ring(8, bandwidth=10 GB/s, latency=2 us)")
    network = AnalyticalNetwork(simpy.Environment(), topology)
    group = [0, 1]
    assert network.seconds("all_gather", group, 6e6) == pytest.approx(3e6 / 10e9 + 2e-6)
    group += [2, 3, 4, 5, 6, 7]
    assert network.seconds("all_gather", group, 8e6) == pytest.approx(7 * (1e6 / 10e9 + 2e-6))
