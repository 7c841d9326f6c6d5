"""ASTRA-sim's rules, worked by hand: E is the endpoint delay, L a message's delay, R the reduction over local memory.

Bandwidth is 50 GB/s of 2^30 bytes, so a message of m bytes takes L = floor(500 + m / 53.6870912) ns to the next rank, and
R = 3 floor(m / 1600) ns.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from chakra.graphs import SYSTEM, all_reduce, computation, message, node, write_graphs, write_inputs

from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.chakra.writing import write_et
from triosim.engine.astra_sim.npu import Npu
from triosim.engine.astra_sim.run import Outcome, Settings, run
from triosim.engine.astra_sim.study import StudyFiles, read_study, simulate_study
from triosim.errors import SimulationError
from validation import astra_sim
from validation.report import DataAbsent

E, SIZE, N = 10, 1 << 20, 8


def delay(size: float, hops: int = 1) -> int:
    return int(500 * hops + size / (50 * 2**30 / 1e9))


def reduction(size: float) -> int:
    return 3 * int(size / 1600)


def outcome(
    folder: Path, graphs: Sequence[Iterable[Node]], backend: str = "congestion-unaware", **inputs: Any
) -> Outcome:
    prefix = write_graphs(folder, graphs)
    groups, memory = inputs.pop("groups", None), inputs.pop("memory", None)
    settings = Settings(backend, injection_scale=inputs.pop("scale", 1.0), rendezvous=inputs.pop("rendezvous", False))
    fold = inputs.pop("fold", None)
    write_inputs(folder, len(graphs), **inputs)
    if memory is not None:
        (folder / "remote_memory.json").write_text(json.dumps(memory), encoding="utf-8")
    if groups is not None:
        (folder / "comm_group.json").write_text(groups, encoding="utf-8")
    files = StudyFiles(
        prefix,
        folder / "network.yml",
        folder / "system.json",
        memory and folder / "remote_memory.json",
        groups and folder / "comm_group.json",
    )
    study = read_study(files)
    return run(study.graphs, study.inputs, settings, fold=fold)


def cycles(*given: Any, **inputs: Any) -> list[int]:
    found = outcome(*given, **inputs)
    assert not found.unfinished
    return [found.ranks[rank].cycles for rank in sorted(found.ranks)]


def collective(kind: CollectiveType, size: int = SIZE) -> list[list[Node]]:
    one = node(1, NodeType.COMM_COLL, comm_type=int(kind), comm_size=size)
    return [[one]] * N


def with_algorithm(name: str, **keys: Any) -> dict[str, Any]:
    lists = {key: [name] for key in SYSTEM if key.endswith("-implementation")}
    return {**SYSTEM, **lists, **keys}


@pytest.mark.parametrize(
    ("kind", "message_size", "expected"),
    [
        (CollectiveType.ALL_REDUCE, SIZE // N, 2 * (N - 1) * delay(SIZE / N) + (2 * N - 1) * E + (N - 1) * reduction(SIZE / N)),
        (CollectiveType.REDUCE_SCATTER, SIZE // N, (N - 1) * (delay(SIZE / N) + reduction(SIZE / N)) + N * E),
        (CollectiveType.ALL_GATHER, SIZE, (N - 1) * delay(SIZE) + N * E),
        (CollectiveType.ALL_TO_ALL, SIZE // N, N * (N - 1) // 2 * (delay(SIZE / N) + E) + E),
    ],
)  # fmt: skip
def test_a_ring(tmp_path: Path, kind: CollectiveType, message_size: int, expected: int) -> None:
    """The bytes of each rank's messages are counted too: the last all-to-all has 28 steps of 7 peers."""
    found = outcome(tmp_path, collective(kind))
    assert {rank.cycles for rank in found.ranks.values()} == {expected}
    assert found.dimension_bytes[0] % message_size == 0


def test_chunks_that_run_one_at_a_time_take_their_time_each(tmp_path: Path) -> None:
    four = cycles(tmp_path, collective(CollectiveType.ALL_GATHER), system={**SYSTEM, "preferred-dataset-splits": 4})
    assert set(four) == {4 * ((N - 1) * delay(SIZE / 4) + N * E)}


