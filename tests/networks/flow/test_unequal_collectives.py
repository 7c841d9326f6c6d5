"""Collectives of unequal bytes on an idle network: their flows end when they would if each end were an event."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import simpy

from triosim.networks import PacketNetwork
from triosim.networks.flow import max_min
from triosim.networks.flow.simultaneous_flows import SimultaneousFlows
from triosim.networks.topology import Topology

RANKS = 32


def test_the_second_flow_has_the_link_for_itself_when_the_first_has_ended() -> None:
    flows = SimultaneousFlows([[0], [0]], [10.0, 30.0], [10.0])
    assert flows.left(1.0).tolist() == [5.0, 25.0]
    assert flows.left(3.0).tolist() == [0.0, 10.0]
    assert flows.seconds() == pytest.approx(4.0, rel=1e-15)


def test_parts_that_share_no_link_end_by_themselves() -> None:
    # On link 0, 10 bytes take 1 s; on link 1, flows of 4 and 8 bytes at 2 bytes/s take 6 s, and the first of them 4 s.
    flows = SimultaneousFlows([[0], [1], [1]], [10.0, 4.0, 8.0], [10.0, 2.0])
    assert flows.left(4.0).tolist() == pytest.approx([0.0, 0.0, 4.0])
    assert flows.seconds() == pytest.approx(6.0, rel=1e-15)


def one_by_one(routes: Sequence[Sequence[int]], nbytes: Sequence[float], capacities: Sequence[float]) -> float:
    """The last end, with the rule of ``max_min`` asked at every end."""
    left, now = dict(enumerate(nbytes)), 0.0
    while left:
        rates = max_min.rates(dict(enumerate(capacities)), [routes[one] for one in left])
        step, first = min((nbytes / rate, one) for (one, nbytes), rate in zip(left.items(), rates, strict=True))
        now += step
        left = {
            one: nbytes - rate * step for (one, nbytes), rate in zip(left.items(), rates, strict=True) if one != first
        }
    return now


@pytest.mark.parametrize("seed", range(20))
def test_random_flows_end_as_the_plain_rule_says(seed: int) -> None:
    draw = random.Random(seed)
    capacities = [draw.choice([1.0, 2.0, 5.0]) for _ in range(8)]
    routes = [draw.sample(range(8), draw.randint(1, 4)) for _ in range(20)]
    nbytes = [draw.choice([1.0, draw.uniform(0.1, 10.0)]) for _ in routes]
    flows = SimultaneousFlows(routes, nbytes, capacities)
    assert flows.seconds() == pytest.approx(one_by_one(routes, nbytes, capacities), rel=1e-12)
    before = flows.left(0.5 * flows.seconds())
    rest = [(route, left) for route, left in zip(routes, before.tolist(), strict=True) if left > 0]
    assert one_by_one(*zip(*rest, strict=True), capacities) == pytest.approx(0.5 * flows.seconds(), rel=1e-9)


Script = Callable[[PacketNetwork], None]


def run(system: str, script: Script, *, plain: bool, times: int = 1) -> tuple[list[float], dict[str, float]]:
    """When exchanges one after the other end, beside a script; ``plain``: flows are recorded, so each is simulated."""
    network = PacketNetwork(simpy.Environment(), Topology.load(system), record=plain)
    draw = random.Random(7)
    sizes = [draw.choice([0.0, draw.uniform(1e6, 9e6)]) for _ in range(RANKS * RANKS)]
    ends = []

    def exchanges() -> simpy.events.ProcessGenerator:
        for _ in range(times):
            yield network.collective("all_to_all", range(RANKS), sum(sizes) / RANKS, shares=sizes)
            ends.append(network.env.now)

    network.env.process(exchanges())
    script(network)
    network.env.run()
    return ends, network.bytes_by_link()


def nothing(_: PacketNetwork) -> None:
    """Send nothing else."""


def at(seconds: float, action: Callable[[PacketNetwork], object]) -> Script:
    """Do something after some seconds."""

    def script(network: PacketNetwork) -> None:
        network.env.timeout(seconds).callbacks.append(lambda _: action(network))

    return script


def slow_first_link(network: PacketNetwork) -> None:
    link = network.topology.route(0, 1)[0]
    network.set_bandwidth(link.source, link.destination, 1e9)


SYSTEMS = (
    "dgx-h100(gpus=32)",
    "switch(32, bandwidth=50 GB/s, latency=1 us)",
    "torus(8x4, bandwidth=20 GB/s, latency=500 ns)",
)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "script",
    [
        nothing,
        at(0.0, lambda network: network.transfer(0, 9, 3e6)),
        at(1e-9, lambda network: network.transfer(0, 9, 3e6)),
        at(5e-4, lambda network: network.transfer(0, 9, 3e6)),
        at(5e-4, lambda network: network.collective("all_reduce", range(8), 3e7)),
        at(5e-4, slow_first_link),
    ],
)  # fmt: skip
def test_nothing_tells_whether_ends_were_events(system: str, script: Script) -> None:
    (ends, links), (plain_ends, plain_links) = (run(system, script, plain=plain, times=3) for plain in (False, True))
    assert ends == pytest.approx(plain_ends, rel=1e-9)
    assert links == pytest.approx(plain_links, rel=1e-12)


def test_equal_exchanges_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    make = SimultaneousFlows.__init__
    monkeypatch.setattr(SimultaneousFlows, "__init__", lambda self, *given: (found.append(1), make(self, *given))[1])
    ends, _ = run(SYSTEMS[0], nothing, plain=False, times=4)
    assert len(found) == 1
    assert [end / ends[0] for end in ends] == pytest.approx([1, 2, 3, 4])
