"""Memories outside of GPUs: how GPUs reach them, what their accesses share, and what a file may say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import simpy

from triosim.engine import Engine
from triosim.errors import TopologyError
from triosim.networks.flow.packet import PacketNetwork
from triosim.networks.topology import Topology
from triosim.tasks import Copy, TaskStream

NODE: Mapping[str, Any] = {
    "topology": "switch",
    "gpus": 4,
    "bandwidth": "300 GB/s",
    "host": {"bandwidth": "20 GB/s", "gpus_per_link": 2},
    "host_memory": {"capacity": "1 TB", "bandwidth": "100 GB/s"},
    "nvme": {"capacity": "4 TB", "read": "10 GB/s", "write": "5 GB/s", "latency": "100 us"},
}


def seconds(copies: Mapping[int, list[tuple[str, str, float]]], **changed: Any) -> float:
    """Return when the copies of some ranks are over, each of which has a stream of its own; sizes in GB."""

    def tasks(rank: int) -> TaskStream:
        for number, (source, destination, size) in enumerate(copies[rank]):
            yield Copy(source, destination, size * 1e9, stream=f"copy {number}")

    env = simpy.Environment()
    network = PacketNetwork(env, Topology.from_dict({**NODE, **changed}))
    return Engine(env, network).run({rank: tasks(rank) for rank in copies}).end


def test_gpus_that_share_a_link_to_their_host_share_its_bandwidth() -> None:
    down = [("host", "device", 1.0)]
    assert seconds({0: down}) == pytest.approx(1 / 20)
    assert seconds({0: down, 1: down}) == pytest.approx(2 / 20)
    assert seconds({0: down, 2: down}) == pytest.approx(1 / 20)  # behind another port
    assert seconds({0: down, 1: [("device", "host", 1.0)]}) == pytest.approx(1 / 20)  # the other direction


def test_reads_and_writes_share_the_bandwidth_of_host_memory() -> None:
    both = [("host", "device", 1.0), ("device", "host", 1.0)]
    slow = {"host_memory": {"capacity": "1 TB", "bandwidth": "20 GB/s"}}
    assert seconds({0: both, 2: both}) == pytest.approx(1 / 20)
    assert seconds({0: both, 2: both}, **slow) == pytest.approx(4 / 20)
    # What a CPU reads and writes is on no link but that of the memory itself.
    assert seconds({0: [("host", "host", 1.0)], 1: [("host", "host", 1.0)]}) == pytest.approx(2 / 100)


def test_drives_are_read_and_written_at_two_bandwidths_through_host_memory() -> None:
    assert seconds({0: [("nvme", "host", 1.0)]}) == pytest.approx(1 / 10 + 100e-6)
    assert seconds({0: [("host", "nvme", 1.0)]}) == pytest.approx(1 / 5 + 100e-6)
    slow = {"host_memory": {"capacity": "1 TB", "bandwidth": "12 GB/s"}}
    # A write at 5 GB/s leaves reads 7 of the memory's 12, and both end when the write does, or before.
    assert seconds({0: [("nvme", "host", 1.4), ("host", "nvme", 1.0)]}, **slow) == pytest.approx(100e-6 + 1 / 5)


def test_no_more_than_a_memory_allows_access_it_at_once() -> None:
    one = {"capacity": "1 TB", "bandwidth": "100 GB/s", "simultaneous": 1}
    down = [("host", "device", 1.0)]
    assert seconds({0: down, 2: down}, host_memory=one) == pytest.approx(2 / 20)
    assert seconds({0: down, 2: down}, host_memory={**one, "simultaneous": 2}) == pytest.approx(1 / 20)


def test_a_node_may_have_more_memory_than_its_hosts() -> None:
    more = {"bandwidth": "50 GB/s", "latency": "1 us", "capacity": "2 TB", "memory_bandwidth": "75 GB/s"}
    store = [("device", "expansion", 1.0)]
    assert seconds({0: store}, expansion=more) == pytest.approx(1 / 50 + 1e-6)
    assert seconds({0: store, 1: store}, expansion=more) == pytest.approx(2 / 75 + 1e-6)


def test_messages_between_gpus_never_take_the_way_over_a_hosts_port() -> None:
    far = Topology.from_dict({**NODE, "topology": "ring", "gpus": 8, "latency": "10 us"})  # the port would be quicker
    assert [link.destination for link in far.route(0, 1)] == ["gpu1"]
    assert far.memory_of(5, "host") == "host0"
    assert [link.name for link in far.route(5, "host0")] == ["gpu5->pcie2", "pcie2->host0", "host0 memory"]


def test_each_node_and_each_superchip_has_its_own_host() -> None:
    topology = Topology.load("gb200-nvl4", gpus=8)
    assert [topology.memory_of(gpu, "host") for gpu in range(8)] == [f"host{gpu // 2}" for gpu in range(8)]
    nodes = Topology.load("dgx-a100", gpus=16)
    assert [nodes.memory_of(gpu, "nvme") for gpu in (0, 3, 4, 8)] == ["nvme0", "nvme0", "nvme1", "nvme2"]
    assert nodes.memory_of(0, "expansion") is None
    assert nodes.memories["host0"].capacity == 1e12


@pytest.mark.parametrize("preset", ["dgx-a100", "dgx-h100", "gb200-nvl72", "workstation"])
def test_presets_of_servers_and_a_workstation_know_a_hosts_memory_its_drives_and_the_link_to_it(preset: str) -> None:
    topology = Topology.load(preset)
    host, drives = topology.memory_of(0, "host"), topology.memory_of(0, "nvme")
    assert host is not None
    assert drives is not None
    assert all(0 < topology.memories[one].capacity < math.inf for one in (host, drives))
    assert topology.memories[host].port is not None
    assert 0 < topology.latency_and_bandwidth(0, host)[1] < math.inf
    assert topology.latency_and_bandwidth(drives, host) != topology.latency_and_bandwidth(host, drives)


def test_a_file_of_nodes_and_links_says_what_memories_they_are() -> None:
    dram = {"name": "dram", "kind": "memory", "capacity": "1 TB", "bandwidth": "5 GB/s"}
    far = {"name": "far", "kind": "memory", "tier": "pool", "simultaneous": 3}
    links = [{"from": "gpu0", "to": name, "bandwidth": "10 GB/s"} for name in ("dram", "far")]
    topology = Topology.from_dict({"nodes": ["gpu0", dram, far], "links": links})
    assert (topology.memory_of(0, "host"), topology.memory_of(0, "pool")) == ("dram", "far")
    assert topology.latency_and_bandwidth("dram", 0) == (0.0, 5e9)
    assert topology.mapping is not None
    again = Topology.from_dict(topology.mapping)
    assert (again.memories, set(again.links)) == (topology.memories, set(topology.links))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"host_memory": {"capacity": "0 B", "bandwidth": "1 GB/s"}}, "host_memory.capacity: '0 B' is not a positive"),
        ({"host_memory": {"capacity": "1 TB"}}, "'bandwidth' is missing"),
        ({"nvme": {"capacity": "1 TB", "raed": "1 GB/s"}}, "nvme.raed: unknown key; did you mean 'read'?"),
        ({"host": None, "nvme": NODE["nvme"]}, "'host_memory' needs 'host'"),
        ({"nodes": ["gpu0", {"name": "gpu1", "capacity": "1 TB"}], "links": []}, "gpu1 is a gpu, no memory"),
    ],
)
def test_what_a_file_says_wrong_of_memories_is_said_in_one_line(said: dict[str, Any], error: str) -> None:
    mapping = said if "nodes" in said else {**NODE, **said}
    with pytest.raises(TopologyError) as found:
        Topology.from_dict({key: value for key, value in mapping.items() if value is not None})
    assert error in str(found.value)
    assert "\n" not in str(found.value)
