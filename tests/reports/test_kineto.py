"""Profiles of ranks are what tools that read PyTorch's profiler expect, and what triosim reads back."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hand_made_run import result

import triosim
from triosim.cli import main as cli
from triosim.errors import OutputError
from triosim.reports.kineto.stream_waits import StreamWaits
from triosim.reports.kineto.transfers import profiled
from triosim.tasks import AllGather, AllReduce, AllToAll, Communicator, Handle
from triosim.trace import Operator, Trace

TRACES = Path(__file__).parents[2] / "examples" / "traces"
Event = dict[str, Any]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("profiles")
    result().save_kineto(folder)
    return [json.loads(gzip.decompress((folder / f"rank-{rank}.json.gz").read_bytes())) for rank in (0, 1)]


def slices(profile: dict[str, Any], category: str) -> list[Event]:
    return [event for event in profile["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def test_a_file_says_whose_it_is_and_which_groups_there_are(profiles: list[dict[str, Any]]) -> None:
    for rank, profile in enumerate(profiles):
        (group,) = profile["distributedInfo"].pop("pg_config")
        assert profile["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1}
        assert (group["pg_desc"], group["ranks"]) == ("dp", [0, 1])
        assert profile["deviceProperties"][0]["name"] == "NVIDIA H100"


def test_kernels_run_when_the_simulation_ran_them_on_numbered_streams(profiles: list[dict[str, Any]]) -> None:
    kernels = slices(profiles[1], "kernel")
    first = kernels[0]["ts"]
    assert [(k["name"], round(k["ts"] - first, 3), k["dur"], k["args"]["stream"]) for k in kernels] == [
        ("aten::conv2d", 0, 1000, 7),
        ("aten::addmm", 1000, 2000, 7),
        ("ncclDevKernel_SendRecv", 1000, 1000, 9),
        ("aten::mm", 3000, 2000, 7),
        ("aten::conv", 5000, 2000, 7),
        ("ncclDevKernel_AllReduce_Sum", 6000, 3000, 8),
        ("aten::add_", 9000, 1000, 7),
    ]


def test_a_collective_ends_at_one_moment_on_all_ranks(profiles: list[dict[str, Any]]) -> None:
    """The all-reduce ends on both at 9 ms, from 5 and 6 ms on: a kernel of NCCL waits for the others."""
    ends = set()
    for profile, arrived in zip(profiles, (5000, 6000), strict=True):
        kernels = slices(profile, "kernel")
        (reduce,) = (one for one in kernels if "AllReduce" in one["name"])
        assert reduce["ts"] - kernels[0]["ts"] == pytest.approx(arrived)
        assert (reduce["args"]["In msg nelems"], reduce["args"]["Process Group Ranks"]) == (10_000_000, "[0, 1]")
        assert reduce["args"].get("waiting_us") == (1000 if arrived == 5000 else None)
        ends.add(round(reduce["ts"] + reduce["dur"], 3))
    assert len(ends) == 1


def test_a_receive_says_how_much_it_receives(profiles: list[dict[str, Any]]) -> None:
    for profile, sent, received in ((profiles[0], 1_000_000, 0), (profiles[1], 0, 1_000_000)):
        (kernel,) = (one for one in slices(profile, "kernel") if "SendRecv" in one["name"])
        assert (kernel["args"]["In msg nelems"], kernel["args"]["Out msg nelems"]) == (sent, received)


def test_each_kernel_has_one_launch_before_it_in_a_call_in_a_step(profiles: list[dict[str, Any]]) -> None:
    for profile in profiles:
        launches = {one["args"]["correlation"]: one for one in slices(profile, "cuda_runtime")}
        calls = {one["args"]["External id"]: one for one in slices(profile, "cpu_op")}
        (step,) = (one for one in slices(profile, "user_annotation") if one["name"] == "ProfilerStep#0")
        for kernel in slices(profile, "kernel"):
            launch = launches.pop(kernel["args"]["correlation"])
            call = calls[kernel["args"]["External id"]]
            assert launch["ts"] + launch["dur"] <= kernel["ts"]
            assert within(launch, call)
            assert call["tid"] != step["tid"] or within(call, step)
            assert kernel["ts"] + kernel["dur"] <= step["ts"] + step["dur"]
        events = ["cudaEventRecord", "cudaStreamWaitEvent"]
        assert [one["name"] for one in launches.values()] == [*events, *events, "cudaDeviceSynchronize"]


@pytest.mark.parametrize("options", [{"parallel": "dp=2,pp=2", "micro_batches": 4}, {"parallel": "fsdp=4"}])
def test_what_waits_for_another_stream_begins_when_that_is_done(tmp_path: Path, options: dict[str, Any]) -> None:
    """The work that is launched next on a stream that waits begins after the work before the event, as with CUDA."""
    triosim.simulate("gpt2", gpu="A100", layers=2, timeline=True, **options).save_kineto(tmp_path)
    for file in tmp_path.iterdir():
        profile = json.loads(gzip.decompress(file.read_bytes()))
        calls = {one["args"]["correlation"]: one for one in slices(profile, "cuda_runtime")}
        kernels = sorted(slices(profile, "kernel"), key=lambda one: calls[one["args"]["correlation"]]["ts"])
        *waits, last = slices(profile, "cuda_sync")
        assert waits
        assert last["name"] == "Context Sync"
        for wait in waits:
            called = calls[wait["args"]["correlation"]]
            record = calls[wait["args"]["wait_on_cuda_event_record_corr_id"]]
            assert (called["name"], record["name"]) == ("cudaStreamWaitEvent", "cudaEventRecord")
            before = [one for one in kernels if calls[one["args"]["correlation"]]["ts"] < record["ts"]]
            awaited = [one for one in before if one["tid"] == wait["args"]["wait_on_stream"]][-1]
            after = [one for one in kernels if calls[one["args"]["correlation"]]["ts"] > called["ts"]]
            waiting = next(one for one in after if one["tid"] == wait["args"]["stream"])
            assert awaited["tid"] != waiting["tid"]
            assert awaited["ts"] + awaited["dur"] <= waiting["ts"] + 1e-3


def test_collectives_of_a_communicator_run_in_order_of_issue_also_on_two_streams() -> None:
    """NCCL runs those of one communicator one after another; FSDP's gathers and reduce-scatters are on streams of their own."""
    group = Communicator((0, 1), "dp")
    handles = []
    for task, begin in ((AllGather(1e6, group, stream="gather"), 0.0), (AllReduce(1e6, group, stream="reduce"), 1e-3)):
        handle = Handle(0, task)
        handle.arrived, handle.finished = begin, begin + 1e-3
        handles.append(handle)
    assert StreamWaits.of(handles).awaited == {handles[1]: [handles[0]]}


