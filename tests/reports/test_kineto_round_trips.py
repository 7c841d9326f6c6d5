"""Profiles of all ranks read back to the step that they were written of: its time, its samples, its groups."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.compute.fit.operator_rows import of_trace
from triosim.errors import TraceError
from triosim.results.result import Result
from triosim.trace import Trace
from triosim.trace.step_facts import StepFacts
from triosim.trace.task_streams import TaskStreams

STREAMS = Path(__file__).parents[1] / "golden" / "data" / "streams_32.json.gz"
LLAMA = {"layers": 2, "seq": 1024, "gpu": "H100"}
STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ddp": ("llama3-8b", {**LLAMA, "parallel": "ddp=4", "topology": "dgx-h100"}),
    "fsdp": ("llama3-8b", {**LLAMA, "parallel": "fsdp=8", "topology": "dgx-h100"}),
    "hsdp": ("llama3-8b", {**LLAMA, "parallel": "dp=2,fsdp=4", "topology": "dgx-h100"}),
    "cp": ("llama3-8b", {**LLAMA, "parallel": "cp=4", "topology": "dgx-h100"}),
    "tp": ("llama3-8b", {**LLAMA, "parallel": "tp=4", "topology": "dgx-h100"}),
    "pp": ("llama3-8b", {**LLAMA, "parallel": "pp=2", "micro_batches": 4, "topology": "dgx-h100"}),
    "free": ("llama3-8b", {**LLAMA, "parallel": "dp=2,tp=2", "topology": "dgx-h100", "host_overhead": "none"}),
    "captured": (STREAMS, {"topology": "switch(32, bandwidth=450 GB/s, latency=1 us)"}),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_folder_takes_as_long_as_the_step_and_has_its_samples(tmp_path: Path, name: str) -> None:
    """Collectives wait for memory as long as beside the operators of the plan, FSDP's copies among them; a collective on
    the current stream is waited for at once; and launches that are free stay free."""
    subject, options = STEPS[name]
    run = triosim.simulate(subject, timeline=True, **options)
    run.save_kineto(tmp_path)
    found = triosim.simulate(tmp_path, topology=options["topology"])
    assert found.step_time_s == pytest.approx(run.step_time_s, rel=1e-3)
    assert found.data.global_batch_size == run.data.global_batch_size


def test_the_doubt_about_a_step_is_not_forgotten(tmp_path: Path) -> None:
    run = triosim.simulate("gpt2", "ddp=4", layers=2, gpu="A100", topology="dgx-a100", timeline=True)
    run.save_kineto(tmp_path)
    found = triosim.simulate(tmp_path, topology="dgx-a100")
    assert run.data.step_time_interval_s is not None
    assert found.data.step_time_interval_s == pytest.approx(run.data.step_time_interval_s, rel=0.01)
    assert {one.source for one in run.data.doubts} == {one.source for one in found.data.doubts}


@pytest.mark.parametrize("offload", ["optimizer=host", "parameters=host,optimizer=host", "activations=host"])
def test_copies_take_no_compute_units_and_keep_their_names_bytes_and_times(tmp_path: Path, offload: str) -> None:
    """A GPU computes while a copy engine copies, and while the CPU updates the parameters."""
    options = {"layers": 2, "parallel": "fsdp=4", "gpu": "A100", "offload": offload, "topology": "dgx-a100"}
    run = triosim.simulate("gpt2", timeline=True, **options)
    run.save_kineto(tmp_path)
    found = triosim.simulate(tmp_path, topology="dgx-a100")
    assert found.step_time_s == pytest.approx(run.step_time_s, rel=1e-3)
    assert not any("optimizer" in note for note in found.notes)
    ours, theirs = copies(run), copies(found)
    assert ours.keys() == theirs.keys() != set()
    for label, (nbytes, seconds) in ours.items():
        assert theirs[label] == (pytest.approx(nbytes, rel=1e-6), pytest.approx(seconds, rel=1e-3))


def copies(result: Result) -> dict[str, tuple[float, float]]:
    """Return the bytes and the seconds of all copies by what they are of."""
    found: dict[str, tuple[float, float]] = {}
    for one in result.data.collectives:
        if one.kind == "copy":
            before = found.get(one.axis, (0.0, 0.0))
            found[one.axis] = before[0] + one.bytes * one.count, before[1] + one.total_s
    return found


def test_groups_have_the_names_of_their_axes(tmp_path: Path) -> None:
    options = {**LLAMA, "parallel": "dp=2,tp=2", "topology": "dgx-h100", "timeline": True}
    triosim.simulate("llama3-8b", **options).save_kineto(tmp_path)
    found = triosim.load_trace(tmp_path)
    assert isinstance(found, TaskStreams)
    assert {name: found.groups[name] for name in ("dp", "tp")} == {"dp": ((0, 2), (1, 3)), "tp": ((0, 1), (2, 3))}


def test_two_families_of_one_purpose_have_two_names(tmp_path: Path) -> None:
    """Groups of 4 and of 2 ranks, both described as dp: as of experts and of what they share."""
    triosim.simulate("gpt2", "ddp=4", layers=1, gpu="A100", topology="dgx-a100", timeline=True).save_kineto(tmp_path)
    path = tmp_path / "rank-3.json.gz"
    profile = json.loads(gzip.decompress(path.read_bytes()))
    about = {"Process Group Name": "9", "Process Group Ranks": "[2, 3]", "Group size": 2}
    nccl = [one for one in profile["traceEvents"] if "nccl" in str(one.get("name")) and one.get("cat") == "kernel"]
    nccl[-1]["args"].update(about)
    profile["distributedInfo"]["pg_config"].append({"pg_name": "9", "pg_desc": "ddp", "ranks": [2, 3]})
    path.write_bytes(gzip.compress(json.dumps(profile).encode()))
    found = triosim.load_trace(tmp_path)
    assert isinstance(found, TaskStreams)
    assert list(found.groups) == ["world", "ddp", "ddp of 2, 2"]


def test_facts_are_read_as_they_were_written_and_those_of_others_are_none() -> None:
    facts = StepFacts("H100", 0.25, True, 64, 2, True)
    assert StepFacts.of(facts.attributes) == facts
    assert StepFacts.of(StepFacts("H100").attributes) == StepFacts("H100")
    odd = {"triosim_memory_bound": 7.0, "triosim_global_batch_size": -1, "triosim_sample_parts": "2", "triosim_gpu": 3}
    assert StepFacts.of(odd) == StepFacts()


def test_streams_keep_how_much_their_operators_wait_for_memory(tmp_path: Path) -> None:
    streams = triosim.load_trace(STREAMS)
    assert isinstance(streams, TaskStreams)
    triosim.save_trace(dataclasses.replace(streams, memory_bound=0.25), tmp_path / "streams.json")
    found = triosim.load_trace(tmp_path / "streams.json")
    assert isinstance(found, TaskStreams)
    assert found.memory_bound == 0.25


def test_times_of_a_simulation_are_not_called_measured(tmp_path: Path) -> None:
    """They are scaled to another GPU as measured ones are, and no model is fitted to them."""
    trace = Path(__file__).parents[2] / "examples" / "traces" / "gpt2_a100_fake.json.gz"
    triosim.simulate(trace, "ddp=2", topology="dgx-a100", timeline=True).save_kineto(tmp_path)
    run = triosim.simulate(tmp_path, topology="dgx-a100")
    assert run.inputs["trace"]["times"] == "simulated by triosim"
    assert "operator times in this trace are not measured: simulated by triosim" in run.notes
    alone = triosim.load_trace(tmp_path / "rank-0.json.gz")
    assert isinstance(alone, Trace)
    faster = triosim.simulate(alone, gpu="H100")
    assert faster.inputs["trace"]["times"] == "predicted for H100-SXM from those simulated by triosim on A100-SXM-80GB"
    assert faster.step_time_s < triosim.simulate(alone).step_time_s
    with pytest.raises(TraceError, match="holds no measured operator; its times are 'simulated by triosim'"):
        of_trace(alone)


METRICS: dict[str, dict[str, Any]] = {
    **{name: STEPS[name][1] for name in ("ddp", "fsdp", "tp", "pp")},
    "cp": {**LLAMA, "parallel": "cp=2", "topology": "dgx-h100"},
}


@pytest.mark.parametrize("name", METRICS)
def test_a_folder_has_the_layers_the_tokens_the_mfu_and_the_memory_of_its_step(tmp_path: Path, name: str) -> None:
    options = METRICS[name]
    run = triosim.simulate("llama3-8b", timeline=True, **options)
    run.save_kineto(tmp_path)
    found = triosim.simulate(tmp_path, topology=options["topology"])
    assert found.metrics.tokens_per_s == pytest.approx(run.metrics.tokens_per_s, rel=1e-3)
    assert found.metrics.hfu == pytest.approx(run.metrics.hfu, rel=0.02)
    layers = {one.layer: (one.forward_s, one.backward_s, one.optimizer_s) for one in run.data.layers}
    again = {one.layer: (one.forward_s, one.backward_s, one.optimizer_s) for one in found.data.layers}
    assert again["lm_head"] == pytest.approx(layers["lm_head"], rel=0.01)
    assert again["optimizer"][2] == pytest.approx(layers["optimizer"][2], rel=0.01)
    assert run.memory is not None
    assert found.memory is not None
    assert found.memory.fullest.peak_bytes == pytest.approx(run.memory.fullest.peak_bytes, rel=0.04)
    assert found.title.startswith("llama3-8b, captured on")


def test_ranks_without_a_file_are_missed_in_the_title(tmp_path: Path) -> None:
    triosim.simulate("gpt2", "ddp=4", layers=1, gpu="A100", topology="dgx-a100", timeline=True).save_kineto(tmp_path)
    (tmp_path / "rank-3.json.gz").unlink()
    found = triosim.simulate(tmp_path, topology="dgx-a100")
    assert found.title == "gpt2 (profiles of 3 of 4 ranks), captured on 4 x A100-SXM-80GB, dgx-a100"
    assert any("ranks 0, 1, 2 were captured; the other rank is assumed" in note for note in found.notes)


def test_without_shapes_a_folder_has_its_layers_and_no_memory(tmp_path: Path) -> None:
    run = triosim.simulate("gpt2", "ddp=2", layers=1, gpu="A100", topology="dgx-a100", timeline=True)
    run.save_kineto(tmp_path)
    for path in tmp_path.iterdir():
        profile = json.loads(gzip.decompress(path.read_bytes()))
        for event in profile["traceEvents"]:
            for key in ("Input Dims", "Input type"):
                event.get("args", {}).pop(key, None)
        path.write_bytes(gzip.compress(json.dumps(profile).encode()))
    found = triosim.simulate(tmp_path, topology="dgx-a100")
    (head,) = (one for one in found.data.layers if one.layer == "lm_head")
    (own,) = (one for one in run.data.layers if one.layer == "lm_head")
    assert (head.forward_s, head.backward_s) == pytest.approx((own.forward_s, own.backward_s), rel=0.01)
    assert "the operators name no tensors: memory is not known" in found.notes
