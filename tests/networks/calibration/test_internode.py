"""The model between nodes by hand: hops, protocols, and the filling of a tree with chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from triosim.networks.calibration.curves import TimeParts
from triosim.networks.calibration.internode import InterNodeModel, NetworkKind, ProtocolConstants

#: 10 us a hop, 50 GB/s a card, 20 us a chunk; simple has hops twice as long, low latency a quarter of the bandwidth.
MODEL = InterNodeModel(
    NetworkKind(hop=10e-6, efficiency=1.0, lone_efficiency=1.0),
    ProtocolConstants(6e-6, 2.0, 0.25, chunk=1e6, ring_hop=1.0, peer=0.0, latency_error=0.3, moving_error=0.15),
    bandwidth=50e9,
)
INSIDE = TimeParts(10e-6, 0.0)  # what a node of 8 takes alone


def microseconds(model: InterNodeModel, nbytes: float, algorithm: str, nodes: int = 4) -> float:
    """An all-reduce on nodes of 8 GPUs."""
    return 1e6 * model.parts("all_reduce", nodes, 8 * nodes, nbytes, INSIDE, algorithm).total


def test_a_tree_over_nvls_has_the_simple_protocol_alone() -> None:
    """Of 4 nodes: 10 us inside, 2 log2(4) hops of 20 us; a plain tree sends few bytes by low latency, 10 us a hop."""
    assert microseconds(MODEL, 8.0, "nvls-tree") == pytest.approx(10 + 4 * 20, rel=1e-3)
    assert microseconds(MODEL, 8.0, "tree") == pytest.approx(10 + 4 * 10, rel=0.01)


def test_each_hop_of_a_tree_waits_for_a_chunk() -> None:
    """400 MB are 100 MB on each card, 2 ms; each of 4 hops passes on 2000 x 20 / 2020 us of it at once."""
    assert microseconds(MODEL, 400e6, "nvls-tree") == pytest.approx(10 + 80 + 2000 + 4 * 2000 * 20 / 2020)


def test_a_ring_is_filled_from_its_first_step() -> None:
    """400 MB are 2 x 31 / 32 x 50 MB on each card, and one chunk is waited for; 2 x 3 hops of 20 us."""
    needed = 2 * 31 / 32 * 1000
    assert microseconds(MODEL, 400e6, "ring") == pytest.approx(
        10 + 120 + needed + needed * 20 / (needed + 20), rel=1e-3
    )


def test_a_hop_is_longer_on_a_slower_card_where_its_exponent_says_so() -> None:
    """A quarter of the bandwidth, to the power of one half, doubles a hop; without an exponent only bytes take longer."""
    slow = replace(MODEL, bandwidth=12.5e9)
    older = replace(slow, network=replace(MODEL.network, hop_exponent=0.5))
    assert microseconds(slow, 8.0, "nvls-tree") == pytest.approx(10 + 80, rel=1e-3)
    assert microseconds(older, 8.0, "nvls-tree") == pytest.approx(10 + 160, rel=1e-3)
