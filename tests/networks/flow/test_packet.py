"""The packet network: hand-computed transfers, SimGrid's answers, and what must hold for any traffic."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import OptionError, SimulationError, TopologyError
from triosim.networks import PacketNetwork, Topology
from triosim.networks.flow import sharing

Flow = tuple[float, str, str, float]  # start, source, destination, bytes


def over(links: dict[str, tuple[float, float]], routes: Iterable[Iterable[str]]) -> Topology:
    """Return links with (bandwidth, latency), and for the i-th route a node s{i} and a node d{i}."""
    return Topology.from_dict(
        {
            "links": {name: {"bandwidth": bandwidth, "latency": late} for name, (bandwidth, late) in links.items()},
            "routes": [{"from": f"s{i}", "to": f"d{i}", "links": list(route)} for i, route in enumerate(routes)],
        }
    )


def deliver(network: PacketNetwork, flows: Iterable[Flow]) -> list[float]:
    """Send each flow at its time and return when each was delivered."""
    env = network.env
    ends: dict[int, float] = {}

    def send(number: int, start: float, source: str, destination: str, nbytes: float) -> simpy.events.ProcessGenerator:
        yield env.timeout(start)
        yield network.transfer(source, destination, nbytes)
        ends[number] = env.now

    for number, flow in enumerate(flows):
        env.process(send(number, *flow))
    env.run()
    return [ends[number] for number in range(len(ends))]


def network_of(topology: Topology, **options: object) -> PacketNetwork:
    return PacketNetwork(simpy.Environment(), topology, **options)  # type: ignore[arg-type]


def test_a_transfer_takes_the_latency_of_its_route_and_its_bytes_at_the_narrowest_link() -> None:
    topology = over({"a": (10.0, 1.0), "b": (5.0, 2.0)}, [["a", "b"]])
    assert deliver(network_of(topology), [(0, "s0", "d0", 100.0)]) == [3.0 + 20.0]


def test_two_flows_share_a_link_while_both_are_there() -> None:
    """Alone for 2 s (20 bytes), by halves until the second's 30 are there (6 s), then alone again with 50 to go."""
    topology = over({"a": (10.0, 0.0)}, [["a"], ["a"]])
    assert deliver(network_of(topology), [(0, "s0", "d0", 100.0), (2, "s1", "d1", 30.0)]) == [13.0, 8.0]


def test_a_flow_begins_to_share_when_its_latency_is_over() -> None:
    topology = over({"a": (10.0, 0.0), "late": (100.0, 5.0)}, [["a"], ["late", "a"]])
    assert deliver(network_of(topology), [(0, "s0", "d0", 60.0), (0, "s1", "d1", 60.0)]) == [7.0, 12.0]


def test_no_bytes_take_the_latency_alone_even_on_a_busy_link() -> None:
    topology = over({"a": (10.0, 2.0)}, [["a"], ["a"]])
    assert deliver(network_of(topology), [(0, "s0", "d0", 60.0), (1, "s1", "d1", 0.0)]) == [8.0, 3.0]


def test_a_transfer_to_the_same_node_takes_no_time() -> None:
    network = network_of(Topology.from_dict({"topology": "ring", "gpus": 4, "bandwidth": 1e9, "latency": 1.0}))
    event = network.transfer(2, "gpu2", 1e9)
    assert not event.processed  # it goes through the queue, as any event
    network.env.run()
    assert event.processed
    assert network.env.now == 0


@pytest.mark.parametrize("nbytes", [-1.0, math.nan, math.inf])
def test_what_is_no_number_of_bytes_is_refused(nbytes: float) -> None:
    with pytest.raises(SimulationError, match="number of bytes"):
        network_of(over({"a": (1.0, 0.0)}, [["a"]])).transfer("s0", "d0", nbytes)


def test_unknown_nodes_and_options_are_refused() -> None:
    topology = Topology.from_dict({"topology": "ring", "gpus": 4, "bandwidth": 1e9})
    with pytest.raises(TopologyError, match="gpuu1"):
        network_of(topology).transfer(0, "gpuu1", 1.0)
    with pytest.raises(TopologyError, match="7"):
        network_of(topology).transfer(7, 0, 1.0)
    with pytest.raises(OptionError, match="steps"):
        network_of(topology, form="stepss")
    with pytest.raises(OptionError, match="numba"):
        network_of(topology, kernel="nuumba")


KERNELS = ["python", pytest.param("numba", marks=pytest.mark.skipif(not sharing.can_compile(), reason="no numba"))]


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_simgrid_says_the_same_in_all_thirty_cases(data_dir: Path, kernel_name: str) -> None:
    with gzip.open(data_dir / "network" / "max_min_flows.jsonl.gz", "rt") as file:
        cases = [json.loads(line) for line in file]
    assert len(cases) == 30
    for case in cases:
        links = {name: (bandwidth, 0.0) for name, bandwidth in case["links"].items()}
        network = network_of(over(links, [flow["route"] for flow in case["flows"]]), kernel=kernel_name)
        flows = [(flow["start"], f"s{i}", f"d{i}", flow["bytes"]) for i, flow in enumerate(case["flows"])]
        assert deliver(network, flows) == pytest.approx([flow["finish"] for flow in case["flows"]], rel=1e-9, abs=0)


