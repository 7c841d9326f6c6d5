"""How long each collective algorithm takes on an idle, symmetric network, against closed forms worked out by hand.

S is the size, N the number of ranks, B the bandwidth of a link, A the latency from rank to rank, K the number of chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import simpy

from triosim.errors import OptionError
from triosim.networks import AnalyticalNetwork, PacketNetwork, Topology
from triosim.networks.collectives.algorithms.hierarchical import Hierarchical
from triosim.networks.collectives.lowering import Form
from triosim.tasks import CollectiveKind

S, B, A = 12e6, 10e9, 2e-6
FORMS: tuple[Form, ...] = get_args(Form)


def line(n: int) -> Topology:
    return Topology.from_dict({"topology": "mesh", "shape": [n], "bandwidth": B, "latency": A})


def system(kind: str, n: int, **keys: Any) -> Topology:
    latency = A / 2 if kind == "switch" else A
    return Topology.from_dict({"topology": kind, "gpus": n, "bandwidth": B, "latency": latency, **keys})


def time_of(
    topology: Topology, algorithm: Any, kind: CollectiveKind, form: Form, nbytes: float = S, **keys: Any
) -> float:
    env = simpy.Environment()
    network = PacketNetwork(env, topology, algorithm=algorithm, form=form)
    env.run(network.collective(kind, range(len(topology.gpus)), nbytes, **keys))
    return env.now


def log2(n: int) -> int:
    return math.ceil(math.log2(n))


ClosedForm = Callable[[int, float], float]

#: (algorithm, collective, system, form): seconds of N ranks and S bytes.
CLOSED: dict[tuple[str, CollectiveKind, str, str], ClosedForm] = {
    ("direct", "all_reduce", "fully_connected", "both"): lambda n, s: 2 * (s / n / B + A),
    ("direct", "all_gather", "fully_connected", "both"): lambda n, s: s / n / B + A,
    ("direct", "reduce_scatter", "fully_connected", "both"): lambda n, s: s / n / B + A,
    ("direct", "all_to_all", "fully_connected", "both"): lambda n, s: s / n / B + A,
    ("direct", "broadcast", "fully_connected", "both"): lambda n, s: s / B + A,
    ("direct", "reduce", "fully_connected", "both"): lambda n, s: s / B + A,
    ("direct", "gather", "fully_connected", "both"): lambda n, s: s / n / B + A,
    ("direct", "scatter", "fully_connected", "both"): lambda n, s: s / n / B + A,
    ("direct", "all_to_all", "switch", "both"): lambda n, s: (n - 1) / n * s / B + A,
    ("halving-doubling", "all_reduce", "switch", "both"): lambda n, s: 2 * (n - 1) / n * s / B + 2 * log2(n) * A,
    ("halving-doubling", "all_gather", "switch", "both"): lambda n, s: (n - 1) / n * s / B + log2(n) * A,
    ("halving-doubling", "reduce_scatter", "switch", "both"): lambda n, s: (n - 1) / n * s / B + log2(n) * A,
    ("halving-doubling", "broadcast", "switch", "both"): lambda n, s: log2(n) * (s / B + A),
    ("halving-doubling", "reduce", "switch", "both"): lambda n, s: log2(n) * (s / B + A),
    ("bidirectional-ring", "all_reduce", "ring", "both"): lambda n, s: 2 * (n - 1) * (s / 2 / n / B + A),
    ("bidirectional-ring", "all_gather", "ring", "both"): lambda n, s: (n - 1) * (s / 2 / n / B + A),
    ("bidirectional-ring", "reduce_scatter", "ring", "both"): lambda n, s: (n - 1) * (s / 2 / n / B + A),
    ("bidirectional-ring", "broadcast", "ring", "pipelined"): lambda n, s: s / 2 / B + (n - 1) * A,
    ("bidirectional-ring", "reduce", "ring", "pipelined"): lambda n, s: s / 2 / B + (n - 1) * A,
    ("chain", "all_reduce", "line", "pipelined"): lambda n, s: s / B + 2 * (n - 1) * A,
    ("chain", "broadcast", "line", "pipelined"): lambda n, s: s / B + (n - 1) * A,
    ("chain", "reduce", "line", "pipelined"): lambda n, s: s / B + (n - 1) * A,
    ("chain", "all_gather", "line", "both"): lambda n, s: (n - 1) * (s / n / B + A),
    ("chain", "reduce_scatter", "line", "both"): lambda n, s: (n - 1) * (s / n / B + A),
    ("in-switch", "all_reduce", "switch", "pipelined"): lambda n, s: s / B + A,
    ("in-switch", "broadcast", "switch", "pipelined"): lambda n, s: s / B + A,
    ("in-switch", "reduce", "switch", "pipelined"): lambda n, s: s / B + A,
    ("in-switch", "all_gather", "switch", "pipelined"): lambda n, s: (n - 1) / n * s / B + A,
    ("in-switch", "reduce_scatter", "switch", "pipelined"): lambda n, s: (n - 1) / n * s / B + A,
    ("nvls", "all_reduce", "switch", "pipelined"): lambda n, s: (n + 1) / n * s / B + 2 * A,
    ("hierarchical", "all_reduce", "ring", "pipelined"): lambda n, s: 2 * (n - 1) * (s / n / B + A),
    ("hierarchical", "all_reduce", "line", "pipelined"): lambda n, s: s / B + 2 * (n - 1) * A,
    ("hierarchical", "all_gather", "line", "pipelined"): lambda n, s: (n - 1) * (s / n / B + A),
    ("hierarchical", "all_gather", "switch", "pipelined"): lambda n, s: (n - 1) / n * s / B + log2(n) * A,
}


@pytest.mark.parametrize(("algorithm", "kind", "where", "forms"), CLOSED)
def test_closed_form_on_an_idle_network(algorithm: str, kind: CollectiveKind, where: str, forms: str) -> None:
    expected = CLOSED[algorithm, kind, where, forms]
    for n in (3, 4, 5, 8, 13, 16):
        if algorithm == "halving-doubling" and kind in ("broadcast", "reduce") and n & (n - 1):
            continue  # binomial trees are worked out for powers of two
        topology = line(n) if where == "line" else system(where, n)
        for form in FORMS if forms == "both" else (forms,):
            found = time_of(topology, algorithm, kind, form)  # type: ignore[arg-type]
            assert found == pytest.approx(expected(n, S), rel=1e-9), (n, form)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_chain_in_chunks_is_a_pipeline(n: int) -> None:
    """K = 12 MB / 512 KiB, at most 16: the last chunk leaves K - 1 steps after the first."""
    step = S / 16 / B + A
    assert time_of(line(n), "chain", "broadcast", "steps") == pytest.approx((n - 1 + 15) * step, rel=1e-9)
    assert time_of(line(n), "chain", "all_reduce", "steps") == pytest.approx((2 * (n - 1) + 15) * step, rel=1e-9)
    small = 1000 / B + A
    assert time_of(line(n), "chain", "all_reduce", "steps", 1000) == pytest.approx(2 * (n - 1) * small, rel=1e-9)


def test_trees_of_eight_by_hand() -> None:
    """0 - 4 - (2 - (1, 3), 6 - (5, 7)): rank 2 takes in two halves of the sum and the result, S each, as does rank 4.

    In the second tree its mirror image is inside, and a leaf of the first has S/2 for its parent and S/2 from it.
    """
    switch = system("switch", 8)
    assert time_of(switch, "tree", "all_reduce", "pipelined") == pytest.approx(3 * S / B + 6 * A, rel=1e-9)
    assert time_of(switch, "tree", "broadcast", "pipelined") == pytest.approx(2 * S / B + 3 * A, rel=1e-9)
    double = AnalyticalNetwork(simpy.Environment(), switch, algorithm="double-binary-tree")
    assert double.seconds("all_reduce", range(8), S) == pytest.approx(2 * S / B + 6 * A, rel=1e-9)
    assert time_of(switch, "double-binary-tree", "all_reduce", "pipelined") == pytest.approx(
        2 * S / B + 6 * A, rel=1e-9
    )
    small = 1000  # whole, so that every step is waited for: two children share the link up, then two the link down
    up_or_down = (2 + 2 + 1) * small / B + 3 * A
    assert time_of(switch, "tree", "all_reduce", "steps", small) == pytest.approx(2 * up_or_down, rel=1e-9)


@pytest.mark.parametrize("n", [4, 7, 12, 16, 17, 33])
def test_two_trees_that_join_the_same_ranks_have_a_share_each(n: int) -> None:
    """Each port carries at most four halves, of which none waits for another: 2 S/B, whatever the number of ranks."""
    latency = AnalyticalNetwork(simpy.Environment(), system("switch", n), algorithm="double-binary-tree")
    start = latency.seconds("all_reduce", range(n), 0)
    found = time_of(system("switch", n), "double-binary-tree", "all_reduce", "pipelined")
    assert found == pytest.approx(2 * S / B + start, rel=1e-9)


def test_all_to_all_in_the_rounds_of_bruck() -> None:
    """In each of three rounds of eight ranks half of the data moves; five ranks move 2, 2 and 1 of 5 chunks."""
    for form, rounds in (("steps", 3), ("pipelined", 3)):
        found = time_of(system("switch", 8), "halving-doubling", "all_to_all", form)  # type: ignore[arg-type]
        assert found == pytest.approx(rounds * (S / 2 / B + A), rel=1e-9)
    found = time_of(system("switch", 5), "halving-doubling", "all_to_all", "steps")
    assert found == pytest.approx(5 * S / 5 / B + 3 * A, rel=1e-9)


def test_all_to_all_from_neighbour_to_neighbour() -> None:
    """Odd N: what is d hops away crosses d links, half of it each way, (N^2 - 1)/8 chunks a link."""
    for n in (3, 5, 9):
        found = time_of(system("ring", n), "bidirectional-ring", "all_to_all", "pipelined")
        assert found == pytest.approx((n * n - 1) / 8 * S / n / B + (n - 1) / 2 * A, rel=1e-9)


def test_nvls_and_an_aggregating_switch_outdo_a_ring() -> None:
    """In steps, in chunks, both stay within a few chunks of their steady state."""
    switch = system("switch", 8, in_switch_reduction=True)
    ring = time_of(switch, "ring", "all_reduce", "pipelined")
    for algorithm in ("nvls", "in-switch"):
        steady = time_of(switch, algorithm, "all_reduce", "pipelined")
        assert steady < time_of(switch, algorithm, "all_reduce", "steps") < 1.35 * steady
        assert steady < 0.75 * ring
    with pytest.raises(OptionError, match=r"nvls: messages among the \d+ ranks of .* have no switch in common"):
        time_of(system("ring", 4), "nvls", "all_reduce", "steps")


NOTATION = "Ring(4, bandwidth=40 GB/s, latency=1 us)_FC(2, bandwidth=10 GB/s, latency=2 us)_Switch(4, bandwidth=5 GB/s)"


def seconds_by_dimension(nbytes: float) -> list[float]:
    """Return 2 (ni-1)/ni S/(n1 ... n(i-1)) over the bandwidth."""
    return [2 * 3 / 4 * nbytes / 40e9, 2 * 1 / 2 * nbytes / 4 / 10e9, 2 * 3 / 4 * nbytes / 8 / 5e9]


def test_hierarchical_all_reduce_of_three_dimensions() -> None:
    """t = 37.5, 25, 37.5 us a MB: the first is the slowest (the third is as slow); nothing comes before it."""
    ring, straight, switch = seconds_by_dimension(S)
    assert (ring, straight, switch) == pytest.approx((S * 37.5e-12, S * 25e-12, S * 37.5e-12))
    latency = 2 * (3 * 1e-6 + 1 * 2e-6)
    topology = Topology.load(NOTATION)
    assert time_of(topology, "hierarchical", "all_reduce", "pipelined") == pytest.approx(ring + latency, rel=1e-9)
    for chunks in (16, 64):
        found = time_of(topology, Hierarchical(chunks), "all_reduce", "steps", 64 * S)
        assert 64 * ring < found < 64 * ring * (1 + 4 / chunks) + chunks * latency


def test_the_dimensions_before_the_slowest_fill_the_pipeline() -> None:
    topology = Topology.load(NOTATION.replace("40 GB/s", "400 GB/s").replace("5 GB/s", "1 GB/s"))
    ring, straight, switch = 1.5 * S / 400e9, S / 4 / 10e9, 1.5 * S / 8 / 1e9
    for chunks in (1, 8, 64):
        latency = 2 * (3 * 1e-6 + 1 * 2e-6)
        found = time_of(topology, Hierarchical(chunks), "all_reduce", "pipelined")
        assert found == pytest.approx(switch + (ring + straight) / chunks + latency, rel=1e-9)
        gather = time_of(topology, Hierarchical(chunks), "all_gather", "pipelined")
        assert gather == pytest.approx((switch + (ring + straight) / chunks + latency) / 2, rel=1e-9)


def test_one_chunk_through_all_dimensions_is_one_after_the_other() -> None:
    topology = Topology.load(NOTATION)
    latency = 2 * (3 * 1e-6 + 1 * 2e-6)
    found = time_of(topology, Hierarchical(1), "all_reduce", "steps")
    assert found == pytest.approx(sum(seconds_by_dimension(S)) + latency, rel=1e-9)


def test_a_group_that_is_no_box_has_no_dimensions_to_go_along() -> None:
    network = PacketNetwork(simpy.Environment(), Topology.load(NOTATION), algorithm="hierarchical")
    with pytest.raises(OptionError, match="5 ranks are not a full box"):
        network.collective("all_reduce", [0, 1, 2, 3, 4], S)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(
    ("algorithm", "where"),
    [
        ("ring", "ring"),
        ("ring", "switch"),
        ("bidirectional-ring", "ring"),
        ("direct", "fully_connected"),
        ("halving-doubling", "switch"),
        ("hierarchical", "switch"),
        ("hierarchical", "ring"),
        ("hierarchical", "line"),
        ("chain", "line"),
        ("nvls", "switch"),
        ("in-switch", "switch"),
        ("auto", "switch"),
    ],
)
def test_the_analytical_network_agrees_with_the_pipelined_form(
    algorithm: str, where: str, kind: CollectiveKind
) -> None:
    """On an idle symmetric network there is no contention but that of a collective with itself."""
    for n in (2, 5, 8):
        topology = line(n) if where == "line" else system(where, n)
        network = AnalyticalNetwork(simpy.Environment(), topology, algorithm=algorithm)
        found = network.seconds(kind, range(n), S)
        assert found == pytest.approx(time_of(topology, algorithm, kind, "pipelined"), rel=1e-9), n


IRREGULAR = {
    "mesh": "mesh(4x3, bandwidth=10 GB/s, latency=1 us)",
    "nodes": "dgx-h100(gpus=16)",
    "switches": "tree(9, fanout=3, bandwidth=10 GB/s)",
    "cube mesh": "dgx-1-v100",
    "dimensions": NOTATION,
}


@pytest.mark.parametrize("kind", get_args(CollectiveKind))
@pytest.mark.parametrize("where", IRREGULAR)
def test_nothing_is_quicker_than_its_busiest_link(where: str, kind: CollectiveKind) -> None:
    """The analytical network takes that for the whole; sharing may only add to it, where flows that wait leave gaps."""
    topology = Topology.load(IRREGULAR[where])
    group = range(len(topology.gpus))
    for algorithm in ("ring", "bidirectional-ring", "chain", "tree", "double-binary-tree", "direct", "auto"):
        bound = AnalyticalNetwork(simpy.Environment(), topology, algorithm=algorithm).seconds(kind, group, S)
        found = time_of(topology, algorithm, kind, "pipelined")
        assert bound <= found * (1 + 1e-9), algorithm
        assert found <= 1.5 * bound, algorithm
