"""Which algorithm ``auto`` takes: by size, group and topology, and never a slower one than it could have had."""

from __future__ import annotations

from typing import get_args

import pytest
import simpy

from triosim.networks import PacketNetwork, Topology
from triosim.networks.collectives.algorithm import CollectiveOperation
from triosim.networks.collectives.algorithms.auto import Auto
from triosim.networks.collectives.lowering import Form
from triosim.tasks import CollectiveKind

KINDS = get_args(CollectiveKind)


def taken(topology: Topology, kind: CollectiveKind, group: tuple[int, ...] | range, nbytes: float) -> str:
    return type(Auto().choose(CollectiveOperation(kind, group, nbytes), topology)).__name__


def seconds(topology: Topology, kind: CollectiveKind, nbytes: float, form: Form = "pipelined") -> float:
    env = simpy.Environment()
    network = PacketNetwork(env, topology, form=form)
    env.run(network.collective(kind, range(len(topology.gpus)), nbytes))
    return env.now


def test_behind_one_switch_all_sizes_take_trees_that_are_rotated_over_the_ranks() -> None:
    """The hops of a tree and the bytes of a ring: nothing else is quicker for any size."""
    for name in ("dgx-a100", "switch(8, bandwidth=10 GB/s)"):
        topology = Topology.load(name)
        for nbytes in (1e3, 1e9):
            for kind in ("all_reduce", "all_gather", "reduce_scatter"):
                assert taken(topology, kind, range(8), nbytes) == "RotatedTrees"


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize(("n", "hops"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (84, 7)])
def test_the_time_behind_one_switch(n: int, hops: int, form: Form) -> None:
    """Each hop, up and down, takes 2 us; an all-reduce sends 2(N-1)/N S, all-gather and reduce-scatter the half."""
    topology = Topology.load(f"switch({n}, bandwidth=10 GB/s, latency=1 us)")
    half = (n - 1) / n * 5e6 / 10e9 + hops * 2e-6
    assert seconds(topology, "all_reduce", 5e6, form) == pytest.approx(2 * half, rel=1e-9)
    assert seconds(topology, "all_gather", 5e6, form) == pytest.approx(half, rel=1e-9)
    assert seconds(topology, "reduce_scatter", 5e6, form) == pytest.approx(half, rel=1e-9)