def test_chunks_queue_for_those_before_them(tmp_path: Path) -> None:
    """Of four chunks the last waits for three; and each rank sends seven messages a chunk."""
    found = outcome(tmp_path, collective(CollectiveType.ALL_GATHER), system={**SYSTEM, "preferred-dataset-splits": 4})
    chunk = (N - 1) * delay(SIZE / 4) + N * E
    assert found.queueing == [N * (1 + 2 + 3) * chunk]
    assert found.dimension_bytes == [N * (N - 1) * SIZE]


def test_a_remainder_adds_a_whole_chunk(tmp_path: Path) -> None:
    size = 4 * 100_000 + 3
    five = cycles(
        tmp_path, collective(CollectiveType.ALL_GATHER, size), system={**SYSTEM, "preferred-dataset-splits": 4}
    )
    assert set(five) == {5 * ((N - 1) * delay(100_000) + N * E)}


def test_direct_sends_to_all_at_once(tmp_path: Path) -> None:
    found = cycles(tmp_path, collective(CollectiveType.ALL_REDUCE), system=with_algorithm("direct"), block="Switch")
    assert set(found) == {2 * delay(SIZE / N, hops=2) + 3 * E + reduction(SIZE / N)}


def test_halving_doubling_reduces_by_the_size_that_it_sends_next(tmp_path: Path) -> None:
    found = cycles(
        tmp_path,
        collective(CollectiveType.ALL_REDUCE),
        system=with_algorithm("halvingDoubling"),
        block="FullyConnected",
    )
    down = sum(delay(SIZE / part) for part in (2, 4, 8))
    assert set(found) == {2 * down + 7 * E + reduction(SIZE / 4) + reduction(SIZE / 8)}


def test_a_tree_that_no_collective_uses_harms_nobody(tmp_path: Path) -> None:
    """Six ranks have no double binary tree, and ASTRA-sim crashes at the first all-reduce, not before."""
    graphs = [[computation(1, 5)]] * 6
    assert cycles(tmp_path, graphs, system=with_algorithm("doubleBinaryTree")) == [5000] * 6


@pytest.mark.parametrize(
    ("system", "scale", "expected"), [({**SYSTEM, "endpoint-delay": 7}, 1.5, 10), (SYSTEM, 3.0, 30)]
)
def test_an_endpoint_delay_that_is_given_is_scaled_and_cut_to_a_whole(
    tmp_path: Path, system: dict[str, Any], scale: float, expected: int
) -> None:
    """An all-gather between two ranks: E, the message, E."""
    graphs = [[node(1, NodeType.COMM_COLL, comm_type=2, comm_size=SIZE)]] * 2
    assert cycles(tmp_path, graphs, system=system, scale=scale) == [2 * expected + delay(SIZE)] * 2
    absent = {key: value for key, value in system.items() if key != "endpoint-delay"}
    assert cycles(tmp_path, graphs, system=absent, scale=scale) == [2 * E + delay(SIZE)] * 2


def test_links_send_one_message_after_another_where_congestion_is_modelled(tmp_path: Path) -> None:
    """Ranks 0 and 1 send to 2 through a switch: the second message waits for the link from it."""
    size = 1 << 20
    sends = [[message(1, NodeType.COMM_SEND, size, peer=2)]] * 2
    receives = [message(1, NodeType.COMM_RECV, size, peer=0), message(2, NodeType.COMM_RECV, size, peer=1)]
    once = delay(size) - 500
    assert max(cycles(tmp_path, [*sends, receives], block="Switch")) == delay(size, hops=2)
    assert max(cycles(tmp_path, [*sends, receives], "congestion-aware", block="Switch")) == 2 * delay(size) + once


def test_computing_and_communicating_overlap_and_two_collectives_do_not(tmp_path: Path) -> None:
    both = [computation(1, 60), all_reduce(2, SIZE), all_reduce(3, SIZE)]
    one = cycles(tmp_path, [[all_reduce(2, SIZE)]] * 4)
    assert set(cycles(tmp_path, [both] * 4)) == {2 * one[0]}
    assert one[0] > 30_000


def test_the_free_node_with_the_lowest_id_is_issued_first(tmp_path: Path) -> None:
    """Nodes 5 and 2 are free together, and 9 waits for 2 alone: it overlaps nothing, but comes before what waits for 5."""
    graph = [computation(5, 10), computation(2, 1), all_reduce(9, 80, 2)]
    found = outcome(tmp_path, [graph] * 2)
    assert found.ranks[0].busy["computing"] == 11_000
    assert found.ranks[0].cycles == 11_000