def test_the_messages_of_a_batch_are_named_before_its_kernel(tmp_path: Path) -> None:
    """Ring attention on two GPUs: each sends its keys and values to the other in one batch."""
    run = triosim.simulate("gpt2", "cp=2", gpu="A100", layers=1, timeline=True)
    run.save_kineto(tmp_path)
    profile = json.loads(gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()))
    said = [one["args"] for one in slices(profile, "cpu_op") if one["name"] == "record_param_comms"]
    kernels = [one for one in slices(profile, "kernel") if one["args"].get("Collective name") == "coalesced"]
    for kind, peer in (("send", "Dst Rank"), ("recv", "Src Rank")):
        messages = [one for one in said if one["Collective name"] == kind]
        assert len(messages) == len(kernels) > 0
        assert {one[peer] for one in messages} == {1}
        sizes = ("In msg nelems", "Out msg nelems") if kind == "send" else ("Out msg nelems", "In msg nelems")
        assert [one[sizes[0]] for one in messages] == [kernel["args"][sizes[0]] for kernel in kernels]
        assert {one[sizes[1]] for one in messages} == {0}


def test_an_all_to_all_says_what_a_rank_sends_in_all_and_to_each() -> None:
    """PyTorch's input of an all-to-all is what a rank sends; with unequal shares it says how much goes to each."""
    group = Communicator((0, 2, 5), "ep")
    even = profiled(AllToAll(9e6, group), 2, {group: 0}, 0.0).arguments
    assert (even["In msg nelems"], even["Out msg nelems"]) == (9_000_000, 9_000_000)
    pairs = profiled(AllToAll(15.0, group, shares=(1, 2, 3, 4, 5, 6, 7, 8, 9)), 2, {group: 0}, 0.0).arguments
    assert (pairs["In msg nelems"], pairs["In split size"]) == (15, "[4, 5, 6]")
    assert (pairs["Out msg nelems"], pairs["Out split size"]) == (15, "[2, 5, 8]")


def within(inner: Event, outer: Event) -> bool:
    return bool(
        inner["tid"] == outer["tid"]
        and outer["ts"] < inner["ts"]
        and inner["ts"] + inner["dur"] < outer["ts"] + outer["dur"]
    )


def test_slices_of_one_track_nest_or_keep_apart(profiles: list[dict[str, Any]]) -> None:
    for profile in profiles:
        tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for event in profile["traceEvents"]:
            if event["ph"] == "X":
                assert event["dur"] > 0
                spans = tracks.setdefault((event["pid"], event["tid"]), [])
                spans.append((event["ts"], round(event["ts"] + event["dur"], 3)))
        for spans in tracks.values():
            for start, end in spans:
                assert not [one for one in spans if start < one[0] < end < one[1]]


@pytest.mark.parametrize("model", ["resnet50", "gpt2"])
def test_what_is_written_reads_back_to_the_same_operators_and_times(tmp_path: Path, model: str) -> None:
    trace = triosim.load_trace(TRACES / f"{model}_a100_fake.json.gz")
    triosim.simulate(trace, timeline=True).save_kineto(tmp_path)
    read = triosim.load_trace(tmp_path / "rank-0.json.gz")
    assert (read.model, read.gpu, read.batch_size) == (trace.model, trace.gpu, trace.batch_size)
    before, after = ([one for one in found.operators if one.seconds] for found in (trace, read))
    assert [known(one) for one in after] == [known(one) for one in before]
    # Each is rounded to a nanosecond, at its start and at its end.
    assert [one.seconds for one in after] == pytest.approx([one.seconds for one in before], abs=1.01e-9)


