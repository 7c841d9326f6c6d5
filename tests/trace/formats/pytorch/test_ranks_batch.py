"""The samples of a step of which there is a profile of each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_events import event, reduction

import triosim
from triosim.trace.formats import read
from triosim.trace.task_streams import TaskStreams

SWITCH = "switch(4, bandwidth=100 GB/s, latency=1 us)"
GPT2 = {"layers": 2, "gpu": "A100", "topology": SWITCH}


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "ddp=4", "batch_size": 2},
        {"parallel": "ddp=2", "micro_batches": 4},
        {"parallel": "fsdp=4"},
        {"parallel": "tp=2", "batch_size": 3},
        {"parallel": "tp=4", "tp_style": "megatron", "sequence_parallel": True, "batch_size": 2},
        {"parallel": "cp=4"},
        {"parallel": "pp=2", "micro_batches": 4},
        {"parallel": "pp=2", "micro_batches": 4, "schedule": "interleaved", "virtual_stages": 2, "layers": 4},
        {"parallel": "dp=2,pp=2", "micro_batches": 4, "batch_size": 8},
        {"parallel": "dp=2,tp=2", "batch_size": 2, "iterations": 2},
    ],
    ids=str,
)
def test_profiles_of_all_ranks_read_back_with_the_samples_per_second_of_the_run(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    ran = triosim.simulate("gpt2", timeline=True, **{**GPT2, **options})
    ran.save_kineto(tmp_path / "profiles")
    again = triosim.simulate(str(tmp_path / "profiles"), topology=SWITCH)
    assert again.data.global_batch_size == ran.data.global_batch_size
    assert again.throughput_samples_per_s == pytest.approx(ran.throughput_samples_per_s, rel=0.05)
    assert not any("batch" in note and "samples" in note for note in again.notes)


def kernel(number: int, start: float, name: str = "gemm", **about: Any) -> list[dict[str, Any]]:
    launch = event("cuda_runtime", "cudaLaunchKernel", start, 1, correlation=number)
    return [launch, event("kernel", name, start + 2, 5, 7, correlation=number, stream=7, **about)]


ENGINE = "autograd::engine::evaluate_function: "


def layer_of_four_samples(begin: float, number: int, reduces: dict[str, Any], *, forward: bool) -> list[dict[str, Any]]:
    """A linear layer of four samples, forward and backward, and a reduction in one of the passes."""
    shaped = {"Input Dims": [[4, 8], [3, 8]], "Input type": ["float", "float"]}
    moment = begin + (12 if forward else 34)
    return [
        event("cpu_op", "aten::linear", begin, 10, **shaped, **{"Sequence number": number}),
        *kernel(3 * number, begin + 1),
        event("cpu_op", f"{ENGINE}LinearBackward0", begin + 30, 10, **{"Sequence number": number, "Fwd thread id": 1}),
        *kernel(3 * number + 1, begin + 31),
        *kernel(3 * number + 2, moment, "ncclDevKernel_AllReduce", **reduces),
    ]


def streams(folder: Path, ranks: dict[int, list[dict[str, Any]]], description: str = "", world: int = 2) -> TaskStreams:
    for rank, events in ranks.items():
        groups = [{"pg_name": "0", "pg_desc": description, "ranks": [0, 1]}]
        owner = {"rank": rank, "world_size": world, "pg_config": groups}
        data = {"schemaVersion": 1, "distributedInfo": owner, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(data), encoding="utf-8")
    found = read(folder)
    assert isinstance(found, TaskStreams)
    return found


@pytest.mark.parametrize(
    ("description", "elements", "forward", "together"),
    [
        ("default_pg", 24, False, 8),  # gradients
        ("default_pg", 12, True, 4),  # outputs
        ("default_pg", 4, True, 8),  # a figure for each sample
        ("mesh_tp", 24, False, 4),
        ("DATA_PARALLEL_GROUP_WITH_CP", 12, True, 8),
    ],
)
def test_ranks_share_samples_where_a_group_says_so_or_its_forward_pass_reduces(
    tmp_path: Path, description: str, elements: int, forward: bool, together: int
) -> None:
    events = layer_of_four_samples(0, 1, reduction(elements), forward=forward)
    found = streams(tmp_path, {0: events, 1: events}, description)
    assert (found.global_batch_size, found.traces[0].batch_size) == (together, 4)


def test_what_autograd_s_thread_launches_between_its_calls_is_of_the_backward_pass(tmp_path: Path) -> None:
    """As the hooks of DistributedDataParallel do."""
    events = layer_of_four_samples(0, 1, reduction(24), forward=True)
    for one in events:
        if one["ts"] >= 12 and one["tid"] == 1:
            one["tid"] = 2
    events[-2]["ts"], events[-1]["ts"] = 25, 27
    events += [{**event("cpu_op", f"{ENGINE}MeanBackward0", 15, 5, 2), "args": {"Fwd thread id": 1}}]
    assert streams(tmp_path, {0: events, 1: events}, "world").global_batch_size == 8


def test_samples_count_once_for_each_backward_pass(tmp_path: Path) -> None:
    """Three micro-batches of four samples on each of two ranks."""
    events = [one for k in range(3) for one in layer_of_four_samples(50 * k, k, reduction(24), forward=False)]
    assert streams(tmp_path, {0: events, 1: events}).global_batch_size == 24
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "profile.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert triosim.load_trace(tmp_path / "alone" / "profile.json").batch_size == 12  # type: ignore[union-attr]


def test_a_rank_without_a_profile_works_on_as_many_samples_as_the_one_that_stands_for_it(tmp_path: Path) -> None:
    events = layer_of_four_samples(0, 1, reduction(24), forward=False)
    assert streams(tmp_path, {0: events}, world=4).global_batch_size == 16


def test_without_shapes_the_samples_are_not_known(tmp_path: Path) -> None:
    events = layer_of_four_samples(0, 1, reduction(24), forward=False)
    bare = [{**one, "args": {k: v for k, v in one["args"].items() if "Input" not in k}} for one in events]
    assert streams(tmp_path, {0: bare, 1: bare}).global_batch_size is None
