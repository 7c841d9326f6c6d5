"""Collectives simulated for one rank instead of all: the same times and bytes, alone or with others on the links."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest
import simpy

from triosim.errors import OptionError
from triosim.networks import PacketNetwork, Topology
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.flow.symmetric_collectives import Fold
from triosim.tasks import CollectiveKind

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
SYSTEMS = {
    "three blocks": "Ring(5, bandwidth=9 GB/s, latency=1 us)_FC(3, bandwidth=4 GB/s)_SW(4, bandwidth=2 GB/s, latency=3 us)",
    "pairs": "Ring(2, bandwidth=10 GB/s)_FC(2, bandwidth=10 GB/s)_SW(2, bandwidth=10 GB/s)_Ring(4, bandwidth=10 GB/s)",
    "odd switches": "Switch(6, bandwidth=10 GB/s, latency=1 us)_Switch(5, bandwidth=1 GB/s, latency=2 us)",
    "torus": "torus(4x3, bandwidth=10 GB/s, latency=1 us)",
    "nodes": "dgx-h100(gpus=32)",
    "mesh": "mesh(4x3, bandwidth=10 GB/s)",
}


def network_of(name: str, fold: Fold, **keys: Any) -> PacketNetwork:
    keys.setdefault("algorithm", Hierarchical(8))
    return PacketNetwork(simpy.Environment(), Topology.load(name), fold=fold, **keys)


def both(name: str, **keys: Any) -> tuple[PacketNetwork, PacketNetwork]:
    return network_of(name, "always", **keys), network_of(name, "never", **keys)


def check_the_same(folded: PacketNetwork, plain: PacketNetwork) -> None:
    assert folded.env.now == pytest.approx(plain.env.now, rel=1e-9)
    assert folded.bytes_by_link() == pytest.approx(plain.bytes_by_link(), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", SYSTEMS)
def test_alone_a_folded_collective_takes_as_long_and_loads_the_links_as_much(where: str, kind: CollectiveKind) -> None:
    """All GPUs, those of a line, those that differ in the other dimensions."""
    topology = Topology.load(SYSTEMS[where])
    n, inner = len(topology.gpus), topology.dimensions[0].size
    for group in (range(n), range(inner, 2 * inner), range(1, n, inner)):
        folded, plain = both(SYSTEMS[where])
        for network in (folded, plain):
            network.env.run(network.collective(kind, group, 3e7))
            network.env.run(network.collective(kind, group, 1e3))
        check_the_same(folded, plain)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
@pytest.mark.parametrize("where", SYSTEMS)
def test_something_else_on_the_links_unfolds_it(where: str, kind: CollectiveKind) -> None:
    """Transfers and collectives of others, at random times while it is under way: everything ends when it would have."""
    rng = random.Random(where)
    alone = network_of(SYSTEMS[where], "never")
    n = len(alone.topology.gpus)
    alone.env.run(alone.collective(kind, range(n), 2e7))
    for others in (1, 1, 3, 6):
        plan: list[tuple[float, Any]] = [(0.0, (kind, 0, 0, 2e7))]
        for _ in range(others):
            what = rng.choice(("all_reduce", "reduce_scatter", "send", "send"))
            plan.append((rng.random() * alone.env.now, (what, rng.randrange(n), rng.randrange(n), 1e7)))
        ends = [ends_of(network, plan) for network in both(SYSTEMS[where])]
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def ends_of(network: PacketNetwork, plan: list[tuple[float, Any]]) -> list[float]:
    env, ends = network.env, [0.0] * len(plan)

    def run(place: int, at: float, kind: Any, source: int, destination: int, nbytes: float) -> Any:
        yield env.timeout(at)
        if kind == "send":
            yield network.transfer(source, destination, nbytes)
        else:
            yield network.collective(kind, range(len(network.topology.gpus)), nbytes)
        ends[place] = env.now

    for place, (at, what) in enumerate(plan):
        env.process(run(place, at, *what))
    env.run()
    return [*ends, env.now, *network.bytes_by_link().values()]


def test_a_regular_collective_is_folded_and_another_is_not() -> None:
    """As many flows as there are tell which it was."""
    for where, kind, expected in (
        ("nodes", "all_reduce", 0),
        ("three blocks", "all_to_all", 0),
        ("three blocks", "broadcast", 59),  # a tree has as many edges
        ("mesh", "all_reduce", 2 * (3 * 3 + 4 * 2)),
    ):
        network = network_of(SYSTEMS[where], "always")
        network.collective(kind, range(len(network.topology.gpus)), 1e6)  # type: ignore[arg-type]
        assert network._sent == expected, (where, kind)


def test_a_slow_link_is_not_folded_away() -> None:
    """The slowest of 32 links up to the fabric, with 1/8 of 2 3/4 of the data, sets the pace."""
    slow = "dgx-h100(gpus=32, overrides=[{from: gpu9, to: fabric, bandwidth: 1 GB/s}])"
    folded, plain = both(slow)
    for network in (folded, plain):
        network.env.run(network.collective("all_reduce", range(32), 8e8))
    check_the_same(folded, plain)
    assert folded.env.now > 1e8 * 2 * 3 / 4 / 1e9


def test_a_link_that_becomes_slow_on_the_way_unfolds_it() -> None:
    """Of 2 7/8 S over each link, a quarter is through at full speed, the rest of one of them at a tenth."""
    for fold in get_args(Fold):
        network = network_of("Ring(8, bandwidth=10 GB/s)", fold)
        quarter = 2 * 7 / 8 * 8e7 / 10e9 / 4
        slow = network.env.timeout(quarter)
        slow.callbacks.append(lambda _, network=network: network.set_bandwidth(2, 3, 1e9))
        network.env.run(network.collective("all_reduce", range(8), 8e7))
        assert network.env.now == pytest.approx(quarter + 30 * quarter, rel=1e-9)
        network.env.run(network.collective("all_reduce", range(8), 8e7))
        assert network.env.now == pytest.approx(quarter + 70 * quarter, rel=1e-9)


def test_large_groups_are_folded_unless_that_is_forbidden_or_flows_are_recorded() -> None:
    name = "Ring(16, bandwidth=10 GB/s)_FC(8, bandwidth=10 GB/s)"
    for keys, flows in (({}, 0), ({"fold": "never"}, 1), ({"record": True}, 1), ({"form": "steps"}, 1)):
        network = PacketNetwork(simpy.Environment(), Topology.load(name), algorithm=Hierarchical(2), **keys)  # type: ignore[arg-type]
        network.collective("all_gather", range(128), 1e6)
        assert (network._sent > 0) == flows
    with pytest.raises(OptionError, match="fold: 'sometimes' is not known"):
        network_of(name, "sometimes")  # type: ignore[arg-type]
