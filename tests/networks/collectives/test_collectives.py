"""Collectives: what each rank ends with, and how long that takes along a ring, against closed forms worked out by hand.

S is the size, N the number of ranks, B the bandwidth, a the latency of a hop.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import OptionError, PluginError, TriosimError
from triosim.networks import CollectiveAlgorithm, Network, PacketNetwork, Topology, Transfer
from triosim.networks.collectives.algorithm import CollectiveOperation
from triosim.networks.collectives.algorithms.ring import Ring
from triosim.networks.collectives.lowering import Form
from triosim.networks.extensions import LinkCounter
from triosim.tasks import CollectiveKind, Communicator

KINDS = get_args(CollectiveKind)
FORMS: tuple[Form, ...] = get_args(Form)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 16]
S, B, LATE = 12e6, 10e9, 2e-6


def system(kind: str, *, bandwidth: float = B, latency: float = LATE, **keys: Any) -> Topology:
    return Topology.from_dict({"topology": kind, "bandwidth": bandwidth, "latency": latency, **keys})


def time_of(
    topology: Topology, kind: str, form: str, nbytes: float = S, group: Any = None, algorithm: str = "ring", **keys: Any
) -> float:
    env = simpy.Environment()
    network = PacketNetwork(env, topology, algorithm=algorithm, form=form)  # type: ignore[arg-type]
    group = range(len(topology.gpus)) if group is None else group
    env.run(network.collective(kind, group, nbytes, **keys))  # type: ignore[arg-type]
    return env.now


# What each rank ends with


Held = dict[int, dict[int, Counter[int]]]  # rank -> chunk -> how often each rank's contribution is in it


def held_at_first(kind: str, group: Sequence[int], root: int) -> Held:
    n = len(group)
    held: Held = {rank: {} for rank in group}
    for i, rank in enumerate(group):
        if kind in ("all_reduce", "reduce_scatter", "reduce"):
            chunks: Sequence[int] = range(n)
        elif kind in ("broadcast", "scatter"):
            chunks = range(n) if rank == root else ()
        elif kind == "all_to_all":
            chunks = range(i * n, (i + 1) * n)
        else:
            chunks = (i,)
        held[rank] = {chunk: Counter({rank: 1}) for chunk in chunks}
    return held


def promised(kind: str, group: Sequence[int], root: int) -> Held:
    """Return what the ranks must hold at the end; they may hold more."""
    n = len(group)
    everybody = Counter(dict.fromkeys(group, 1))
    from_root = Counter({root: 1})
    owned = {chunk: Counter({rank: 1}) for chunk, rank in enumerate(group)}
    whole: dict[str, dict[int, dict[int, Counter[int]]]] = {
        "all_reduce": {rank: dict.fromkeys(range(n), everybody) for rank in group},
        "reduce_scatter": {rank: {i: everybody} for i, rank in enumerate(group)},
        "all_gather": dict.fromkeys(group, owned),
        "all_to_all": {rank: {i * n + j: owned[i] for i in range(n)} for j, rank in enumerate(group)},
        "broadcast": {rank: dict.fromkeys(range(n), from_root) for rank in group},
        "reduce": {root: dict.fromkeys(range(n), everybody)},
        "gather": {root: owned},
        "scatter": {rank: {i: from_root} for i, rank in enumerate(group)},
    }
    return whole[kind]


def execute(transfers: Sequence[Transfer], held: Held, rng: random.Random) -> None:
    """Run the transfers in any order that they allow; what is sent is what the source has when it begins."""
    delivered: set[int] = set()
    under_way: dict[int, Counter[int]] = {}
    waiting = set(range(len(transfers)))
    while waiting or under_way:
        ready = [number for number in sorted(waiting) if delivered.issuperset(transfers[number].after)]
        if ready and (not under_way or rng.random() < 0.5):
            number = rng.choice(ready)
            waiting.remove(number)
            under_way[number] = Counter(held[transfers[number].source][transfers[number].chunk])
        else:
            number = rng.choice(sorted(under_way))
            data, transfer = under_way.pop(number), transfers[number]
            mine = held[transfer.destination]
            mine[transfer.chunk] = mine[transfer.chunk] + data if transfer.action == "reduce" else data
            delivered.add(number)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("where", ["switch", "ring"])
def test_each_rank_ends_with_what_the_collective_promises(kind: CollectiveKind, n: int, where: str) -> None:
    topology = system(where, gpus=n + 1)
    rng = random.Random(n)
    group = rng.sample(range(n + 1), n)  # some of the ranks, in any order
    root = rng.choice(group) if kind in ROOTED else None
    transfers = list(Ring().transfers(kind, group, 1.0, topology, root=root))
    held = held_at_first(kind, group, -1 if root is None else root)
    execute(transfers, held, rng)
    for rank, chunks in promised(kind, group, -1 if root is None else root).items():
        for chunk, contributions in chunks.items():
            assert held[rank][chunk] == contributions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("unequal", [False, True])
def test_the_ring_in_closed_form_is_its_transfers_added_up(kind: CollectiveKind, n: int, unequal: bool) -> None:
    """On links with a latency each its own, so that a wrong chain would show."""
    links = [
        {
            "from": f"gpu{i}",
            "to": f"gpu{(i + step) % n}",
            "bandwidth": B,
            "latency": (3 + 3 * i + step) * 1e-6,
            "both": False,
        }
        for i in range(n)
        for step in ((1, -1) if n > 2 else (1,))
    ]
    topology = Topology.from_dict({"nodes": [f"gpu{i}" for i in range(n)], "links": links})
    shares = None
    if unequal:
        if kind in ("all_reduce", "broadcast", "reduce"):
            pytest.skip("has no shares")
        shares = [float(3 + i) for i in range(n)]
    nbytes = sum(shares) if shares else 24.0
    root = 1 if kind in ROOTED else None
    operation = CollectiveOperation(kind, range(n), nbytes, root, None if shares is None else tuple(shares))
    closed = Ring().steady_state(operation, topology)
    added = CollectiveAlgorithm.steady_state(Ring(), operation, topology)
    assert closed.latency == pytest.approx(added.latency, rel=1e-12)
    assert {edge[:2]: edge[2] for edge in closed.edges} == pytest.approx({edge[:2]: edge[2] for edge in added.edges})


# How long it takes: on a ring, a switch and a mesh


def on_a_ring_of_edges(kind: str, form: str, n: int, size: float, bandwidth: float, late: float) -> float:
    """Return the closed form of what goes along a ring, all of whose hops are alike."""
    rounds = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}
    if kind in rounds:
        return rounds[kind] * (size / n / bandwidth + late)
    if form == "steps":  # broadcast and reduce, N chunks along N - 1 hops
        return (2 * n - 2) * (size / n / bandwidth + late)
    return size / bandwidth + (n - 1) * late


ALONG_THE_RING = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ALONG_THE_RING)
@pytest.mark.parametrize(
    ("topology", "hop"),
    [
        *((system("ring", gpus=n), LATE) for n in SIZES[1:]),
        *((system("switch", gpus=n), None) for n in SIZES),
        *((system("mesh", shape=shape), LATE) for shape in ([2, 2], [4, 2], [4, 4], [3, 4], [12, 7])),
    ],
    ids=str,
)
def test_closed_form_along_a_ring(topology: Topology, hop: float | None, kind: str, form: str) -> None:
    """2(N-1)/N S/B + 2(N-1) a for an all-reduce, half of it for its halves; see above for broadcast and reduce."""
    n = len(topology.gpus)
    late = sum(link.latency for link in topology.route(0, 1)) if hop is None else hop
    expected = on_a_ring_of_edges(kind, form, n, S, B, late)
    assert time_of(topology, kind, form) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all_on_a_switch(n: int) -> None:
    """Every rank sends N - 1 chunks: one after the other, or all at once."""
    topology = system("switch", gpus=n)
    late = sum(link.latency for link in topology.route(0, 1))
    assert time_of(topology, "all_to_all", "steps") == pytest.approx((n - 1) * (S / n / B + late), rel=1e-9)
    assert time_of(topology, "all_to_all", "pipelined") == pytest.approx((n - 1) * S / n / B + late, rel=1e-9)


@pytest.mark.parametrize("n", [3, 5, 7, 9])
def test_all_to_all_on_a_ring(n: int) -> None:
    """In step s every message goes d = min(s, N - s) hops, so d share a link; the d add up to (N^2 - 1) / 4.

    All at once, half as many share a link: those that go one way round.
    """
    topology = system("ring", gpus=n)
    steps, at_once = (n * n - 1) / 4, (n * n - 1) / 8
    assert time_of(topology, "all_to_all", "steps") == pytest.approx(steps * (S / n / B + LATE), rel=1e-9)
    expected = at_once * S / n / B + (n - 1) / 2 * LATE
    assert time_of(topology, "all_to_all", "pipelined") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_the_links_of_the_root_limit_gather_and_scatter(kind: str, form: str) -> None:
    """N - 1 chunks over one link of a switch; over two of a ring; two over one of a mesh's corner."""
    switch = system("switch", gpus=8)
    late = sum(link.latency for link in switch.route(0, 1))
    assert time_of(switch, kind, form, root=3) == pytest.approx(7 / 8 * S / B + late, rel=1e-9)
    ring = system("ring", gpus=7, latency=0)
    assert time_of(ring, kind, form, root=3) == pytest.approx(3 / 7 * S / B, rel=1e-9)
    mesh = system("mesh", shape=[2, 2], latency=0)
    assert time_of(mesh, kind, form, root=3) == pytest.approx(2 / 4 * S / B, rel=1e-9)


