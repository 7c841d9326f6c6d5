"""Graphs on the engine: what may overlap does, groups are real communicators, and what cannot run is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from chakra.graphs import all_reduce, computation, message, node, write_graphs, write_inputs

import triosim
from triosim.chakra.nodes import CollectiveType, Node, NodeType
from triosim.cli import run
from triosim.errors import TriosimError

MIB = 1 << 20


def simulated(folder: Path, graphs: Sequence[Iterable[Node]], **options: Any) -> triosim.Result:
    prefix = write_graphs(folder, graphs)
    write_inputs(folder, len(graphs), block="Switch")
    groups = options.pop("groups", None)
    if groups is not None:
        (folder / "comm_group.json").write_text(json.dumps(groups), encoding="utf-8")
        options["groups"] = str(folder / "comm_group.json")
    return triosim.simulate(str(prefix), topology=str(folder / "network.yml"), **options)


def test_a_chain_takes_the_sum_of_its_durations(tmp_path: Path) -> None:
    found = simulated(tmp_path, [[computation(0, 5), computation(1, 7, 0)]] * 2)
    assert found.step_time_s == pytest.approx(12e-6)


def test_each_rank_says_when_it_ended(tmp_path: Path) -> None:
    """As ASTRA-sim does: 5 and 12 us, in a step of 12."""
    found = simulated(tmp_path, [[computation(0, 5)], [computation(0, 5), computation(1, 7, 0)]])
    assert [rank.finished_s for rank in found.data.ranks] == pytest.approx([5e-6, 12e-6])
    assert found.data.ranks[0].idle_s == pytest.approx(7e-6)


def test_a_computation_overlaps_a_collective_that_it_does_not_wait_for(tmp_path: Path) -> None:
    one = simulated(tmp_path, [[all_reduce(0, MIB)]] * 4).step_time_s
    both = simulated(tmp_path, [[all_reduce(0, MIB), computation(1, 500)]] * 4).step_time_s
    after = simulated(tmp_path, [[all_reduce(0, MIB), computation(1, 500, 0)]] * 4).step_time_s
    assert both == pytest.approx(500e-6)
    assert after == pytest.approx(one + 500e-6)


def test_collectives_of_two_groups_run_at_once(tmp_path: Path) -> None:
    """By ASTRA-sim's rules a rank has one slot for communication; here each communicator has a stream of its own."""
    groups = {"1": [0, 1], "2": [0, 2]}
    first, second = all_reduce(0, MIB, pg_name="1"), all_reduce(1, MIB, pg_name="2")
    both = simulated(tmp_path, [[first, second], [first], [second], []], groups=groups).step_time_s
    alone = simulated(tmp_path, [[first], [first], [], []], groups=groups).step_time_s
    assert both < 2 * alone + 1e-6
    assert both >= alone


@pytest.mark.parametrize("written", [repr, json.dumps])
def test_groups_may_be_declared_by_a_node(tmp_path: Path, written: Callable[[list[str]], str]) -> None:
    """As PyTorch's converter does, in Python's or JSON's quotes; a group without ranks is all of them."""
    groups = [{"pg_name": "default_pg", "ranks": []}, {"pg_name": "7", "ranks": [2, 3]}]
    declared = Node(9, "## process_group:init ##", NodeType.METADATA, (), (), 0, 0, {}, written([json.dumps(groups)]))
    other = Node(8, "", NodeType.METADATA, (), (), 0, 0, {}, "[1, 'x']")
    pair, everyone = all_reduce(0, MIB, pg_name="7"), all_reduce(1, 2 * MIB, pg_name="default_pg")
    found = simulated(tmp_path, [[everyone, declared, other], [everyone], [pair, everyone], [pair, everyone]])
    assert {(row.bytes, row.group_size) for row in found.data.collectives} == {(MIB, 2), (2 * MIB, 4)}


def test_a_cpu_operation_takes_none_of_the_gpu(tmp_path: Path) -> None:
    on_cpu = computation(0, 30)._replace(attributes={"is_cpu_op": True})
    assert simulated(tmp_path, [[on_cpu, computation(1, 20)]] * 2).step_time_s == pytest.approx(30e-6)


def test_the_gpu_computes_the_lowest_id_that_is_ready_one_at_a_time(tmp_path: Path) -> None:
    """Node 1 is ready when node 3 (10 us on the CPU) is; the GPU has begun node 2 by then, and takes them one after another."""
    on_cpu = computation(3, 10)._replace(attributes={"is_cpu_op": True})
    found = simulated(tmp_path, [[computation(1, 5, 3), computation(2, 20), on_cpu]] * 2)
    assert found.step_time_s == pytest.approx(25e-6)


