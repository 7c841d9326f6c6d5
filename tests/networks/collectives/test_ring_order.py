"""Rings use short links, none of them twice, and do not depend on the order in which their ranks are named."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import TopologyError
from triosim.networks.collectives.ring_order import ring_order
from triosim.networks.topology import Link, Topology


def load(name: str) -> Topology:
    return Topology.load(f"{name}, bandwidth=10 GB/s, latency=1 us)" if "(" in name else name)


def routes(topology: Topology, order: tuple[int, ...]) -> list[tuple[Link, ...]]:
    return [topology.route(a, b) for a, b in zip(order, order[1:] + order[:1], strict=True)]


def hops(topology: Topology, order: tuple[int, ...]) -> list[int]:
    return sorted(len(route) for route in routes(topology, order))


def load_of_links(topology: Topology, order: tuple[int, ...]) -> int:
    return max(Counter(link.name for route in routes(topology, order) for link in route).values())


def everyone(topology: Topology) -> range:
    return range(len(topology.gpus))


HAMILTONIAN = [
    "mesh(4x2", "mesh(2x2", "mesh(5x4", "mesh(4x5", "mesh(2x7", "mesh(3x3x2", "mesh(4x3x3", "mesh(2x2x2x2", "torus(4x4",
    "torus(3x3", "torus(5x3", "torus(3x5", "torus(3x3x3", "torus(3x5x7", "torus(7x4", "ring(8", "ring(3",
    "hybrid_cube_mesh(8", "fully_connected(6", "dgx-1-v100", "wafer-84", "tpu-v4",
]  # fmt: skip


@pytest.mark.parametrize("name", HAMILTONIAN)
def test_where_there_is_a_hamiltonian_cycle_the_ring_is_one(name: str) -> None:
    topology = load(name)
    order = ring_order(topology, everyone(topology))
    assert sorted(order) == list(everyone(topology))
    assert set(hops(topology, order)) == {1}
    assert load_of_links(topology, order) == 1


@pytest.mark.parametrize("name", ["mesh(3x3", "mesh(5x3", "mesh(7x9", "mesh(3x3x3", "mesh(3x5x3"])
def test_on_a_mesh_of_odd_sides_one_step_is_two_links_long_and_none_is_shared(name: str) -> None:
    """A mesh is bipartite, so an odd number of its nodes has no Hamiltonian cycle."""
    topology = load(name)
    order = ring_order(topology, everyone(topology))
    assert hops(topology, order) == [1] * (len(order) - 1) + [2]
    assert load_of_links(topology, order) == 1


def test_the_ring_of_a_wafer_uses_84_links() -> None:
    topology = load("wafer-84")
    used = [link.name for route in routes(topology, ring_order(topology, range(84))) for link in route]
    assert len(used) == len(set(used)) == 84


def test_the_ring_of_a_dgx_1_uses_the_doubled_nvlinks() -> None:
    topology = load("dgx-1-v100")
    assert ring_order(topology, range(8)) == (0, 3, 2, 1, 5, 6, 7, 4)
    assert {link.bandwidth for route in routes(topology, ring_order(topology, range(8))) for link in route} == {50e9}


@pytest.mark.parametrize("name", ["switch(8", "bus(8", "fully_connected(8", "dgx-h100"])
def test_where_all_orders_are_alike_the_ring_is_the_order_given(name: str) -> None:
    topology = load(name)
    shuffled = tuple(random.Random(3).sample(range(8), 8))
    assert ring_order(topology, shuffled) == shuffled


@pytest.mark.parametrize(
    ("ranks", "longest"),
    [
        ([5, 6, 9, 10], 1),  # a square in the middle
        ([0, 1, 2, 3, 4, 5, 6, 7], 1),  # two rows
        ([1, 5, 9, 13, 2, 6, 10, 14], 1),  # two columns
        ([0, 1, 2, 4, 5, 6, 8, 9, 10], 2),  # 3 x 3
        ([0, 1, 2, 3, 7, 11, 15, 14, 13, 12, 8, 4], 1),  # the rim, which is no rectangle
    ],
)
def test_a_part_of_a_mesh_has_a_ring_of_its_own(ranks: list[int], longest: int) -> None:
    topology = load("mesh(4x4")
    order = ring_order(topology, ranks)
    assert sorted(order) == sorted(ranks)
    assert hops(topology, order)[-1] == longest
    assert load_of_links(topology, order) == 1


def test_a_row_goes_there_and_back() -> None:
    topology = load("mesh(4x4")
    assert ring_order(topology, [4, 5, 6, 7]) == (4, 5, 6, 7)
    assert load_of_links(topology, (4, 5, 6, 7)) == 1


def test_nodes_are_visited_one_after_another() -> None:
    topology = Topology.load("dgx-h100", gpus=32)
    order = ring_order(topology, [rank + 8 * node for rank in range(8) for node in range(4)])
    nodes = [rank // 8 for rank in order]
    assert sum(a != b for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)) == 4


def test_a_link_that_is_slow_in_one_direction_is_passed_in_the_other() -> None:
    slow: dict[str, Any] = {"from": "gpu0", "to": "gpu1", "bandwidth": "1 GB/s"}
    for shape in ([4, 2], [12, 7]):
        mesh = {"topology": "mesh", "shape": shape, "bandwidth": "10 GB/s", "overrides": [slow]}
        topology = Topology.from_dict(mesh)
        order = ring_order(topology, everyone(topology))
        assert min(link.bandwidth for route in routes(topology, order) for link in route) == 10e9
        assert set(hops(topology, order)) == {1}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_naming_the_ranks_in_another_order_gives_the_same_ring(data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(["mesh(4x4", "torus(4x4", "ring(9", "fat_tree(16", "hybrid_cube_mesh(8", "pcie_tree(8"])
    )
    topology = load(name)
    ranks = data.draw(st.lists(st.sampled_from(list(everyone(topology))), unique=True, min_size=3))
    order = ring_order(topology, ranks)
    assert sorted(order) == sorted(ranks)
    permuted = data.draw(st.permutations(ranks))
    again = ring_order(topology, permuted)
    if (order, again) == (tuple(ranks), tuple(permuted)):
        return  # all alike, so that any order is as good
    start = again.index(order[0])
    assert again[start:] + again[:start] == order


def test_small_rings_and_wrong_ones() -> None:
    topology = load("mesh(4x4")
    assert ring_order(topology, []) == ()
    assert ring_order(topology, [7]) == (7,)
    assert ring_order(topology, [7, 2]) == (7, 2)
    with pytest.raises(TopologyError, match="twice"):
        ring_order(topology, [1, 2, 1])
    with pytest.raises(TopologyError, match="rank 99 has no GPU"):
        ring_order(topology, [1, 2, 99])


@pytest.mark.parametrize(
    "name", ["switch(1024", "mesh(32x32", "torus(8x8x16", "torus(31x33", "fat_tree(1024", "tree(1024"]
)
def test_a_ring_of_a_thousand_shares_no_link_but_in_a_fat_tree(name: str) -> None:
    topology = load(name)
    order = ring_order(topology, everyone(topology))
    assert sorted(order) == sorted(everyone(topology))
    assert load_of_links(topology, order) == 1 or name.startswith("fat_tree")
