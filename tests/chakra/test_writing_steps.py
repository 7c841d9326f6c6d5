"""Steps that are written as Chakra graphs: read again they take the same time, and ASTRA-sim's rules run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.chakra.nodes import CollectiveType, NodeType
from triosim.chakra.reading import EtReader
from triosim.chakra.workload import read_workload
from triosim.cli import run
from triosim.config import RunConfig
from triosim.engine.astra_sim.run import Settings
from triosim.engine.astra_sim.study import StudyFiles, read_study, simulate_study
from triosim.pipeline.graph_writing import write_step

SWITCH = "switch(4, bandwidth=100 GB/s, latency=1 us)"
GPT = {"layers": 2, "gpu": "A100", "topology": SWITCH}


def written(folder: Path, **options: Any) -> Path:
    write_step("gpt2", RunConfig.of(**GPT, **options), folder / "graphs")
    return folder / "graphs"


def inputs(folder: Path) -> dict[str, str]:
    return {"groups": str(folder / "comm_group.json"), "memory": str(folder / "remote_memory.json")}


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "ddp=4"},
        {"parallel": "fsdp=4", "host_overhead": "none"},
        {"parallel": "cp=4"},
        {"parallel": "dp=2,pp=2", "micro_batches": 4, "schedule": "1f1b"},
        {"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True},
        {"parallel": "ddp=4", "conditions": {"slow_gpus": {2: 1.5}}},
    ],
)
def test_a_step_takes_the_same_time_when_it_is_read_again(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = written(tmp_path, **options)
    before = triosim.simulate("gpt2", **GPT, **options).step_time_s
    nodes = max(len(graph.nodes) for graph in read_workload(folder))
    after = triosim.simulate(str(folder), topology=SWITCH, **inputs(folder)).step_time_s
    assert abs(after - before) <= nodes * 1e-9


def test_the_groups_beside_the_graphs_need_not_be_given(tmp_path: Path) -> None:
    folder = written(tmp_path, parallel="ddp=4")
    given = triosim.simulate(str(folder), topology=SWITCH, **inputs(folder)).step_time_s
    assert triosim.simulate(str(folder), topology=SWITCH).step_time_s == given


def test_gradients_are_all_reduced_by_their_bytes(tmp_path: Path) -> None:
    folder = written(tmp_path, parallel="ddp=4")
    (graph, *_) = read_workload(folder)
    collectives = [node for node in graph.nodes.values() if node.type == NodeType.COMM_COLL]
    assert {node.attributes["comm_type"] for node in collectives} == {CollectiveType.ALL_REDUCE}
    result = triosim.simulate("gpt2", **GPT, parallel="ddp=4")
    sent = sum(row.bytes * row.count for row in result.data.collectives)
    assert sum(graph.whole(node, "comm_size") for node in collectives) == pytest.approx(sent)


def test_units_that_switches_gather_are_loads_of_all_their_bytes(tmp_path: Path) -> None:
    pool = {"groups": 2, "switches": 1, "capacity": "1 TB", "gathers": True}
    pool |= dict.fromkeys(("bandwidth", "node_bandwidth", "group_bandwidth"), "100 GB/s")
    host = {"host": {"bandwidth": "50 GB/s"}, "host_memory": {"capacity": "1 TB", "bandwidth": "200 GB/s"}}
    topology = {"topology": "switch", "gpus": 4, "bandwidth": "100 GB/s", **host, "pool": pool}
    options = {**GPT, "topology": topology, "parallel": "fsdp=4", "offload": "parameters=pool", "training": False}
    write_step("gpt2", RunConfig.of(**options), tmp_path / "graphs")
    (graph, *_) = read_workload(tmp_path / "graphs")
    loads = [graph.whole(node, "tensor_size") for node in graph.nodes.values() if node.type == NodeType.MEM_LOAD]
    parameters = 2 * (2 * 12 * 768**2 + (50257 + 1024) * 768)  # of two layers, in bf16, but for norms and biases
    assert sum(loads) == pytest.approx(parameters, rel=2e-3)
    assert not [node for node in graph.nodes.values() if node.type == NodeType.COMM_COLL]


def test_operators_have_their_flops_and_bytes(tmp_path: Path) -> None:
    """The largest product is that of 1,024 tokens by a vocabulary of 50,257 and 768 features, in bf16."""
    (graph, *_) = read_workload(written(tmp_path, parallel="ddp=4"))
    largest = max(graph.nodes.values(), key=lambda node: graph.whole(node, "num_ops", 0))
    assert graph.whole(largest, "num_ops") == 2 * 1024 * 50257 * 768
    assert graph.whole(largest, "tensor_size") == 2 * (1024 * 50257 + 50257 * 768 + 1024 * 768)
    on_gpu = [node for node in graph.nodes.values() if node.type == NodeType.COMP and not graph.on_cpu(node)]
    assert all(graph.whole(node, name) > 0 for node in on_gpu for name in ("num_ops", "tensor_size"))


def test_another_gpu_takes_what_its_flops_and_memory_need(tmp_path: Path) -> None:
    """An A100 reads graphs that were written for it as they are; an H200 is an H100 with a faster memory."""
    folder = str(written(tmp_path, parallel="ddp=4", host_overhead="none"))
    own, same = (triosim.simulate(folder, topology=SWITCH, **gpu) for gpu in ({}, {"gpu": "A100"}))
    assert own.step_time_s == same.step_time_s
    h100, h200 = (triosim.simulate(folder, topology=SWITCH, gpu=gpu) for gpu in ("H100", "H200"))
    assert h200.data.ranks[0].compute_s < h100.data.ranks[0].compute_s < own.data.ranks[0].compute_s
    assert any("take what the FLOPs and the memory of a H100" in note for note in h100.data.notes)


def test_whole_microseconds_sum_up_to_what_was_computed(tmp_path: Path) -> None:
    (graph, *_) = read_workload(written(tmp_path, parallel="ddp=4", host_overhead="none"))
    computations = [node for node in graph.nodes.values() if node.type == NodeType.COMP]
    exact = sum(float(str(node.attributes["triosim_ns"])) for node in computations) / 1000
    assert abs(sum(node.duration_us for node in computations) - exact) < 1
    assert len(computations) > 50


def test_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (written(tmp_path / name, parallel="dp=2,pp=2", micro_batches=2) for name in "ab")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


@pytest.mark.parametrize("parallel", ["ddp=4", "dp=2,pp=2", "parameter-server"])
def test_astra_sims_rules_run_what_is_written(tmp_path: Path, parallel: str) -> None:
    folder = written(tmp_path, parallel=parallel, **({"gpus": 4} if parallel == "parameter-server" else {}))
    names = ("network.yml", "system.json", "remote_memory.json", "comm_group.json")
    study = read_study(StudyFiles(folder, *(folder / name for name in names)))
    outcome = simulate_study(study, Settings())
    assert len(outcome.ranks) == 4
    assert study.notes == ()


def test_the_command_line_writes_graphs_and_does_not_overwrite_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "graphs")
    command = ["simulate", "gpt2", "--layers", "1", "-p", "ddp=2", "--gpu", "A100", "-q", "--chakra", folder]
    assert run(command) == 0
    assert len(EtReader().nodes(tmp_path / "graphs" / "step.1.et")) > 10
    assert run(command) == 2
    assert "holds graphs already; name another folder" in capsys.readouterr().err


def test_a_trace_is_converted_to_the_graph_of_a_rank(tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "examples" / "traces" / "vgg13_a100_fake.json.gz"
    assert run(["convert", str(trace), str(tmp_path / "graphs"), "--to", "chakra"]) == 0
    before = triosim.simulate(str(trace)).step_time_s
    assert triosim.simulate(str(tmp_path / "graphs")).step_time_s == pytest.approx(before, rel=1e-12)