def test_the_pipelined_form_is_paced_by_the_slowest_edge() -> None:
    topology = system("ring", gpus=4, overrides=[{"from": "gpu1", "to": "gpu2", "bandwidth": B / 5, "both": True}])
    expected = 6 / 4 * S / (B / 5) + 6 * LATE
    assert time_of(topology, "all_reduce", "pipelined") == pytest.approx(expected, rel=1e-9)


def test_in_steps_a_slow_edge_holds_up_the_ranks_behind_it_only_when_they_need_its_data() -> None:
    """All six chunks of an all-reduce cross the slow edge one after the other; the last is passed on by nobody."""
    topology = system(
        "ring", gpus=4, latency=0, overrides=[{"from": "gpu1", "to": "gpu2", "bandwidth": B / 5, "both": True}]
    )
    assert time_of(topology, "all_reduce", "steps") == pytest.approx(6 * (S / 4) / (B / 5), rel=1e-9)


def test_unequal_shares() -> None:
    """On two ranks each sends its own share, or the other's; the larger one takes longer."""
    topology = system("switch", gpus=2, latency=0)
    for form in FORMS:
        for kind in ("all_gather", "reduce_scatter", "all_to_all"):
            for algorithm in ("ring", "auto"):
                found = time_of(topology, kind, form, 4e6, shares=[3e6, 1e6], algorithm=algorithm)
                assert found == pytest.approx(3e6 / B, rel=1e-9)
        for kind in ("gather", "scatter"):
            assert time_of(topology, kind, form, 4e6, shares=[3e6, 1e6], root=0) == pytest.approx(1e6 / B, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_one_rank_is_through_at_once_and_no_bytes_take_only_latency(kind: str, form: str) -> None:
    topology = system("switch", gpus=4)
    assert time_of(topology, kind, form, group=[2]) == 0
    assert 0 < time_of(topology, kind, form, 0.0) <= 20 * LATE
    assert time_of(system("switch", gpus=4, latency=0), kind, form, 0.0) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8, deadline=None)