def test_an_all_gather_says_what_each_rank_gives(tmp_path: Path) -> None:
    kind = node(0, NodeType.COMM_COLL, comm_type=int(CollectiveType.ALL_GATHER), comm_size=MIB)
    (row,) = simulated(tmp_path, [[kind]] * 4).data.collectives
    assert (row.kind, row.bytes) == ("all_gather", 4 * MIB)


def test_a_pipeline_of_messages_waits_for_what_it_receives(tmp_path: Path) -> None:
    first = [computation(0, 100), message(1, NodeType.COMM_SEND, MIB, 0, peer=1)]
    second = [message(0, NodeType.COMM_RECV, MIB, peer=0), computation(1, 100, 0)]
    found = simulated(tmp_path, [first, second])
    assert found.step_time_s == pytest.approx(200e-6 + 2 * 500e-9 + MIB / (50 * 2**30), rel=0.01)


def test_in_order_streams_cannot_wait_for_each_other_in_a_circle(tmp_path: Path) -> None:
    """Rank 0: node 0 needs what rank 1 sends once it has got what node 5 computes, so that 5 comes first."""
    first = [
        computation(0, 10, 9),
        message(9, NodeType.COMM_RECV, 8, peer=1),
        computation(5, 10),
        message(6, NodeType.COMM_SEND, 8, 5, peer=1),
    ]
    second = [message(0, NodeType.COMM_RECV, 8, peer=0), message(1, NodeType.COMM_SEND, 8, 0, peer=0)]
    assert simulated(tmp_path, [first, second]).step_time_s > 20e-6


def test_equal_ranks_are_simulated_once_and_give_the_same(tmp_path: Path) -> None:
    graph = [computation(0, 50), all_reduce(1, MIB, 0), computation(2, 20), all_reduce(3, 4 * MIB, 1, 2)]
    times = [simulated(tmp_path, [graph] * 16, fold=fold).step_time_s for fold in (True, False)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_a_rank_may_do_nothing_but_load(tmp_path: Path) -> None:
    memory = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 500, "remote-mem-bw": 1}
    (tmp_path / "remote_memory.json").write_text(json.dumps(memory), encoding="utf-8")
    found = simulated(tmp_path, [[node(0, NodeType.MEM_LOAD, tensor_size=1500)]] * 2)
    assert found.step_time_s == pytest.approx(2e-6)


def test_memory_accesses_take_latency_and_bytes_over_bandwidth(tmp_path: Path) -> None:
    memory = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 1000, "remote-mem-bw": 100}
    (tmp_path / "memory.json").write_text(json.dumps(memory), encoding="utf-8")
    graph = [node(0, NodeType.MEM_LOAD, tensor_size=100_000), computation(1, 3, 0)]
    found = simulated(tmp_path, [graph] * 2, memory=str(tmp_path / "memory.json"))
    assert found.step_time_s == pytest.approx(1e-6 + 1e-6 + 3e-6)


def test_files_beside_the_graphs_are_read_where_none_are_given(tmp_path: Path) -> None:
    """A GFLOP at 1 TFLOP/s is a millisecond; the switch of network.yml is the topology, unless one is given."""
    prefix = str(write_graphs(tmp_path, [[computation(0, 0, num_ops=10**9, tensor_size=8), all_reduce(1, MIB, 0)]] * 4))
    system = {"roofline-enabled": 1, "peak-perf": 1, "local-mem-bw": 1000, "colour": 3}
    write_inputs(tmp_path, 4, block="Switch", system=system)
    found = triosim.simulate(prefix)
    beside = "read beside the graphs: network.yml, system.json"
    assert [beside, f"{tmp_path / 'system.json'}: the key 'colour' is not read"] == list(found.data.notes[:2])
    given = triosim.simulate(prefix, topology=str(tmp_path / "network.yml"), system=str(tmp_path / "system.json"))
    assert found.step_time_s == given.step_time_s > 1e-3
    assert beside not in given.data.notes
    on_node = triosim.simulate(prefix, topology="dgx-h100")
    assert on_node.data.notes[0] == "read beside the graphs: system.json"
    assert 1e-3 < on_node.step_time_s < found.step_time_s


def test_a_roofline_needs_both_its_figures(tmp_path: Path) -> None:
    prefix = str(write_graphs(tmp_path, [[computation(0, 0, num_ops=1, tensor_size=8)]] * 2))
    write_inputs(tmp_path, 2, system={"roofline-enabled": 1, "local-mem-bw": 5})
    with pytest.raises(TriosimError, match=r"system\.json: roofline-enabled without a peak-perf and a local-mem-bw"):
        triosim.simulate(prefix)


