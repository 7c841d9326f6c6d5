"""Memory pools: the closed forms of ASTRA-sim 2.0, section IV-D, worked out by hand, and the same accesses as flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import simpy

from triosim.engine import Engine
from triosim.errors import TopologyError
from triosim.networks import AnalyticalNetwork, PacketNetwork
from triosim.networks.topology import Topology
from triosim.networks.topology.pool import Pool, SharedPool, pipeline_seconds
from triosim.tasks import AllGather, Communicator, Copy, TaskStream

GB, MB, US = 1e9, 1e6, 1e-6

#: The system of the paper's figures 6 and 8: 16 nodes of 16 GPUs, four switches between nodes, eight memory groups.
PAPER = Pool(8, 4, 1e12, bandwidth=100 * GB, node_bandwidth=50 * GB, group_bandwidth=25 * GB, chunk=1 * MB)
W = 10 * MB


def shared(**changed: Any) -> SharedPool:
    return SharedPool(replace(PAPER, **changed), nodes=16, gpus=256)


# ---- closed forms -----------------------------------------------------------------------------------------------


def test_links_carry_8w_4w_and_w_and_the_slowest_hop_paces_all_80_chunks() -> None:
    """A chunk takes 40 us from a group, 8 / (16 x 50) ms = 10 us to a node, 32 / (256 x 100) ms = 1.25 us to a GPU."""
    assert shared().access_seconds(W) == pytest.approx(80 * 40 * US + 10 * US + 1.25 * US)
    assert shared(node_bandwidth=10 * GB).access_seconds(W) == pytest.approx(40 * US + 80 * 50 * US + 1.25 * US)
    # The GPUs' links take 125 us; until the first chunk is there, two stages last as long as the groups' links.
    assert shared(bandwidth=1 * GB).access_seconds(W) == pytest.approx(2 * 40 * US + 80 * 125 * US)


def test_switches_that_gather_bring_256w_to_every_gpu_and_64w_to_each_node() -> None:
    """The chunks are the same 80; a switch sends 8 of them to every node (160 us), a node's 32 to every GPU (320 us)."""
    seconds = shared().gather_seconds(256 * W, ranks=256, nodes=16)
    assert seconds == pytest.approx((40 + 160 + 80 * 320) * US)
    slow = shared(node_bandwidth=10 * GB).gather_seconds(256 * W, ranks=256, nodes=16)
    assert slow == pytest.approx((40 + 80 * 800 + 320) * US)


def test_groups_of_a_node_each_load_their_own_tensor() -> None:
    """16 groups of 16 GPUs load 16W each: as many bytes from the memory as 256W, and 1/16 of them over a node's links.

    Chunks take 40, 10 and 20 us; the last one's two stages behind the memory last as long as the GPUs' links are busy.
    """
    seconds = shared().gather_seconds(16 * W, ranks=16, nodes=1)
    assert seconds == pytest.approx((80 * 40 + 20 + 20) * US)


def test_a_group_whose_memory_is_slower_than_its_links_paces_them() -> None:
    assert shared(memory_bandwidth=50 * GB).access_seconds(W) == pytest.approx(80 * 80 * US + 10 * US + 1.25 * US)


@pytest.mark.parametrize(
    ("chunks", "seconds"), [(1, 4 + 1 + 2), (2, 4 + 4 + 2 + 2), (3, 4 + 4 + 4 + 2 + 2), (5, 5 * 4 + 2 + 2)]
)
def test_a_stage_lasts_as_long_as_the_slowest_hop_that_is_busy_in_it(chunks: int, seconds: float) -> None:
    assert pipeline_seconds((4, 1, 2), chunks) == seconds


# ---- flows ------------------------------------------------------------------------------------------------------

POOL: Mapping[str, Any] = {
    "groups": 4,
    "switches": 2,
    "capacity": "1 TB",
    "bandwidth": "20 GB/s",
    "node_bandwidth": "15 GB/s",
    "group_bandwidth": "10 GB/s",
    "latency": "1 us",
}
NODES: Mapping[str, Any] = {
    "topology": "switch",
    "nodes": 2,
    "gpus_per_node": 4,
    "bandwidth": "300 GB/s",
    "inter_node": {"bandwidth": "50 GB/s"},
    "host": {"bandwidth": "25 GB/s", "latency": "5 us"},
    "host_memory": {"capacity": "1 TB", "bandwidth": "100 GB/s"},
}


