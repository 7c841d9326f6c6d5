"""The memory of a captured script's ranks: the figures of ``simulate`` are those that ``analyse`` has of each rank's trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from storage_traces import MIB, training_step

import triosim
from triosim.cli import run
from triosim.errors import DoesNotFitError
from triosim.memory import analyse
from triosim.trace import Operator, Trace
from triosim.trace.task_streams import TaskStreams

LINK = "ring(4, bandwidth=1 GB/s)"


def timed(trace: Trace) -> Trace:
    return replace(trace, operators=tuple(replace(one, seconds=1e-3) for one in trace.operators))


def four_ranks(gpu: str = "unknown", large: int = 30 * MIB) -> TaskStreams:
    """Ranks 0 and 1 do the same, and so do 2 and 3, which take 30 MiB more."""
    light, heavy = timed(training_step().trace(gpu)), timed(training_step(buffer=large).trace(gpu))
    return TaskStreams({0: light, 2: heavy}, (0, 0, 2, 2), {"world": ((0, 1, 2, 3),)}, global_batch_size=4)


def small(tmp_path: Path, capacity: str) -> str:
    """A GPU with so little memory."""
    path = tmp_path / f"{capacity.replace(' ', '')}.yaml"
    path.write_text(
        f"name: of {capacity}\narchitecture: turing\nbandwidth: 100 GB/s\ncapacity: {capacity}\nflops: {{float32: 1 TFLOP/s}}\n"
    )
    return str(path)


def test_a_run_has_the_peak_of_each_rank_that_differs() -> None:
    result = triosim.simulate(four_ranks(), topology=LINK)
    assert [(row.ranks, row.peak_bytes) for row in result.data.memory] == [("0-1", 20 * MIB), ("2-3", 50 * MIB)]
    assert result.memory is not None
    assert result.memory.fullest.rank == 2
    assert result.memory.of_rank(3) is result.memory.ranks[1]
    assert "Live tensors at each rank's peak, in MiB" in str(result)
    assert not any("fit" in note for note in result.notes)


def test_the_parts_of_the_peak_add_up_to_it_and_say_when_it_is() -> None:
    subject = four_ranks("H100-SXM")
    found = triosim.simulate(subject, topology=LINK)
    for row, rank in zip(found.data.memory, (0, 2), strict=True):
        parts = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "communication", "other")
        assert sum(getattr(row, f"{part}_bytes") for part in parts) == row.peak_bytes
        report = analyse(subject.traces[rank])
        assert row.peak_bytes == report.peak_live
        assert row.action == report.trace.operators[report.usage.peak.operator].phase
        assert row.fits is True


def test_reports_are_those_of_the_command_for_captures() -> None:
    subject = four_ranks("H100-SXM")
    memory = triosim.simulate(subject, topology=LINK).memory
    assert memory is not None
    assert memory.report().peak_reserved == analyse(subject.traces[2]).peak_reserved
    assert memory.report(1).peak_live == analyse(subject.traces[0]).peak_live
    assert not memory.report(1, capacity=10 * MIB, context=0).fits
    assert repr(memory).startswith("CapturedMemory(captured on 4 GPUs: 0.1 of 78.5 GiB on rank 2")


def test_a_rank_that_does_not_fit_is_named_and_stops_the_run_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU of 240 MB has 75 MiB beside the CUDA context of Turing, 0.15 GiB; 60 are reserved on rank 0, 90 on rank 2."""
    gpu = small(tmp_path, "240 MB")
    file = tmp_path / "streams.json.gz"
    triosim.save_trace(four_ranks(), file)
    result = triosim.simulate(file, gpu=gpu, topology=LINK)
    note = next(note for note in result.notes if "not fit" in note)
    assert note.startswith("ranks 2-3 do not fit their GPUs: ")
    assert [row.fits for row in result.data.memory] == [True, False]
    with pytest.raises(DoesNotFitError, match="ranks 2-3 do not fit"):
        triosim.simulate(file, gpu=gpu, topology=LINK, fail_on_oom=True)
    for command in (["simulate", str(file), "-t", LINK], ["memory", str(file)]):
        assert run([*command, "--gpu", gpu, "--fail-on-oom", "-q"]) == 3
        assert run([*command, "--gpu", "H100", "--fail-on-oom", "-q"]) == 0
    capsys.readouterr()


def test_tensors_that_would_fit_do_not_where_the_allocator_finds_no_room(tmp_path: Path) -> None:
    """56 MiB beside the context: the light rank has 36 of tensors and workspaces, for which segments of 60 are taken."""
    light = triosim.simulate(four_ranks(), gpu=small(tmp_path, "220 MB"), topology=LINK).data.memory[0]
    assert light.capacity_bytes is not None
    assert light.peak_bytes < light.capacity_bytes
    assert light.fits is False


def test_a_result_s_file_has_it(tmp_path: Path) -> None:
    result = triosim.simulate(four_ranks("H100-SXM"), topology=LINK)
    result.save(tmp_path / "result.json")
    written: Any = json.loads((tmp_path / "result.json").read_text())
    assert [row["ranks"] for row in written["memory"]] == ["0-1", "2-3"]
    assert triosim.Result.load(tmp_path / "result.json").data.memory == result.data.memory


def test_streams_without_storages_are_said_to_be_estimated() -> None:
    bare = {rank: replace(trace, storages=()) for rank, trace in four_ranks().traces.items()}
    notes = triosim.simulate(replace(four_ranks(), traces=bare), topology=LINK).notes
    assert any("memory is an estimate" in note for note in notes)


def test_memory_of_operators_without_tensors_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Chakra graphs: neither ``memory`` nor a result says that they fit."""
    operators = tuple(Operator(number, "add", "forward", "fc", (), (), 1e-3) for number in range(3))
    trace = Trace(operators, 1, gpu="H100")
    triosim.save_trace(trace, tmp_path / "bare.json")
    assert run(["memory", str(tmp_path / "bare.json")]) == 2
    assert "name no tensors, so that their memory is not known" in capsys.readouterr().err
    found = triosim.simulate(TaskStreams({0: trace}, (0, 0), {"world": ((0, 1),)}), topology="dgx-a100")
    assert found.data.memory == ()
    assert "the operators name no tensors: memory is not known" in found.notes