def test_a_study_needs_only_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graphs(tmp_path, [[all_reduce(0, MIB, pg_name="1")]] * 2)
    write_inputs(tmp_path, 2)
    (tmp_path / "comm_group.json").write_text('{"1": [1, 0]}', encoding="utf-8")
    assert run(["simulate", str(tmp_path), "--rules", "astra-sim"]) == 0
    assert "read beside the graphs: network.yml, system.json, comm_group.json" in capsys.readouterr().out
    (tmp_path / "system.json").unlink()
    assert run(["simulate", str(tmp_path), "--rules", "astra-sim"]) == 2
    assert "--system: is missing, which astra-sim's rules need; give system.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("PER_NPU_MEMORY_EXPANSION", (7, 104)), ("PER_NODE_MEMORY_EXPANSION", (11, 106)), ("MEMORY_POOL", (19, 110))],
)
@pytest.mark.parametrize("fold", [True, False])
def test_ranks_that_share_a_memory_take_turns(
    tmp_path: Path, kind: str, expected: tuple[int, int], *, fold: bool
) -> None:
    """Accesses of 2 us: of two a rank, the last is the last of all. What a rank accesses next waits behind the others."""
    memory = {"memory-type": kind, "remote-mem-latency": 1000, "remote-mem-bw": 100, "num-npus-per-node": 2}
    (tmp_path / "memory.json").write_text(json.dumps(memory), encoding="utf-8")
    first, second = node(0, NodeType.MEM_LOAD, tensor_size=100_000), node(1, NodeType.MEM_STORE, 0, tensor_size=100_000)
    for graphs, us in zip(
        (
            [[first, second, computation(2, 3, 1)]] * 4,
            [[first, second, computation(2, 100, 1)], [first], [first], [first]],
        ),
        expected,
        strict=True,
    ):
        found = simulated(tmp_path, graphs, memory=str(tmp_path / "memory.json"), fold=fold)
        assert found.step_time_s == pytest.approx(us * 1e-6)


@pytest.mark.parametrize(
    ("graphs", "what"),
    [
        ([[all_reduce(0, 8)], [computation(0, 1)]], "rank 1 has 0 collectives of all ranks, and this is number 1"),
        ([[all_reduce(0, 8)], [all_reduce(7, 9)]], "it meets ALL_REDUCE of 9 bytes, node 7 'n7' of rank 1"),
        ([[message(0, NodeType.COMM_SEND, 8, peer=1)], []], r"w\.0\.et: node 0 'n0': there is no receive for it"),
        ([[all_reduce(0, 8, pg_name="4")]] * 2, "there is no group '4'; give it in --groups comm_group.json"),
        ([[message(0, NodeType.COMM_SEND, 8, peer=9)], []], "a message from 0 to 9 on rank 0 of 2"),
        ([[node(0, NodeType.MEM_STORE, tensor_size=8)]] * 2, "there is no remote memory; give --memory"),
        ([[Node(0, "", 11, (), (), 0, 0, {})]] * 2, "a node of type 11|there is no type 11"),
        (
            [
                [message(0, NodeType.COMM_RECV, 8, peer=1), message(1, NodeType.COMM_SEND, 8, 0, peer=1)],
                [message(0, NodeType.COMM_RECV, 8, peer=0), message(1, NodeType.COMM_SEND, 8, 0, peer=0)],
            ],
            "it waits for node 1 of rank 1, which waits for it in turn",
        ),
    ],
)
def test_what_cannot_run_is_named(tmp_path: Path, graphs: list[list[Node]], what: str) -> None:
    with pytest.raises(TriosimError, match=what):
        simulated(tmp_path, graphs)


def test_graphs_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = write_graphs(tmp_path, [[computation(0, 5), all_reduce(1, MIB, 0)]] * 2)
    assert run(["show", str(prefix)]) == 0
    out = capsys.readouterr().out
    assert "ALL_REDUCE" in out
    assert "2.10 MB" in out


def test_options_of_graphs_have_no_effect_on_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "llama3-8b", "--groups", "x.json"]) == 2
    assert "--groups: has no effect without Chakra graphs" in capsys.readouterr().err


def test_graphs_are_converted_to_task_streams(tmp_path: Path) -> None:
    graph = [computation(0, 50), all_reduce(1, MIB, 0), computation(2, 20), all_reduce(3, 4 * MIB, 1, 2)]
    before = simulated(tmp_path, [graph] * 4).step_time_s
    assert run(["convert", str(tmp_path / "w"), str(tmp_path / "w.json.gz")]) == 0
    after = triosim.simulate(str(tmp_path / "w.json.gz"), topology=str(tmp_path / "network.yml")).step_time_s
    assert after == pytest.approx(before, rel=1e-12)
