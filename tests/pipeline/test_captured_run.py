"""``simulate`` runs task streams as they were captured, on any network, and says what does not go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streams import Script, same_on

import triosim
from triosim.cli import run
from triosim.comparison.strategies import compare
from triosim.errors import TriosimError
from triosim.trace.task_streams import TaskStreams

#: A second forward, two backward; 4 GB among two ranks in between, and 4 GB that nobody waits for.
STEP = Script().run(1.0).ask("all_gather", "world", 4e9).run(2.0).ask("all_reduce", "world", 4e9, work=0)
LINK = "ring(2, bandwidth=1 GB/s, latency=0 s)"


@pytest.fixture
def streams() -> TaskStreams:
    return replace(same_on(2, STEP), global_batch_size=12)


@pytest.fixture
def file(streams: TaskStreams, tmp_path: Path) -> str:
    triosim.save_trace(streams, tmp_path / "streams.json.gz")
    return str(tmp_path / "streams.json.gz")


def test_a_step_takes_what_its_links_need(streams: TaskStreams) -> None:
    result = triosim.simulate(streams, topology=LINK)
    # A ring of two, 1 GB/s each way: the gather takes half of 4 GB, the all-reduce twice as long.
    assert result.step_time_s == pytest.approx(1 + 2 + 2 + 4)
    assert result.throughput_samples_per_s == pytest.approx(12 / 9)
    assert [row.exposed_communication_s for row in result.data.ranks] == pytest.approx([6, 6])
    assert result.title == "unknown, captured on 2 x unknown, ring 2"
    assert any(
        "rank 0 was captured; the other rank is assumed to run the same operators" in note for note in result.notes
    )


def test_a_file_runs_as_the_streams_do(streams: TaskStreams, file: str) -> None:
    assert triosim.simulate(file, topology=LINK).step_time_s == triosim.simulate(streams, topology=LINK).step_time_s


def test_several_steps_follow_each_other(streams: TaskStreams) -> None:
    """The second begins at 5, when the all-reduce of the first, until 9, still holds up its gather: 9 + 2 + 2 + 4."""
    assert triosim.simulate(streams, topology=LINK, iterations=2).data.iterations == pytest.approx((9, 17))


def test_another_gpu_gives_other_times_and_leaves_the_communication(streams: TaskStreams) -> None:
    without = triosim.simulate(streams, topology=LINK, gpu="A100")
    assert without.step_time_s == pytest.approx(6, rel=1e-3)  # products of 4 x 4 take next to nothing
    unpriced = {rank: replace(trace, operators=zeroed(trace.operators)) for rank, trace in streams.traces.items()}
    again = triosim.simulate(replace(streams, traces=unpriced), topology=LINK, gpu="A100")
    assert again.step_time_s == pytest.approx(without.step_time_s)
    with pytest.raises(TriosimError, match="the streams have no times; give a GPU"):
        triosim.simulate(replace(streams, traces=unpriced), topology=LINK)


def zeroed(operators: Any) -> Any:
    return tuple(replace(operator, seconds=0.0) for operator in operators)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parallel": "ddp"}, "--parallel does not go with the task streams of 2 ranks"),
        ({"batch_size": 4}, "--batch-size does not go"),
        ({"training": False}, "--inference does not go"),
        ({"tp_style": "megatron"}, "--tp-style does not go"),
        ({"schedule": "gpipe"}, "--schedule does not go"),
        ({"virtual_stages": 2}, "--virtual-stages does not go"),
        ({"gpus": 4}, "the streams are those of 2 ranks, not of 4"),
        ({"topology": "ring(1, bandwidth=1 GB/s)"}, "1 GPU"),
        ({"iterations": 0}, "0 is less than 1"),
    ],
)
def test_what_would_change_the_step_is_refused(streams: TaskStreams, options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(TriosimError, match=said):
        triosim.simulate(streams, **{"topology": LINK, **options})


def test_a_topology_may_have_more_gpus_but_not_fewer(streams: TaskStreams) -> None:
    nodes = ["gpu0", "gpu1", "gpu2"]
    links = [{"from": "gpu0", "to": other, "bandwidth": "1 GB/s"} for other in nodes[1:]]
    assert triosim.simulate(streams, topology={"nodes": nodes, "links": links}).world == 2
    with pytest.raises(TriosimError, match=r"1 GPUs?|GPUs"):
        triosim.simulate(streams, topology={"nodes": ["gpu0"], "links": []})


def test_one_rank_of_a_distributed_step_is_no_trace_of_one_gpu(streams: TaskStreams) -> None:
    with pytest.raises(TriosimError, match="is the trace of one rank of a distributed step"):
        triosim.simulate(streams.traces[0], "ddp", gpus=2)


def test_strategies_are_not_compared_for_streams(streams: TaskStreams) -> None:
    with pytest.raises(TriosimError, match="task streams run as they were captured"):
        compare(streams, 2)


def test_the_command_line_shows_and_runs_a_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", file]) == 0
    shown = capsys.readouterr().out
    assert "2, of which 1 captured" in shown
    assert "all_gather" in shown
    assert run(["simulate", file, "--topology", LINK]) == 0
    assert "captured on 2 GPUs" in capsys.readouterr().out
    assert run(["simulate", file, "--parallel", "ddp"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "streams.json.gz: --parallel does not go with" in error


def test_streams_are_converted_to_the_same_file(file: str, tmp_path: Path) -> None:
    assert run(["convert", file, str(tmp_path / "again.json.gz")]) == 0
    assert (tmp_path / "again.json.gz").read_bytes() == Path(file).read_bytes()
