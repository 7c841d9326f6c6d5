"""Routes are the shortest by latency, then by hops, the same in every run, and quick to find."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triosim.errors import TopologyError
from triosim.networks.topology import Link, Node, NodeKind, Topology

GRAPHS = ["mesh(4x3", "torus(3x4", "fat_tree(16", "hybrid_cube_mesh(8", "tree(8", "pcie_tree(8", "ring(7", "bus(4"]


def names(route: tuple[Link, ...]) -> list[str]:
    return [link.name for link in route]


def square(**latencies: float) -> Topology:
    links = {"ab": "ab", "bd": "bd", "ac": "ac", "cd": "cd", "ad": "ad"}
    back = [Link(f"{name[::-1]}", name[1], name[0], 1e9, 1e-6) for name in links]
    there = [Link(name, name[0], name[1], 1e9, latencies.get(name, 1e-6)) for name in links]
    return Topology("square", [Node(name, "gpu") for name in "abcd"], there + back)


def test_less_latency_goes_before_fewer_hops() -> None:
    assert names(square(ad=3e-6).route("a", "d")) == ["ab", "bd"]
    assert names(square(ad=3e-6, ab=1.1e-6).route("a", "d")) == ["ac", "cd"]


def test_fewer_hops_go_before_what_was_declared_first() -> None:
    assert names(square(ad=2e-6).route("a", "d")) == ["ad"]


def test_of_equal_routes_the_one_declared_first_is_taken() -> None:
    assert names(square(ad=1.0).route("a", "d")) == ["ab", "bd"]
    assert [names(route) for route in square(ad=1.0).routes("a", "d")] == [["ab", "bd"], ["ac", "cd"]]


def test_latencies_tie_whatever_the_order_in_which_they_are_added() -> None:
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point."""
    ends = ["sa", "ab", "bt", "sc", "cd", "dt"]
    latencies = [0.1e-6, 0.2e-6, 0.3e-6, 0.3e-6, 0.2e-6, 0.1e-6]
    links = [Link(e, e[0], e[1], 1e9, latency) for e, latency in zip(ends, latencies, strict=True)]
    topology = Topology("ties", [Node(name, "switch") for name in "sabcdt"], links)
    assert len(topology.routes("s", "t")) == 2


def test_a_node_reaches_itself_over_no_link() -> None:
    assert square().route("a", "a") == ()
    assert square().routes(0, 0) == ((),)


def test_ranks_and_names_give_the_same_route() -> None:
    assert square().route(0, 3) == square().route("a", "d") == square().route(0, "d")


def test_a_memory_forwards_nothing_and_a_host_does() -> None:
    def through(kind: NodeKind) -> list[list[str]]:
        links = [Link(n, n[0], n[1], 1e9, 1e-6) for n in ("am", "mb", "bm", "ma")]
        slow = [Link(n, n[0], n[1], 1e9, 5e-6) for n in ("ab", "ba")]
        nodes = [Node("a", "gpu"), Node("b", "gpu"), Node("m", kind)]
        topology = Topology("memory", nodes, links + slow)
        return [names(topology.route(x, y)) for x, y in (("a", "b"), ("m", "a"), ("b", "m"))]

    assert through("memory") == [["ab"], ["ma"], ["bm"]]
    assert through("host") == [["am", "mb"], ["ma"], ["bm"]]


def test_the_host_of_a_gpu_is_the_nearest_one() -> None:
    assert Topology.load("pcie_tree(8, bandwidth=1 GB/s)").host_of("gpu7") == "host0"
    assert Topology.load("ring(4, bandwidth=1 GB/s)").host_of(0) is None
    links = [
        {"from": "host0", "to": "gpu0", "latency": "5 us"},
        {"from": "host1", "to": "gpu1", "latency": "1 us"},
        {"from": "gpu0", "to": "gpu1", "latency": "1 us"},
    ]
    topology = Topology.from_dict({"bandwidth": 1e9, "links": links})
    assert (topology.host_of(0), topology.host_of(1)) == ("host1", "host1")


