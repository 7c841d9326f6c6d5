"""Profiles of several ranks: a step of all of them, in which what waited goes on waiting when other things change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_events import event, reduction

import triosim
from triosim.cli import run
from triosim.errors import TriosimError
from triosim.trace.formats import read
from triosim.trace.task_streams import TaskStreams
from triosim.trace.trace import Mark

SWITCH = "switch(4, bandwidth={} GB/s, latency=1 us)"


def launched(number: int, launch: float, start: float, duration: float, name: str = "gemm", **about: Any) -> list[Any]:
    """A launch that takes 2 us, and its kernel: of NCCL's on stream 20, of others on stream 7, unless it is said."""
    stream = about.pop("stream", 20 if "nccl" in name else 7)
    about = {"correlation": number, "stream": stream, "device": 0, **about}
    host = event("cuda_runtime", "cudaLaunchKernel", launch, 2, correlation=number)
    return [host, event("kernel", name, start, duration, stream, **about)]


def lets_wait(number: int, at: float, name: str = "cudaStreamWaitEvent") -> Any:
    return event("cuda_runtime", name, at, 1, correlation=number)


#: 100 us of computing, a reduction beside 60 us more, and 30 us that the host lets wait for the reduction.
EVENTS = [
    *launched(1, 0, 5, 100),
    lets_wait(2, 3),
    *launched(3, 5, 105, 50, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", **reduction(1 << 20)),
    *launched(4, 8, 105, 60),
    lets_wait(5, 11),
    *launched(6, 13, 165, 30),
]


def write(folder: Path, rank: int, events: list[Any], world: int = 2, **top: Any) -> None:
    stated = {"backend": "nccl", "rank": rank, "world_size": world}
    data = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}], "distributedInfo": stated, **top}
    (folder / f"rank{rank}.json").write_text(json.dumps({**data, "traceEvents": events}), encoding="utf-8")


def streams(folder: Path) -> TaskStreams:
    found = read(folder)
    assert isinstance(found, TaskStreams)
    return found


def test_kernels_of_nccl_are_communication_and_the_others_take_their_time(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, EVENTS)
    found = streams(tmp_path)
    operators = found.traces[1].operators
    assert [round(one.seconds * 1e6) for one in operators] == [100, 0, 60, 30]
    asked = operators[1].communication
    assert asked is not None
    assert (asked.kind, asked.nbytes, found.group(asked.group, 1)) == ("all_reduce", 4 << 20, (0, 1))
    assert found.traces[0].marks == (Mark(3, "wait_work", "compute", 1),)


def test_what_waited_for_communication_waits_longer_where_that_takes_longer(tmp_path: Path) -> None:
    """A ring of two sends 4 MiB each way; 30 us follow, and the 60 us beside are hidden."""
    for rank in (0, 1):
        write(tmp_path, rank, EVENTS)
    slow, fast = (
        triosim.simulate(
            str(tmp_path), topology=f"ring(2, bandwidth={gb} GB/s, latency=0)", host_overhead="none"
        ).step_time_s
        for gb in (10, 1000)
    )
    assert fast == pytest.approx(190e-6, rel=0.02)
    assert slow == pytest.approx(130e-6 + (4 << 20) / 10e9, rel=0.2)


def test_a_kernel_that_starts_late_waited_for_what_had_ended_last(tmp_path: Path) -> None:
    """The kernel on stream 9 was launched at 3 us, and began when that on stream 7 had ended."""
    events = [*launched(1, 0, 5, 100), *launched(2, 3, 106, 20, stream=9), *launched(3, 5, 106, 50)]
    for rank in (0, 1):
        write(tmp_path, rank, events)
    assert streams(tmp_path).traces[0].marks == (Mark(1, "record", "compute", 0), Mark(1, "wait", "stream 9", 0))


