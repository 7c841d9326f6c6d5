"""Which algorithm ``auto`` takes: by size, group and topology, and never a slower one than it could have had."""

from __future__ import annotations

from typing import get_args

import pytest

from triosim.networks import Topology
from triosim.networks.collectives.algorithm import CollectiveOperation
from triosim.networks.collectives.algorithms.auto import Auto
from triosim.tasks import CollectiveKind

KINDS = get_args(CollectiveKind)


def taken(topology: Topology, kind: CollectiveKind, group: tuple[int, ...] | range, nbytes: float) -> str:
    return type(Auto().choose(CollectiveOperation(kind, group, nbytes), topology)).__name__


def test_small_messages_take_the_tree_and_large_ones_the_ring() -> None:
    """Seven hops of latency each way against three; 2 S against 7/4 S."""
    topology = Topology.load("dgx-a100")
    assert taken(topology, "all_reduce", range(8), 1e3) == "DoubleBinaryTree"
    assert taken(topology, "all_reduce", range(8), 1e9) == "Ring"


def test_the_switch_reduces_where_it_can() -> None:
    """9/8 S instead of 7/4 S; of two GPUs 3/2 S instead of S, so that the ring is better."""
    topology = Topology.load("dgx-h100")
    assert taken(topology, "all_reduce", range(8), 1e9) == "SlicedInSwitch"
    assert taken(topology, "all_reduce", range(2), 1e9) == "Ring"


def test_between_nodes_all_network_cards_are_used() -> None:
    topology = Topology.load("dgx-a100(gpus=32)")
    assert taken(topology, "all_reduce", range(32), 1e9) == "Hierarchical"
    assert taken(topology, "all_reduce", range(32), 1e3) != "Ring"
    assert taken(topology, "all_gather", range(0, 32, 8), 1e9) == "Ring"  # one GPU a node: a single dimension
    assert taken(topology, "all_reduce", (0, 1, 2, 8, 9), 1e9) in ("Ring", "DoubleBinaryTree")  # no box


def test_what_is_for_one_rank_alone_goes_straight() -> None:
    topology = Topology.load("dgx-h100(gpus=16)")
    for kind in ("all_to_all", "gather", "scatter", "broadcast", "reduce"):
        assert taken(topology, kind, range(16), 1e8) == "Ring"  # whose gather, scatter and all-to-all are straight


def test_a_network_of_dimensions_is_used_dimension_by_dimension() -> None:
    topology = Topology.load("Ring(4, bandwidth=10 GB/s)_FC(2, bandwidth=10 GB/s)")
    for kind in KINDS:
        assert taken(topology, kind, range(8), 1e6) == "Hierarchical"
    assert taken(topology, "all_reduce", (0, 1, 6), 1e6) != "Hierarchical"


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