def test_exposed_communication_is_what_no_computation_of_the_gpu_covers(tmp_path: Path) -> None:
    found = outcome(tmp_path, [[computation(1, 7), all_reduce(2, 80, 1)]] * 2)
    rank = found.ranks[0]
    assert rank.exposed == rank.cycles - 7_000 == rank.busy["communicating"]


@pytest.mark.parametrize(
    ("graphs", "inputs", "why"),
    [
        ([[message(1, NodeType.COMM_RECV, 8, peer=1)], []], {}, "it waits for messages or nodes that never come"),
        ([[node(1, NodeType.COMM_COLL, comm_type=9, comm_size=8)]] * 2, {}, "a collective of type 9 is not simulated"),
        ([[node(1, NodeType.MEM_LOAD, tensor_size=8)]] * 2, {}, "there is no remote memory"),
        ([[all_reduce(1, 64, pg_name="3")]] * 2, {}, "there is no group 3"),
        ([[all_reduce(1, 64, pg_name="1")], [], []], {"groups": '{"1": [0]}'}, "it waits for messages"),
        ([[message(1, NodeType.COMM_SEND, 8, peer=9)], []], {}, "rank 9, to which rank 0 sends, is not on the network"),
        ([[all_reduce(1, 640)]] * 6, {"system": with_algorithm("halvingDoubling")}, "it waits for messages"),
        ([[all_reduce(1, 64)]] * 2, {"system": {**SYSTEM, "endpoint-delay": 0}}, "takes no time at tick 0"),
        (
            [[all_reduce(1, 64, pg_name="1")]] * 4 + [[]] * 4,
            {"system": with_algorithm("doubleBinaryTree"), "groups": '{"1": [0, 1, 2, 3]}'},
            "doubleBinaryTree among 4 ranks, which crashes: use a power of two, and no group",
        ),
    ],
)
def test_what_never_ends_there_says_why(
    tmp_path: Path, graphs: list[list[Node]], inputs: dict[str, Any], why: str
) -> None:
    found = outcome(tmp_path, graphs, **inputs)
    assert 0 in found.unfinished
    assert why in found.unfinished[0]
    groups = tmp_path / "comm_group.json" if "groups" in inputs else None
    study = read_study(StudyFiles(tmp_path / "w", tmp_path / "network.yml", tmp_path / "system.json", groups=groups))
    with pytest.raises(SimulationError, match="does not end by ASTRA-sim's rules"):
        simulate_study(study, Settings())