def known(operator: Operator) -> tuple[object, ...]:
    shapes = [(tensor.shape, tensor.dtype) for tensor in operator.inputs]
    return operator.name, operator.phase, operator.layer, operator.kernels or (operator.name,), shapes


def test_a_rank_of_several_alone_reads_back_without_its_communication_and_says_so(tmp_path: Path) -> None:
    run = triosim.simulate(TRACES / "gpt2_a100_fake.json.gz", "ddp=2", topology="dgx-a100", timeline=True)
    run.save_kineto(tmp_path)
    alone = triosim.simulate(tmp_path / "rank-1.json.gz")
    rank = run.data.ranks[1]
    computing = run.step_time_s - rank.exposed_communication_s - rank.idle_s
    read = triosim.load_trace(tmp_path / "rank-1.json.gz")
    assert isinstance(read, Trace)
    assert sum(one.seconds for one in read.operators) == pytest.approx(computing, rel=1e-5)
    assert alone.step_time_s < run.step_time_s
    assert any("of rank 1 of 2" in note and "a folder with the profiles of all ranks" in note for note in alone.notes)


def test_memory_goes_up_and_down_to_where_it_began(tmp_path: Path) -> None:
    run = triosim.simulate(TRACES / "resnet50_a100_fake.json.gz", timeline=True)
    run.save_kineto(tmp_path)
    profile = json.loads(gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()))
    events = [event["args"] for event in profile["traceEvents"] if event["name"] == "[memory]"]
    assert run.memory is not None
    assert max(one["Total Allocated"] for one in events) == max(run.memory.report(0).replay.allocated)
    total = events[0]["Total Allocated"] - events[0]["Bytes"]
    for one in events:
        total += one["Bytes"]
        assert one["Total Allocated"] == total <= one["Total Reserved"]


def test_iterations_are_steps_of_the_profiler(tmp_path: Path) -> None:
    run = triosim.simulate(
        TRACES / "vgg11_a100_fake.json.gz", "ddp=2", topology="dgx-a100", iterations=3, timeline=True
    )
    run.save_kineto(tmp_path)
    profile = json.loads(gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()))
    steps = [one for one in slices(profile, "user_annotation") if one["name"].startswith("ProfilerStep#")]
    assert [one["name"] for one in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    forward = Counter(
        step["name"]
        for call in slices(profile, "cpu_op")
        for step in steps
        if call["name"] == "aten::convolution" and step["ts"] <= call["ts"] <= step["ts"] + step["dur"]
    )
    assert len(forward) == 3
    assert len(set(forward.values())) == 1


def test_profiles_of_another_run_are_not_mixed_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(TRACES / "vgg11_a100_fake.json.gz"), "-q", "--kineto", str(tmp_path / "profiles")]
    assert cli.run(command) == 0
    assert [file.name for file in (tmp_path / "profiles").iterdir()] == ["rank-0.json.gz"]
    assert cli.run(command) == 2
    assert "holds profiles already; name another folder" in capsys.readouterr().err
    assert cli.run([*command[:-1], ""]) == 2
    assert "'': is no name of a folder; name a folder" in capsys.readouterr().err
    with pytest.raises(OutputError, match="is not a folder"):
        result().save_kineto(tmp_path / "profiles" / "rank-0.json.gz")


@pytest.mark.parametrize("model", ["gpt2", "resnet50"])
def test_products_and_convolutions_read_back_with_their_flops(tmp_path: Path, model: str) -> None:
    written = triosim.simulate(TRACES / f"{model}_a100_fake.json.gz", timeline=True)
    written.save_kineto(tmp_path / "profiles")
    again = triosim.simulate(tmp_path / "profiles" / "rank-0.json.gz")
    assert written.metrics is not None
    assert again.metrics is not None
    assert again.metrics.model_flops == pytest.approx(written.metrics.model_flops, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt2", {"gpu": "A100", "layers": 2}),  # its first call casts the table of tokens
        ("resnet50", {"gpu": "A100"}),
        ("llama3.2-1b", {"gpu": "H100", "layers": 2, "sequence": 256}),
    ],
)
def test_a_described_step_reads_back_with_its_batch_and_parameters(
    tmp_path: Path, model: str, options: dict[str, Any]
) -> None:
    expected = triosim.describe(model, batch=3, **options)
    triosim.simulate(expected, timeline=True).save_kineto(tmp_path)
    read = triosim.load_trace(tmp_path / "rank-0.json.gz")
    assert read.batch_size == 3
    sizes = [Counter(one.shape for one in trace.parameters.values()) for trace in (read, expected)]
    assert sizes[0] == sizes[1]


def test_the_batch_of_an_inference_pass_is_that_of_its_tokens(tmp_path: Path) -> None:
    """Without a backward pass nothing says which arguments are parameters."""
    run = triosim.simulate("llama3.2-1b", gpu="H100", layers=2, seq=256, batch_size=3, training=False, timeline=True)
    run.save_kineto(tmp_path)
    assert triosim.load_trace(tmp_path / "rank-0.json.gz").batch_size == 3