@pytest.mark.parametrize("name", GRAPHS)
def test_routes_are_as_short_as_another_implementation_finds_and_are_paths(name: str) -> None:
    topology = Topology.load(f"{name}, bandwidth=1 GB/s, latency=1 us)")
    check_against_networkx(topology)


def check_against_networkx(topology: Topology) -> None:
    graph = networkx.DiGraph()
    for link in topology.links.values():
        price = round(link.latency * 1e15) * 1000 + 1
        old = graph.get_edge_data(link.source, link.destination, {"price": price})["price"]
        graph.add_edge(link.source, link.destination, price=min(price, old))
    for a in topology.nodes:
        lengths = networkx.single_source_dijkstra_path_length(graph, a, weight="price") if a in graph else {a: 0}
        for b in topology.nodes:
            if b not in lengths:
                with pytest.raises(TopologyError, match="no links lead"):
                    topology.route(a, b)
                continue
            for route in (topology.route(a, b), *topology.routes(a, b, limit=8)):
                assert sum(round(link.latency * 1e15) * 1000 + 1 for link in route) == lengths[b]
                path = [a, *(link.destination for link in route)]
                assert path == [*(link.source for link in route), b]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3)), max_size=24))
def test_routes_through_any_graph_are_the_shortest(nodes: int, ends: list[tuple[int, int, int]]) -> None:
    links = [
        Link(f"l{i}", f"n{a}", f"n{b}", 1e9, us * 1e-6)
        for i, (a, b, us) in enumerate(ends)
        if a != b and a < nodes and b < nodes
    ]
    for routing in ("shortest", "ecmp"):
        topology = Topology("any", [Node(f"n{i}", "switch") for i in range(nodes)], links, routing=routing)  # type: ignore[arg-type]
        check_against_networkx(topology)
        check_against_networkx(topology)  # again, from what was kept


def test_ecmp_spreads_pairs_over_all_equal_routes_and_is_the_same_in_every_run() -> None:
    tree = Topology.load("fat_tree(16, bandwidth=1 GB/s)")
    used = {tree.route(a, b) for a in range(4) for b in range(12, 16)}
    cores = {link.source for route in used for link in route if link.source.startswith("core")}
    assert len(cores) == 4
    code = (
        "from triosim.networks.topology import Topology as T; t = T.load('fat_tree(16, bandwidth=1 GB/s)');"
        "print([[l.name for l in t.route(a, 15 - a)] for a in range(16)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_a_detour_appears_when_a_link_is_slow_in_latency() -> None:
    slow: dict[str, Any] = {"from": "gpu0", "to": "gpu1", "latency": "10 us"}
    ring = {"topology": "ring", "gpus": 4, "bandwidth": 1e9, "latency": "1 us", "overrides": [slow]}
    assert len(Topology.from_dict(ring).route(0, 1)) == 3
    assert len(Topology.from_dict(ring).route(1, 0)) == 1


@pytest.mark.parametrize(
    "name", ["switch(1024, bandwidth=1 GB/s, latency=1 us)", "dgx-h100", "fat_tree(1024, bandwidth=1 GB/s)"]
)
def test_a_thousand_gpus_find_their_neighbours_over_links_that_join(name: str) -> None:
    topology = Topology.load(name, gpus=1024)
    for rank in range(1024):
        route = topology.route(rank, (rank + 1) % 1024)
        ends = [topology.node(rank), *(link.destination for link in route)]
        assert [link.source for link in route] == ends[:-1]
        assert ends[-1] == topology.node((rank + 1) % 1024)


def test_many_routes_over_one_topology_do_not_change_with_the_order_in_which_they_are_asked() -> None:
    pairs = [(a, b) for a in range(16) for b in range(16)]
    orders = [pairs, random.Random(0).sample(pairs, len(pairs))]
    found = []
    for order in orders:
        topology = Topology.load("torus(4x4, bandwidth=1 GB/s)")
        routes = {pair: names(topology.route(*pair)) for pair in order}
        found.append([routes[pair] for pair in pairs])
    assert found[0] == found[1]