def test_a_profile_with_events_of_synchronization_says_what_waits_for_what(tmp_path: Path) -> None:
    """A second reduction waits for the first one, on a stream of its own, and not for the kernel that runs meanwhile."""

    def waits(number: int, at: float, stream: int, awaited: int, record: int) -> list[Any]:
        about = {"stream": stream, "correlation": number, "wait_on_stream": awaited}
        about["wait_on_cuda_event_record_corr_id"] = record
        return [lets_wait(number, at), event("cuda_sync", "Stream Wait Event", at, 1, stream, **about)]

    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    events = [
        *launched(1, 0, 5, 100),
        lets_wait(90, 3, "cudaEventRecord"),
        *waits(91, 3.5, 20, 7, 90),
        *launched(2, 5, 105, 50, kernel, **reduction(1 << 20)),
        lets_wait(92, 7.5, "cudaEventRecord"),
        *launched(3, 8, 105, 60),
        *waits(93, 11, 21, 20, 92),
        *launched(4, 12, 155, 50, kernel, stream=21, **reduction(1 << 20)),
    ]
    for rank in (0, 1):
        write(tmp_path, rank, events)
    trace = streams(tmp_path).traces[0]
    assert [one.stream for one in trace.operators] == ["compute", "compute", "compute", "communication 21 alone"]
    assert trace.marks == (Mark(3, "wait_work", "communication 21 alone", 1),)


def test_messages_name_ranks_of_the_world_and_a_missing_rank_is_taken_to_be_like_another(tmp_path: Path) -> None:
    sizes = {"In msg nelems": 8, "Out msg nelems": 8, "dtype": "Half", "Group size": 2, "Process Group Ranks": "[0, 1]"}
    write(
        tmp_path,
        0,
        launched(1, 0, 5, 9, "ncclDevKernel_SendRecv", **{**sizes, "Collective name": "send", "Dst Rank": 1}),
    )
    write(
        tmp_path,
        1,
        launched(1, 0, 5, 9, "ncclDevKernel_SendRecv", **{**sizes, "Collective name": "recv", "Src Rank": 0}),
    )
    asked = [streams(tmp_path).traces[rank].operators[0].communication for rank in (0, 1)]
    assert [(one.kind, one.peer, one.nbytes) for one in asked if one] == [("send", 1, 16.0), ("recv", 0, 16.0)]
    for path in tmp_path.iterdir():
        path.unlink()
    write(tmp_path, 1, [*EVENTS[:2]], world=3)
    assert streams(tmp_path).like == (1, 1, 1)


def test_a_group_that_is_cut_short_is_found_by_its_pattern_or_at_the_top(tmp_path: Path) -> None:
    pattern = {"Process Group Ranks": "[1, 3, ...]", "Global rank start": 1, "Global rank stride": 2, "Group size": 4}
    groups = [{"pg_name": "7", "ranks": [1, 2, 3, 5]}]
    kernel = "ncclDevKernel_AllGather"
    for about, members in ((pattern, (1, 3, 5, 7)), ({"Process Group Name": "7", "Group size": 4}, (1, 2, 3, 5))):
        stated = {**reduction(8), "Process Group Ranks": "[1, ...]", **about, "Collective name": "_allgather_base"}
        info = {"backend": "nccl", "rank": 1, "world_size": 8, "pg_config": groups}
        write(tmp_path, 1, launched(1, 0, 5, 9, kernel, **stated), world=8, distributedInfo=info)
        for rank in (0, *range(2, 8)):
            write(tmp_path, rank, launched(1, 0, 5, 9), world=8)
        found = streams(tmp_path)
        asked = found.traces[1].operators[0].communication
        assert asked is not None
        assert (found.group(asked.group, 1), asked.nbytes) == (members, 8 * 4 * 4)