def pooled(**changed: Any) -> Topology:
    return Topology.from_dict({**NODES, "pool": {**POOL, **changed}})


def seconds(
    topology: Topology, copies: Mapping[int, Sequence[tuple[str, str]]], network: Callable[..., Any] = PacketNetwork
) -> float:
    """When copies of 1 GB of some ranks are over, each of which has a stream of its own."""

    def tasks(rank: int) -> TaskStream:
        for number, (source, destination) in enumerate(copies[rank]):
            yield Copy(source, destination, GB, stream=f"copy {number}")

    env = simpy.Environment()
    return Engine(env, network(env, topology)).run({rank: tasks(rank) for rank in copies}).end


LOAD, STORE = ("pool", "device"), ("device", "pool")


def test_gpus_share_the_links_to_their_node_and_those_of_the_memory() -> None:
    late = 3 * US
    assert seconds(pooled(), {0: [LOAD]}) == pytest.approx(1 / 20 + late)
    assert seconds(pooled(), {0: [LOAD], 1: [LOAD]}) == pytest.approx(2 / 30 + late)  # two links of 15 GB/s
    assert seconds(pooled(), {0: [LOAD], 4: [LOAD]}) == pytest.approx(1 / 20 + late)  # in two nodes
    assert seconds(pooled(), {rank: [LOAD] for rank in range(8)}) == pytest.approx(4 / 30 + late)
    slow = pooled(group_bandwidth="5 GB/s")  # eight links of 5 GB/s
    assert seconds(slow, {rank: [LOAD] for rank in range(8)}) == pytest.approx(8 / 40 + late)


def test_the_memory_of_a_group_is_read_and_written_at_its_own_bandwidth() -> None:
    slow = pooled(memory_bandwidth="5 GB/s")  # 20 GB/s of four
    assert seconds(slow, {0: [LOAD], 4: [STORE]}) == pytest.approx(2 / 20 + 3 * US)


def test_only_as_many_access_a_pool_at_once_as_it_allows() -> None:
    one = pooled(simultaneous=1)
    assert seconds(one, {0: [LOAD], 4: [LOAD]}) == pytest.approx(2 * (1 / 20 + 3 * US))


def test_closed_forms_are_the_flows_of_all_gpus_and_the_first_chunk() -> None:
    """A chunk takes 0.1 ms from a group, 4/(2 x 15) of that on a node's link, 8/(8 x 20) on a GPU's: the second paces all."""
    everyone = {rank: [LOAD] for rank in range(8)}
    topology = pooled(chunk="1 MB")
    exact, closed = (seconds(topology, everyone, network) for network in (PacketNetwork, AnalyticalNetwork))
    assert closed - exact == pytest.approx(1 / 10e3 + 1 / 20e3)
    # They assume that all access the pool, whoever does.
    assert seconds(topology, {0: [LOAD]}, AnalyticalNetwork) == closed


def test_striping_over_links_that_carry_the_same_is_one_link() -> None:
    """Two groups, two switches and two GPUs, each link by itself; every GPU loads a quarter over each of the four ways."""
    ways = [(group, switch) for group in range(2) for switch in range(2)]
    nodes: list[Any] = ["gpu0", "gpu1"]
    nodes += [{"name": f"m{group}{switch}", "kind": "memory"} for group, switch in ways]
    nodes += [{"name": f"s{switch}", "kind": "port"} for switch in range(2)]
    links = [{"from": f"m{group}{switch}", "to": f"s{switch}", "bandwidth": "4 GB/s"} for group, switch in ways]
    links += [
        {"from": f"s{switch}", "to": f"p{node}", "bandwidth": "9 GB/s"} for switch in range(2) for node in range(2)
    ]
    links += [{"from": f"p{node}", "to": f"gpu{node}", "bandwidth": "20 GB/s"} for node in range(2)]
    links += [{"from": "gpu0", "to": "gpu1", "bandwidth": "1 GB/s"}]
    nodes += [{"name": f"p{node}", "kind": "port"} for node in range(2)]
    apart = Topology.from_dict({"nodes": nodes, "links": links})
    env = simpy.Environment()
    network = PacketNetwork(env, apart)
    sent = [network.transfer(f"m{group}{switch}", gpu, GB / 4) for group, switch in ways for gpu in range(2)]
    env.run(simpy.AllOf(env, sent))
    pool = {"groups": 2, "switches": 2, "group_bandwidth": "4 GB/s", "node_bandwidth": "9 GB/s", "latency": "0 s"}
    together = Topology.from_dict({**NODES, "gpus_per_node": 1, "pool": {**POOL, **pool}})
    assert seconds(together, {0: [LOAD], 1: [LOAD]}) == pytest.approx(env.now)