@given(factor=st.floats(0.01, 100), n=st.integers(2, 7), nbytes=st.floats(1, 1e12))
def test_k_times_the_bandwidth_is_k_times_as_fast(kind: str, form: str, factor: float, n: int, nbytes: float) -> None:
    for algorithm in ("ring", "auto"):
        slow = time_of(system("switch", gpus=n, latency=0), kind, form, nbytes, algorithm=algorithm)
        faster = system("switch", gpus=n, latency=0, bandwidth=B * factor)
        assert slow == pytest.approx(time_of(faster, kind, form, nbytes, algorithm=algorithm) * factor, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), n=st.integers(2, 8))
def test_permuting_the_ranks_of_a_switch_changes_nothing(kind: str, form: str, data: st.DataObject, n: int) -> None:
    group = data.draw(st.permutations(range(n)))
    topology = system("switch", gpus=n)
    for algorithm in ("ring", "auto"):
        found = time_of(topology, kind, form, group=group, algorithm=algorithm)
        assert found == time_of(topology, kind, form, algorithm=algorithm)


def test_two_collectives_at_once_share_the_links() -> None:
    topology = system("switch", gpus=4, latency=0)
    env = simpy.Environment()
    network = PacketNetwork(env, topology)
    both = [network.collective("all_gather", Communicator((0, 1, 2, 3), name), S) for name in ("a", "b")]
    env.run(simpy.AllOf(env, both))
    assert env.now == pytest.approx(2 * 3 / 4 * S / B, rel=1e-9)


def test_every_link_of_a_ring_carries_what_the_ring_sends_over_it() -> None:
    topology = system("ring", gpus=4)
    for form in FORMS:
        network = PacketNetwork(simpy.Environment(), topology, form=form)
        network.env.run(network.collective("all_reduce", range(4), S))
        carried = sorted(network.bytes_by_link().values())
        assert carried == pytest.approx([0.0] * 4 + [6 / 4 * S] * 4)


# What cannot be