@pytest.mark.parametrize(
    ("events", "top", "what"),
    [
        (launched(1, 0, 5, 9, "ncclKernel_AllReduce"), {}, "rank 1: a kernel of NCCL does not say what it does"),
        (
            launched(1, 0, 5, 9, "ncclDevKernel", **{**reduction(8), "Process Group Ranks": "[...]"}),
            {},
            "whose ranks are not known",
        ),
        (
            launched(1, 0, 5, 9, "ncclDevKernel", **{**reduction(8), "Process Group Ranks": "[1, 7]"}),
            {},
            "all_reduce in group '.*' is between ranks 1,7; its ranks are some of the 2",
        ),
        (
            launched(1, 0, 5, 9, "ncclDevKernel", **{**reduction(8), "In msg nelems": -8}),
            {},
            "a kernel of NCCL has -8 elements",
        ),
        (EVENTS, {"distributedInfo": {"world_size": 2}}, "does not say which rank it is of"),
        (EVENTS, {"distributedInfo": {"rank": 0, "world_size": 2}}, "is of rank 0 of 2, as another is"),
        (EVENTS, {"distributedInfo": {"rank": 1, "world_size": 4}}, "is of 4 ranks, others of 2"),
        ([], {}, "the trace has no operators"),
    ],
)
def test_what_a_profile_must_say_is_named(tmp_path: Path, events: list[Any], top: dict[str, Any], what: str) -> None:
    write(tmp_path, 0, EVENTS)
    write(tmp_path, 1, events, **top)
    with pytest.raises(TriosimError, match=what):
        read(tmp_path)


@pytest.mark.parametrize(
    "options", [{"parallel": "ddp=4"}, {"parallel": "pp=4", "micro_batches": 4, "schedule": "1f1b"}]
)
def test_a_step_that_was_profiled_takes_as_long_when_it_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    model = {"layers": 4, "gpu": "A100", **options}
    result = triosim.simulate("gpt2", topology=SWITCH.format(100), timeline=True, **model)
    result.save_kineto(str(tmp_path / "profiles"))
    again = triosim.simulate(str(tmp_path / "profiles"), topology=SWITCH.format(100))
    assert again.step_time_s == pytest.approx(result.step_time_s, rel=0.01)
    slower = triosim.simulate("gpt2", topology=SWITCH.format(20), **model).step_time_s
    assert triosim.simulate(str(tmp_path / "profiles"), topology=SWITCH.format(20)).step_time_s == pytest.approx(
        slower, rel=0.01
    )


