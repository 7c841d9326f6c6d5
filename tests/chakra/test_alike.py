"""Ranks whose graphs differ in their groups alone: drawn workloads, simulated once for all ranks and rank by rank."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from chakra.graphs import SYSTEM, computation, node, write_graphs

import triosim
from triosim.chakra import streams
from triosim.chakra.alike import groups_by_place
from triosim.chakra.graph import RankGraph, rank_graph
from triosim.chakra.inputs.groups import read_groups
from triosim.chakra.inputs.network_file import NetworkDimension, NetworkFile
from triosim.chakra.inputs.system_file import read_system
from triosim.chakra.nodes import Node, NodeType
from triosim.engine.astra_sim.run import Inputs, Settings, run

KINDS = (0, 2, 6, 7)  # all-reduce, all-gather, all-to-all, reduce-scatter


def mesh(ranks: int, inner: int) -> dict[str, list[int]]:
    """The groups of neighbours, and of those in the same place, numbered from 1."""
    inside = [list(range(first, first + inner)) for first in range(0, ranks, inner)]
    across = [list(range(place, ranks, inner)) for place in range(inner)]
    return {str(number): members for number, members in enumerate([*inside, *across], start=1)}


def drawn(chance: random.Random, ranks: int, inner: int) -> list[list[Node]]:
    """Draw a graph of computations and collectives, for every rank in groups of its own."""
    plan = []
    for number in range(chance.randint(3, 12)):
        parents = chance.sample(range(number), min(number, chance.choice((0, 1, 1, 2))))
        what = chance.choice(("compute", "compute", "all", "inside", "across"))
        plan.append(
            (what, parents, chance.choice((0, 1, 3)), chance.choice(KINDS), chance.choice((8, 1000, 4096, 99_999)))
        )
    groups = mesh(ranks, inner)
    found = []
    for rank in range(ranks):
        own = [name for name, members in groups.items() if rank in members]
        nodes = []
        for number, (what, parents, us, kind, size) in enumerate(plan):
            if what == "compute":
                nodes.append(computation(number, us, *parents))
                continue
            named = {} if what == "all" else {"pg_name": own[what == "across"]}
            nodes.append(node(number, NodeType.COMM_COLL, *parents, comm_type=kind, comm_size=size, **named))
        found.append(nodes)
    return found


def drawn_system(chance: random.Random, dimensions: int) -> dict[str, Any]:
    keys = {key: ["ring"] * dimensions for key in SYSTEM if key.endswith("-implementation")}
    return {
        **SYSTEM,
        **keys,
        "preferred-dataset-splits": chance.choice((1, 2, 8)),
        "active-chunks-per-dimension": chance.choice((1, 2, 4)),
        "collective-optimization": chance.choice(("baseline", "localBWAware")),
        "endpoint-delay": chance.choice((1, 7, 10)),
    }


@pytest.mark.parametrize("seed", range(40))
def test_by_astra_sims_rules_one_rank_ends_when_all_do(tmp_path: Path, seed: int) -> None:
    """Latencies of no, and of whole, nanoseconds make many events of one tick."""
    chance = random.Random(seed)
    sizes, inner = chance.choice((((8,), 2), ((2, 4), 2), ((3, 2), 3), ((2, 2, 2), 4), ((6,), 3)))
    network = NetworkFile(
        tuple(
            NetworkDimension(
                chance.choice(("Ring", "Switch", "FullyConnected")), size, chance.choice((1.0, 50.0)), latency
            )
            for size, latency in zip(sizes, chance.choices((0.0, 1.0, 500.0), k=len(sizes)), strict=True)
        )
    )
    (tmp_path / "system.json").write_text(json.dumps(drawn_system(chance, len(sizes))), encoding="utf-8")
    (tmp_path / "groups.json").write_text(json.dumps(mesh(prod(sizes), inner)), encoding="utf-8")
    graphs = [rank_graph(Path("w.et"), nodes) for nodes in drawn(chance, prod(sizes), inner)]
    inputs = Inputs(
        network, read_system(tmp_path / "system.json"), groups=read_groups(tmp_path / "groups.json", prod(sizes))
    )
    settings = Settings(queues=chance.choice((1, 2)))
    assert run(graphs, inputs, settings) == run(graphs, inputs, settings, fold=False)


@pytest.mark.parametrize("seed", range(10))
def test_on_the_engine_the_order_of_one_is_that_of_all(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    prefix = str(write_graphs(tmp_path, drawn(chance, 8, 2)))
    (tmp_path / "comm_group.json").write_text(json.dumps(mesh(8, 2)), encoding="utf-8")
    options: dict[str, Any] = {"topology": "torus(4x2, bandwidth=50 GB/s, latency=1 us)", "fold": False}
    once = triosim.simulate(prefix, **options)
    monkeypatch.setattr(streams, "groups_by_place", lambda _: None)
    every = triosim.simulate(prefix, **options)
    assert once.step_time_s == pytest.approx(every.step_time_s, rel=1e-12)
    assert once.data.ranks == every.data.ranks


def test_what_differs_in_more_than_its_groups_is_not_alike() -> None:
    graphs = [rank_graph(Path("w.et"), nodes) for nodes in drawn(random.Random(3), 4, 2)]
    places = groups_by_place(graphs)
    assert places is not None
    assert all(len(names) == 4 for names in places.values())
    first = graphs[3].nodes[0]
    for changed in (first._replace(name="x"), first._replace(duration_us=9), first._replace(data_deps=(1,))):
        other: RankGraph = replace(graphs[3], nodes={**graphs[3].nodes, 0: changed})
        assert groups_by_place([*graphs[:3], other]) is None
    assert groups_by_place([*graphs[:3], replace(graphs[3], nodes={0: first})]) is None