def test_a_host_stores_what_it_updated_over_a_link_of_its_own() -> None:
    topology = pooled()
    assert [link.name for link in topology.route("host1", "pool0")][:2] == [
        "host1->pool_port1",
        "pool_port1->pool_switches",
    ]
    assert [link.name for link in topology.route(0, "host0")] == ["gpu0->host0", "host0 memory"]  # not the quicker way
    assert seconds(topology, {0: [("host", "pool")]}) == pytest.approx(1 / 30 + 3 * US)
    assert [link.name for link in topology.route(0, 5)] == ["gpu0->fabric", "fabric->gpu5"]


@pytest.mark.parametrize("network", [PacketNetwork, AnalyticalNetwork])
def test_a_gathered_tensor_crosses_each_link_once(network: Callable[..., Any]) -> None:
    """Every GPU receives all of it over its own 20 GB/s; the others' links carry it once for each node."""
    topology = pooled(gathers=True, chunk="1 MB")
    everyone = Communicator(tuple(range(8)), "fsdp")

    def tasks() -> TaskStream:
        yield AllGather(GB, everyone, memory="pool")

    env = simpy.Environment()
    made = network(env, topology)
    end = Engine(env, made).run({rank: tasks() for rank in range(8)}).end
    first = (
        0.0 if network is PacketNetwork else 1 / 10e3 + 4 / 15e3
    )  # a chunk of each of four groups reaches a node's link
    assert end == pytest.approx(1 / 20 + 3 * US + first)
    if network is PacketNetwork:
        carried = made.bytes_by_link()
        assert {name: carried[name] for name in ("pool0->pool_switches", "pool_switches->pool_port1")} == {
            "pool0->pool_switches": GB,
            "pool_switches->pool_port1": GB,
        }


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_pool_is_one_memory_of_all_groups_for_all_nodes() -> None:
    topology = Topology.load("dgx-h100(gpus=16, pool={groups: 8, switches: 2, capacity: 2 TB, bandwidth: 100 GB/s, "
                             "node_bandwidth: 200 GB/s, group_bandwidth: 50 GB/s})")  # fmt: skip
    assert {topology.memory_of(rank, "pool") for rank in range(16)} == {"pool0"}
    assert topology.memories["pool0"].capacity == 16e12
    assert topology.memory_of(9, "nvme") == "nvme2"  # a host is a socket
    assert topology.mapping is not None
    assert Topology.from_dict(topology.mapping).memories == topology.memories


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"groups": 0}, "pool.groups: 0 is not a whole number from 1"),
        ({"capacity": "0 B"}, "pool.capacity: '0 B' is not a positive number of bytes"),
        ({"group_bandwith": "10 GB/s"}, "pool.group_bandwith: unknown key; did you mean 'group_bandwidth'?"),
        ({"latency": "-1 us"}, "pool.latency: "),
    ],
)
def test_what_is_wrong_with_a_pool_is_one_line(said: dict[str, Any], error: str) -> None:
    with pytest.raises(TopologyError) as found:
        pooled(**said)
    assert error in str(found.value)
    assert "\n" not in str(found.value)


def test_a_pool_needs_all_of_its_figures() -> None:
    with pytest.raises(TopologyError, match=r"'group_bandwidth' is missing|pool\.group_bandwidth"):
        Topology.from_dict({**NODES, "pool": {key: POOL[key] for key in POOL if key != "group_bandwidth"}})