@pytest.mark.parametrize(
    ("deleted", "like"),
    [
        ((6, 7), (0, 1, 2, 3, 4, 5, 4, 5)),
        (
            (1, 2, 3, 4, 6, 7),
            (0, 0, 0, 5, 0, 5, 0, 5),
        ),  # rank 1 is first in 'fsdp', as rank 0, and second in 'tp', as rank 5
        ((0,), (1, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_ranks_without_a_profile_run_what_those_with_their_position_run(
    tmp_path: Path, deleted: tuple[int, ...], like: tuple[int, ...]
) -> None:
    """Ranks 0, 2, 4, 6 have the first shard of tensor parallelism, and groups that nobody profiled have their places."""
    topology = "switch(8, bandwidth=100 GB/s, latency=1 us)"
    model = {"layers": 2, "gpu": "A100", "parallel": "fsdp=4,tp=2"}
    ran = triosim.simulate("gpt2", topology=topology, timeline=True, **model)
    ran.save_kineto(str(tmp_path))
    for rank in deleted:
        (tmp_path / f"rank-{rank}.json.gz").unlink()
    found = streams(tmp_path)
    assert found.groups["tp"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found.groups["fsdp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert found.like == like
    again = triosim.simulate(str(tmp_path), topology=topology)
    assert again.step_time_s == pytest.approx(ran.step_time_s, rel=0.01)
    assert any("assumed to run the same operators" in note for note in again.notes)


def test_missing_ranks_whose_partners_cannot_be_known_are_named(tmp_path: Path) -> None:
    model = {"layers": 4, "gpu": "A100", "parallel": "pp=2,tp=4"}
    triosim.simulate("gpt2", timeline=True, **model).save_kineto(str(tmp_path))
    for rank in (1, 2, 3, 4, 6, 7):
        (tmp_path / f"rank-{rank}.json.gz").unlink()
    with pytest.raises(
        TriosimError, match=r"profiles of ranks 1-4,6-7 are missing, and others send .* write all ranks"
    ):
        read(tmp_path)


def test_missing_ranks_of_irregular_groups_are_named(tmp_path: Path) -> None:
    """Ranks 0 and 3 of 5 reduce; nobody knows with whom ranks 1, 2 and 4 do."""
    stated = {**reduction(8), "Process Group Ranks": "[0, 3]", "Group size": 2}
    for rank in (0, 3):
        write(tmp_path, rank, launched(1, 0, 5, 9, "ncclDevKernel_AllReduce", **stated), world=5)
    with pytest.raises(TriosimError, match="profiles of ranks 1-2,4 are missing, and their groups cannot be known"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["\n", "", "{}", '{"schema'])
def test_a_damaged_profile_of_a_rank_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, 0, EVENTS)
    (tmp_path / "rank1.json").write_text(content, encoding="utf-8")
    (tmp_path / "about.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TriosimError, match=r"rank1\.json: is called like the profiles beside it and is none"):
        read(tmp_path)


def test_profiles_of_all_ranks_are_converted_to_their_graphs(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    for rank in (0, 1):
        write(tmp_path / "profiles", rank, EVENTS)
    assert run(["convert", str(tmp_path / "profiles"), str(tmp_path / "graphs"), "--to", "chakra"]) == 0
    ring = "ring(2, bandwidth=10 GB/s, latency=0)"
    before = triosim.simulate(str(tmp_path / "profiles"), topology=ring).step_time_s
    assert triosim.simulate(str(tmp_path / "graphs"), topology=ring).step_time_s == pytest.approx(before, abs=8e-9)


def test_ranks_on_the_cpu_are_no_task_streams(tmp_path: Path) -> None:
    call = event("cpu_op", "aten::mm", 1, 2)
    for rank in (0, 1):
        write(tmp_path, rank, [call])
    with pytest.raises(TriosimError, match=r"rank0\.json and rank1\.json are of several ranks without work of a GPU"):
        read(tmp_path)


def test_all_to_alls_of_unequal_parts_read_back(tmp_path: Path) -> None:
    """Tokens go to experts by chance, so that each rank sends other parts, and another sum."""
    options = {"parallel": "dp=4,ep=4", "layers": 1, "gpu": "H100", "seq": 64, "batch_size": 2}
    ran = triosim.simulate("mixtral-8x7b", topology=SWITCH.format(100), timeline=True, **options)
    ran.save_kineto(tmp_path / "profiles")
    again = triosim.simulate(str(tmp_path / "profiles"), topology=SWITCH.format(100))
    assert again.step_time_s == pytest.approx(ran.step_time_s, rel=0.02)


def test_what_computations_take_longer_beside_communication_counts_once(tmp_path: Path) -> None:
    """The profile's times have it: those that are read back are not slowed again, nor as Chakra graphs."""
    options = {"parallel": "fsdp=4", "layers": 4, "gpu": "A100", "batch_size": 2}
    ran = triosim.simulate("gpt2", topology=SWITCH.format(100), timeline=True, **options)
    assert any("beside computation" in note for note in ran.notes)
    ran.save_kineto(tmp_path / "profiles")
    again = triosim.simulate(str(tmp_path / "profiles"), topology=SWITCH.format(100))
    assert again.step_time_s == pytest.approx(ran.step_time_s, rel=1e-3)
    assert not any("beside computation" in note for note in again.notes)
    arguments = [str(tmp_path / "profiles"), "--topology", SWITCH.format(100), "--chakra", str(tmp_path / "graphs")]
    assert run(["simulate", "-q", *arguments]) == 0
    graphs = triosim.simulate(str(tmp_path / "graphs" / "step"), topology=SWITCH.format(100))
    assert graphs.step_time_s == pytest.approx(again.step_time_s, rel=2e-3)
    assert not any("beside computation" in note for note in graphs.notes)