@pytest.mark.parametrize("shape", ["switch({}, {})", "fully_connected({}, {})", "ring({}, {})"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_shape_and_the_same_in_the_notation_of_dimensions_agree(shape: str, kind: CollectiveKind) -> None:
    """A bandwidth of the notation is that of all seven links of a GPU together."""
    links = 7 if shape.startswith("fully") else 1
    written = Topology.load(shape.format(8, f"bandwidth={10 / links} GB/s, latency=1 us"))
    block = shape.split("(")[0].title().replace("_C", "C").replace("Fully_connected", "FullyConnected")
    notation = Topology.load(f"{block}(8, bandwidth=10 GB/s, latency=1 us)")
    for nbytes in (0.0, 1e4, 1e8):
        assert seconds(written, kind, nbytes) == pytest.approx(seconds(notation, kind, nbytes), rel=1e-9)


def test_where_all_pairs_are_linked_everything_goes_straight() -> None:
    """An all-reduce: an eighth of the data over each link, there and back. A slower link slows what crosses it."""
    keys = "bandwidth=10 GB/s, latency=1 us"
    topology = Topology.load(f"fully_connected(8, {keys})")
    assert seconds(topology, "all_reduce", 8e6) == pytest.approx(2 * 1e6 / 10e9 + 2e-6)
    nearly = Topology.load(f"fully_connected(8, {keys}, overrides=[{{from: gpu2, to: gpu5, bandwidth: 8 GB/s}}])")
    assert seconds(nearly, "all_reduce", 8e6) == pytest.approx(2 * 1e6 / 8e9 + 2e-6)


def test_a_slower_link_behind_a_switch_changes_no_algorithm() -> None:
    """14/8 of 8 MB at the pace of the slowest link, and 6 hops of 2 us."""
    slow = "switch(8, bandwidth=10 GB/s, latency=1 us, overrides=[{from: gpu2, to: switch0, bandwidth: 9 GB/s}])"
    assert seconds(Topology.load(slow), "all_reduce", 8e6) == pytest.approx(14e6 / 9e9 + 12e-6)


def test_a_mesh_and_a_torus_are_used_dimension_by_dimension_and_a_ring_as_a_ring() -> None:
    """Torus: 2 3/4 S along the first dimension, and meanwhile less along the second; 2 (3 + 3) hops. The ring: 14 hops."""
    keys = "bandwidth=10 GB/s, latency=1 us"
    torus = 1.5 * 8e6 / 10e9 + 12e-6
    assert seconds(Topology.load(f"torus(4x4, {keys})"), "all_reduce", 8e6) == pytest.approx(torus)
    assert taken(Topology.load(f"mesh(12x7, {keys})"), "all_reduce", range(84), 8e6) == "ByDimension"
    for nbytes in (0.0, 8e6):
        expected = 14 / 8 * nbytes / 10e9 + 14e-6
        assert seconds(Topology.load(f"ring(8, {keys})"), "all_reduce", nbytes) == pytest.approx(expected)


def test_in_steps_data_are_cut_into_four_chunks_along_a_torus() -> None:
    """Of each chunk four ranks send half on the first dimension, a quarter on the second, and both again on the way back.

    Along the first dimension a rank sends S in all, and the second, with half of that, is hidden behind it; a ring sends 3/2 S.
    """
    topology = Topology.load("torus(2x2, bandwidth=10 GB/s)")
    transfers = list(Auto().transfers("all_reduce", range(4), 8e6, topology))
    assert len(transfers) == 4 * 4 * 4
    assert seconds(topology, "all_reduce", 8e6, "steps") == pytest.approx(8e6 / 10e9, rel=0.1)


def test_the_switch_reduces_where_it_can() -> None:
    """9/8 S instead of 7/4 S; of two GPUs 3/2 S instead of S, so that trees are better."""
    topology = Topology.load("dgx-h100")
    assert taken(topology, "all_reduce", range(8), 1e9) == "SlicedInSwitch"
    assert taken(topology, "all_reduce", range(2), 1e9) == "RotatedTrees"


def test_between_nodes_all_network_cards_are_used() -> None:
    topology = Topology.load("dgx-a100(gpus=32)")
    for nbytes in (1e3, 1e9):
        assert taken(topology, "all_reduce", range(32), nbytes) == "ByDimension"
    assert taken(topology, "all_gather", range(0, 32, 8), 1e9) == "RotatedTrees"  # one GPU a node, behind the fabric
    assert taken(topology, "all_reduce", (0, 9, 18), 1e9) in ("Ring", "RotatedTrees")  # no box, but behind the fabric
    assert taken(topology, "all_reduce", (0, 1, 2, 8, 9), 1e9) in ("Ring", "DoubleBinaryTree")  # no box


def test_what_is_for_one_rank_alone_goes_straight() -> None:
    topology = Topology.load("dgx-h100(gpus=16)")
    for kind in ("all_to_all", "gather", "scatter", "broadcast", "reduce"):
        assert taken(topology, kind, range(16), 1e8) == "Ring"  # whose gather, scatter and all-to-all are straight


def test_a_network_of_dimensions_is_used_dimension_by_dimension() -> None:
    topology = Topology.load("Ring(4, bandwidth=10 GB/s)_FC(2, bandwidth=10 GB/s)")
    for kind in KINDS:
        assert taken(topology, kind, range(8), 1e6) == "ByDimension"
    assert taken(topology, "all_reduce", (0, 1, 6), 1e6) != "ByDimension"


@pytest.mark.parametrize(
    "name", ["dgx-a100", "dgx-h100", "dgx-h100(gpus=16)", "ring(8, bandwidth=1 GB/s, latency=1 us)"]
)
@pytest.mark.parametrize("nbytes", [1e2, 1e5, 1e7, 1e9])
def test_nothing_that_there_was_to_choose_is_quicker(name: str, nbytes: float) -> None:
    topology = Topology.load(name)
    group = range(len(topology.gpus))
    auto = Auto()
    for kind in KINDS:
        root = 0 if kind in ("broadcast", "reduce", "gather", "scatter") else None
        operation = CollectiveOperation(kind, group, nbytes, root)
        chosen = sum(auto.cost(operation, topology))
        for other in auto.alternatives(operation, topology):
            assert chosen <= sum(other.cost(operation, topology)) * (1 + 1e-12)