def in_mesh(rank: int, *nodes: Node) -> list[Node]:
    """Nodes whose groups 'tp' and 'dp' are those of a rank of eight in pairs: 1 to 4 next to each other, 5 and 6 across."""
    numbers = {"tp": str(1 + rank // 2), "dp": str(5 + rank % 2)}
    named = [numbers.get(str(one.attributes.get("pg_name"))) for one in nodes]
    return [
        one if name is None else one._replace(attributes={**one.attributes, "pg_name": name})
        for one, name in zip(nodes, named, strict=True)
    ]


MESH = {str(1 + pair): [2 * pair, 2 * pair + 1] for pair in range(4)} | {"5": [0, 2, 4, 6], "6": [1, 3, 5, 7]}
STEP = (
    computation(0, 3),
    all_reduce(1, SIZE, 0, pg_name="tp"),
    computation(2, 40, 0),
    node(3, NodeType.COMM_COLL, 1, comm_type=int(CollectiveType.REDUCE_SCATTER), comm_size=SIZE, pg_name="dp"),
    all_reduce(4, 3 * SIZE, 2),
    computation(5, 1, 3, 4),
)


@pytest.mark.parametrize("keys", [{}, {"preferred-dataset-splits": 4, "active-chunks-per-dimension": 2}])
@pytest.mark.parametrize("block", ["Ring", "Switch"])
def test_ranks_that_do_the_same_are_simulated_once_and_end_at_the_same_tick(
    tmp_path: Path, keys: dict[str, int], block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of ranks 0, 2, 4, 6 go around a ring of eight in equal steps, and so does every pair."""
    graphs = [in_mesh(rank, *STEP) for rank in range(8)]
    inputs = {"system": {**SYSTEM, **keys}, "block": block, "groups": json.dumps(MESH)}
    every = outcome(tmp_path, graphs, fold=False, **inputs)
    simulated = list[int]()
    monkeypatch.setattr(Npu, "start", lambda npu, start=Npu.start: (simulated.append(npu.rank), start(npu)))
    once = outcome(tmp_path, graphs, **inputs)
    assert simulated == [0]
    assert once == every
    assert len(once.ranks) == 8


@pytest.mark.parametrize(
    ("graphs", "inputs"),
    [
        ([in_mesh(rank, computation(0, 3 + (rank == 5)), *STEP[1:]) for rank in range(8)], {}),
        ([in_mesh(rank, *STEP) for rank in range(8)], {"groups": json.dumps({**MESH, "5": [0, 4, 2, 6]})}),
        ([in_mesh(rank, *STEP) for rank in range(8)], {"system": with_algorithm("direct")}),
        ([in_mesh(rank, *STEP) for rank in range(8)], {"backend": "congestion-aware"}),
    ],
)
def test_ranks_that_differ_in_anything_are_simulated_each(
    tmp_path: Path, graphs: list[list[Node]], inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A duration, unequal steps around a ring, an algorithm for which order counts, links on which messages meet."""
    simulated = list[int]()
    monkeypatch.setattr(Npu, "start", lambda npu: simulated.append(npu.rank))
    outcome(tmp_path, graphs, **{"groups": json.dumps(MESH), **inputs})
    assert simulated == list(range(8))


@pytest.mark.parametrize("here", [True, False])
def test_a_custom_collective_is_the_graph_of_each_place_in_its_group(
    tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank computes for 2 us and sends 4,096 bytes; the all-reduce's own megabyte does not count. Nor does E.

    Paths are relative to system.json, or to the current folder.
    """
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    first = [computation(1, 2), message(2, NodeType.COMM_SEND, 4096, 1, peer=1)]
    for place, nodes in enumerate([first, [message(1, NodeType.COMM_RECV, 4096, peer=0)]]):
        write_et((other if here else tmp_path) / f"mine.{place}.et", nodes)
    system = {**SYSTEM, "all-reduce-implementation-custom": ["mine"]}
    graphs = [[all_reduce(1, SIZE)]] * 2
    folder = tmp_path / "study"
    folder.mkdir()
    if not here:
        system["all-reduce-implementation-custom"] = ["../mine"]
    assert cycles(folder, graphs, system=system) == [2000 + delay(4096)] * 2


def test_tags_meet_every_five_hundred_million(tmp_path: Path) -> None:
    send = message(1, NodeType.COMM_SEND, SIZE, peer=1, tag=500_000_007)
    assert cycles(tmp_path, [[send], [message(1, NodeType.COMM_RECV, SIZE, peer=0, tag=7)]]) == [delay(SIZE)] * 2


def test_a_receiver_asks_first_under_the_rendezvous_protocol(tmp_path: Path) -> None:
    """The receive is posted after 5 us of computing; its 8,192 bytes go to the sender, and then the message comes."""
    first = [message(1, NodeType.COMM_SEND, SIZE, peer=1)]
    second = [computation(1, 5), message(2, NodeType.COMM_RECV, SIZE, 1, peer=0)]
    assert cycles(tmp_path, [first, second]) == [delay(SIZE)] * 2
    asked = cycles(tmp_path, [first, second], rendezvous=True)
    assert asked == [5000 + delay(8192) + delay(SIZE)] * 2


def test_a_broadcast_lasts_its_duration_and_a_replayed_node_too(tmp_path: Path) -> None:
    broadcast = node(1, NodeType.COMM_COLL, us=9, comm_type=int(CollectiveType.BROADCAST), comm_size=SIZE)
    assert cycles(tmp_path, [[broadcast, all_reduce(2, SIZE, 1)._replace(duration_us=0)]] * 2)[0] > 9001
    replayed = outcome(tmp_path, [[broadcast, all_reduce(2, SIZE, 1)]] * 2, system={**SYSTEM, "replay-only": 1})
    assert (replayed.ranks[0].cycles, replayed.ranks[0].exposed) == (9001, 0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("PER_NPU_MEMORY_EXPANSION", [1003, 1003, 1003, 1003]),
        ("PER_NODE_MEMORY_EXPANSION", [1003, 2006, 1003, 2006]),
        ("MEMORY_POOL", [1003, 2006, 3009, 4012]),
    ],
)
def test_remote_memory_serves_one_access_at_a_time_where_it_is_shared(
    tmp_path: Path, kind: str, expected: list[int]
) -> None:
    """3 ns and 1,000 bytes: 1.9 GB/s are cut to 1 byte a ns."""
    memory = {"memory-type": kind, "remote-mem-latency": 3.7, "remote-mem-bw": 1.9, "num-npus-per-node": 2}
    assert cycles(tmp_path, [[node(1, NodeType.MEM_LOAD, tensor_size=1000)]] * 4, memory=memory) == expected


def test_a_message_pays_the_first_dimension_in_which_its_ends_differ(tmp_path: Path) -> None:
    """From rank 0 to rank 3 of 2 x 2: 400 ns and 1,024 bytes at 2^30 bytes a second, whatever the second dimension costs."""
    write_graphs(
        tmp_path,
        [[message(1, NodeType.COMM_SEND, 1024, peer=3)], [], [], [message(1, NodeType.COMM_RECV, 1024, peer=0)]],
    )
    write_inputs(tmp_path, 4)
    network = "topology: [FullyConnected, Ring]\nnpus_count: [2, 2]\nbandwidth: [1, 9]\nlatency: [400, 9]\n"
    (tmp_path / "network.yml").write_text(network, encoding="utf-8")
    study = read_study(StudyFiles(tmp_path / "w", tmp_path / "network.yml", tmp_path / "system.json"))
    assert study.notes == ()
    assert simulate_study(study, Settings()).ranks[3].cycles == 400 + int(1024 / 2**30 * 1e9)


def test_a_list_that_leaves_dimensions_out_is_noted(tmp_path: Path) -> None:
    """The all-reduce is then one of the first dimension: of two ranks, between 0 and 1 and between 2 and 3."""
    write_graphs(tmp_path, [[all_reduce(1, SIZE)]] * 4)
    write_inputs(tmp_path, 4)
    network = "topology: [Switch, Ring]\nnpus_count: [2, 2]\nbandwidth: [50, 1]\nlatency: [500, 9]\n"
    (tmp_path / "network.yml").write_text(network, encoding="utf-8")
    study = read_study(StudyFiles(tmp_path / "w", tmp_path / "network.yml", tmp_path / "system.json"))
    what = "all-reduce-implementation is for the first dimension of 2: the others take no part"
    assert study.notes == (f"{tmp_path / 'system.json'}: {what}",)
    once = 2 * delay(SIZE / 2, hops=2) + 3 * E + reduction(SIZE / 2)
    assert [rank.cycles for rank in simulate_study(study, Settings()).ranks.values()] == [once] * 4


def test_a_small_group_is_a_ring_in_the_listed_order(tmp_path: Path) -> None:
    """Ranks 0, 2, 1, 3 on a ring of four: from 0 to 2 are two hops, 2 to 1 one, 1 to 3 two, 3 to 0 one; the slowest paces."""
    graphs = [[all_reduce(1, SIZE, pg_name="1")] if rank < 4 else [] for rank in range(8)]
    found = outcome(tmp_path, graphs, groups='{"1": [0, 2, 1, 3]}')
    straight = outcome(tmp_path, graphs, groups='{"1": [0, 1, 2, 3]}')
    assert found.ranks[0].cycles > straight.ranks[0].cycles
    assert found.ranks[7].cycles == 0


def test_a_sample_of_the_cases_ends_at_astra_sims_own_ticks() -> None:
    try:
        (row,) = astra_sim.rows()
    except DataAbsent as absent:
        pytest.skip(str(absent))
    assert row.cases > 300
    assert row.error == 0


def test_the_results_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("case", "backend", "rank", "cycles"))
        table.writerows([("a", "congestion_aware", 0, 7), ("b", "congestion_aware", "", "")])
    assert astra_sim.read_results(path) == {("a", "congestion_aware"): {0: 7}, ("b", "congestion_aware"): {}}