@pytest.mark.skipif(not sharing.can_compile(), reason="numba is not installed")
def test_changing_over_to_the_compiled_kernel_on_the_way_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {f"l{i}": (1e9 + i * 1e8, 1e-6 * i) for i in range(12)}
    topology = over(links, [[f"l{i % 12}", f"l{(i * 5 + 1) % 12}"] for i in range(60)])
    flows = [(i * 1e-3, f"s{i}", f"d{i}", 3e6 + i * 1e5) for i in range(60)]
    plain = deliver(network_of(topology, kernel="python"), flows)
    monkeypatch.setattr(sharing, "COMPILING_REPAYS", 300)
    changing = network_of(topology)
    assert deliver(changing, flows) == plain
    assert changing._sharing._compiled is not None


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Topology, list[Flow]]:
    """Links and flows whose sizes and starts often coincide, as those of a collective do."""
    bandwidths = st.sampled_from([1e9, 2e9, 1e10]) | st.floats(1e8, 1e11)
    latencies = st.sampled_from([0.0, 1e-6, 5e-4])
    links = {f"l{i}": (draw(bandwidths), draw(latencies)) for i in range(draw(st.integers(1, 8)))}
    routes = draw(st.lists(st.lists(st.sampled_from(sorted(links)), min_size=1, max_size=4, unique=True), max_size=20))
    starts = st.sampled_from([0.0, 1e-3, 2e-3]) | st.floats(0, 0.01)
    sizes = st.sampled_from([0.0, 1e6, 8e6]) | st.floats(1, 1e8)
    return over(links, routes), [(draw(starts), f"s{i}", f"d{i}", draw(sizes)) for i in range(len(routes))]


@settings(max_examples=100, deadline=None)
@given(traffic())
def test_bytes_are_conserved_and_no_link_carries_more_than_it_can(system: tuple[Topology, list[Flow]]) -> None:
    topology, flows = system
    network = network_of(topology, record=True)
    deliver(network, flows)

    assert sorted(flow.nbytes for flow in network.flows) == sorted(nbytes for *_, nbytes in flows)
    injected: dict[str, float] = dict.fromkeys(topology.links, 0.0)
    for _, source, destination, nbytes in flows:
        for link in topology.route(source, destination):
            injected[link.name] += nbytes
    assert network.bytes_by_link() == pytest.approx(injected)

    by_rate: dict[str, float] = defaultdict(float)
    last: dict[str, tuple[float, float]] = {}
    for time, link, rate, share in network.rates:
        assert share == pytest.approx(rate / topology.links[link].bandwidth)
        assert rate <= topology.links[link].bandwidth * (1 + 1e-9)
        since, before = last.get(link, (time, 0.0))
        by_rate[link] += before * (time - since)
        last[link] = (time, rate)
    assert all(rate == 0 for _, rate in last.values())
    for link, nbytes in injected.items():
        assert by_rate[link] == pytest.approx(nbytes, rel=1e-6, abs=1e-3)


@settings(max_examples=40, deadline=None)
@given(traffic())
def test_recording_changes_nothing_and_no_timer_outlives_the_last_flow(system: tuple[Topology, list[Flow]]) -> None:
    topology, flows = system
    ends = deliver(network_of(topology), flows)
    recording = network_of(topology, record=True)
    assert deliver(recording, flows) == ends
    assert recording.env.now == max(ends, default=0.0)


def test_a_record_says_who_sent_what_when_and_which_way() -> None:
    network = network_of(over({"a": (10.0, 1.0)}, [["a"]]), record=True)
    deliver(network, [(2, "s0", "d0", 50.0)])
    (flow,) = network.flows
    assert (flow.source, flow.destination, flow.nbytes, flow.links) == ("s0", "d0", 50.0, ("a",))
    assert (flow.started, flow.finished) == (2.0, 8.0)
    assert network.rates == [(3.0, "a", 10.0, 1.0), (8.0, "a", 0.0, 0.0)]


def test_what_happens_at_one_instant_is_shared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring step in which 84 flows end and 84 begin costs one re-share."""
    topology = Topology.from_dict({"topology": "bus", "gpus": 84, "bandwidth": "84 GB/s", "latency": 0})
    network = network_of(topology, form="steps")
    settled: list[float] = []
    settle = network._sharing.settle
    monkeypatch.setattr(network._sharing, "settle", lambda now: settled.append(now) or settle(now))
    network.env.run(network.collective("all_gather", range(84), 84e6))
    assert len(settled) == 83
    assert len(set(settled)) == 83