@pytest.mark.parametrize(
    ("kind", "group", "nbytes", "keys", "message"),
    [
        ("all_reduce", [0, 1, 1], 1.0, {}, "rank 1 is in the group twice"),
        ("all_reduce", ["gpu0", "gpu1"], 1.0, {}, "'gpu0' is not a rank"),
        ("all_reduce", [0, 9], 1.0, {}, "9"),
        ("all_reduce", [], 1.0, {}, "no ranks"),
        ("all_reduce", [0, 1], -1.0, {}, "number of bytes"),
        ("all_reduce", [0, 1], float("nan"), {}, "number of bytes"),
        ("all_reduse", [0, 1], 1.0, {}, "did you mean 'all_reduce'"),
        ("broadcast", [0, 1], 1.0, {"root": 2}, "root 2 is not in the group"),
        ("broadcast", [0, 1], 1.0, {"shares": [0.5, 0.5]}, "no shares"),
        ("all_gather", [0, 1], 1.0, {"shares": [1.0]}, "1 shares for 2 ranks"),
        ("all_gather", [0, 1], 1.0, {"shares": [2.0, -1.0]}, "number of bytes"),
        ("all_gather", [0, 1], 1.0, {"shares": [2.0, 1.0]}, "come to 3 bytes"),
    ],
)
def test_a_collective_that_cannot_be_is_refused(kind: str, group: Any, nbytes: float, keys: Any, message: str) -> None:
    network = PacketNetwork(simpy.Environment(), system("switch", gpus=4))
    with pytest.raises(TriosimError, match=message):
        network.collective(kind, group, nbytes, **keys)  # type: ignore[arg-type]


# Plug-ins


class Fixed(Network):
    """The least that a network can be: latency and bandwidth of the route, no sharing."""

    def transfer(self, source: int | str, destination: int | str, nbytes: float) -> simpy.Event:
        links = self.topology.route(source, destination)
        return self.env.timeout(sum(link.latency for link in links) + max(nbytes / link.bandwidth for link in links))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_network_that_only_transfers_has_collectives_too(kind: CollectiveKind, form: Form) -> None:
    topology = system("ring", gpus=6)
    network = Fixed(simpy.Environment(), topology, form=form)
    network.env.run(network.collective(kind, range(6), S))
    if kind in ALONG_THE_RING:
        assert network.env.now == pytest.approx(on_a_ring_of_edges(kind, form, 6, S, B, LATE), rel=1e-9)
    assert network.env.now > 0
    assert not isinstance(network, LinkCounter)


class Star(CollectiveAlgorithm):
    """Everybody to the first rank and back, for all-reduce only."""

    def transfers(
        self,
        kind: CollectiveKind,
        group: Sequence[int],
        nbytes: float,
        topology: Topology,
        *,
        root: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> Iterator[Transfer]:
        if kind != "all_reduce":
            raise OptionError(f"star cannot do {kind}")
        leaves = group[1:]
        for leaf in leaves:
            yield Transfer(leaf, group[0], 0, nbytes, "reduce")
        for leaf in leaves:
            yield Transfer(group[0], leaf, 0, nbytes, "copy", tuple(range(len(leaves))))


def test_an_algorithm_of_one_method_runs_in_both_forms() -> None:
    topology = system("switch", gpus=4)
    late = sum(link.latency for link in topology.route(0, 1))
    for form, there_and_back in (("steps", 2), ("pipelined", 1)):
        network = PacketNetwork(simpy.Environment(), topology, algorithm=Star(), form=form)  # type: ignore[arg-type]
        network.env.run(network.collective("all_reduce", range(4), S))
        assert network.env.now == pytest.approx(there_and_back * 3 * S / B + 2 * late, rel=1e-9)
        with pytest.raises(OptionError, match="star cannot do"):
            network.collective("broadcast", range(4), S)


def test_an_algorithm_whose_transfers_wait_for_later_ones_is_refused() -> None:
    class Knot(Star):
        def transfers(self, *_: Any, **__: Any) -> Iterator[Transfer]:
            yield Transfer(0, 1, 0, 1.0, "copy", (1,))
            yield Transfer(1, 0, 0, 1.0, "copy", (0,))

    network = PacketNetwork(simpy.Environment(), system("switch", gpus=2), algorithm=Knot(), form="steps")
    with pytest.raises(PluginError, match="earlier"):
        network.collective("all_reduce", [0, 1], 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_an_algorithm_without_transfers_is_named_with_what_it_was_asked_for(form: Form) -> None:
    class Idle(Star):
        def transfers(self, *operation: Any, **keys: Any) -> Iterator[Transfer]:
            return iter(())

    network = PacketNetwork(simpy.Environment(), system("switch", gpus=4), algorithm=Idle(), form=form)
    with pytest.raises(TriosimError, match="Idle: gives no transfers for all_reduce of ranks 0-3"):
        network.collective("all_reduce", range(4), S)
