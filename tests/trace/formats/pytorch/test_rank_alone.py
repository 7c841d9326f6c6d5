"""The file of one of several ranks, read alone: its own FLOPs, tokens and memory, and no verdict on what is not known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.memory import analyse
from triosim.memory.memory_report import INFERRED
from triosim.tasks import Compute
from triosim.trace import Trace

LLAMA: dict[str, Any] = {"layers": 4, "seq": 512, "gpu": "H100", "topology": "dgx-h100", "timeline": True}


def written(folder: Path, model: str, parallel: str, **options: Any) -> triosim.Result:
    run = triosim.simulate(model, parallel, **options)
    run.save_kineto(folder)
    return run


def rank_flops(run: triosim.Result, rank: int) -> float:
    """Return the FLOPs of the products and convolutions that a rank ran, twice their multiply-adds."""
    found = 0.0
    for handle in run.recording.handles:  # type: ignore[union-attr]  # there is a timeline
        if handle.rank == rank and isinstance(handle.task, Compute):
            for one in handle.task.operators:
                if one.name == "aten::mm":
                    found += 2 * one.inputs[0].numel * one.inputs[1].shape[1]
    return found


def test_every_micro_batch_of_a_pipelines_rank_counts(tmp_path: Path) -> None:
    """In 1F1B the forward passes of later micro-batches come after backward passes of earlier ones."""
    options = {**LLAMA, "micro_batches": 8, "schedule": "1f1b"}
    run = written(tmp_path, "llama3.2-1b", "pp=2", **options)
    trace = triosim.load_trace(tmp_path / "rank-0.json.gz")
    assert isinstance(trace, Trace)
    found = sum(
        2 * one.inputs[0].numel * one.inputs[1].shape[1]
        for one in trace.operators
        if one.name == "aten::mm" and one.outputs
    )
    assert found == pytest.approx(rank_flops(run, 0))
    alone = triosim.simulate(trace)
    assert alone.metrics.tokens_per_sample == 512
    assert any("other ranks work on its samples too" in note for note in alone.notes)
    assert alone.title == "llama3.2-1b, rank 0 of 2, single on 1 H100-SXM"


def test_a_rank_with_a_part_of_the_channels_computes_that_part(tmp_path: Path) -> None:
    """The next call takes the channels of all four ranks, gathered: the convolution returns its own."""
    run = written(tmp_path, "resnet50", "tp=4", gpu="A100", batch_size=4, topology="dgx-a100", timeline=True)
    alone = triosim.simulate(tmp_path / "rank-0.json.gz")
    assert run.metrics.hardware_flops is not None
    assert alone.metrics.hardware_flops == pytest.approx(run.metrics.hardware_flops / 4, rel=0.01)


def test_products_of_groups_have_the_rows_of_their_samples(tmp_path: Path) -> None:
    """The rows of two experts by their matrices are as many rows, whatever takes them next."""
    options = {**LLAMA, "layers": 1, "parallel": "dp=4,ep=4"}
    run = triosim.simulate("mixtral-8x7b", **options)
    run.save_kineto(tmp_path)
    found = triosim.simulate(tmp_path, topology="dgx-h100")
    assert found.metrics.hardware_flops == pytest.approx(run.metrics.hardware_flops, rel=0.01)


def test_memory_that_was_recorded_is_that_of_the_run(tmp_path: Path) -> None:
    """Of what is allocated before the profile begins, the allocator's totals tell: parameters and states."""
    run = written(tmp_path, "gpt2", "ddp=2", gpu="A100", topology="dgx-a100", timeline=True)
    alone = triosim.simulate(tmp_path / "rank-1.json.gz")
    assert run.memory is not None
    assert alone.memory is not None
    assert alone.memory.fullest.peak_bytes == pytest.approx(run.memory.fullest.peak_bytes, rel=0.04)
    states = run.memory.fullest.by_category["optimizer_state"]
    assert alone.memory.fullest.by_category["optimizer_state"] == pytest.approx(states, rel=0.01)
    report = analyse(triosim.load_trace(tmp_path / "rank-1.json.gz"))
    assert report.peak_live == pytest.approx(run.memory.fullest.peak_bytes, rel=0.04)


def test_memory_that_is_inferred_has_no_verdict(tmp_path: Path) -> None:
    """A profile without allocations; inferred tensors need more than the GPU has, whatever the step needed."""
    written(tmp_path, "gpt2", "ddp=2", gpu="A100", topology="dgx-a100", timeline=True)
    path = tmp_path / "rank-0.json.gz"
    profile = json.loads(gzip.decompress(path.read_bytes()))
    profile["traceEvents"] = [one for one in profile["traceEvents"] if one.get("name") != "[memory]"]
    path.write_bytes(gzip.compress(json.dumps(profile).encode()))
    alone = triosim.simulate(path, batch_size=512, fail_on_oom=True)
    assert alone.memory is not None
    assert alone.memory.fullest.peak_bytes > 100e9
    assert alone.memory.fits
    assert INFERRED in alone.notes
    report = analyse(triosim.load_trace(path))
    assert any(note.startswith(INFERRED) for note in report.notes)


def test_what_a_backward_call_reads_is_what_its_forward_call_had(tmp_path: Path) -> None:
    """Without allocations too, memory is above that of the run by no more than a half: it was twice."""
    run = written(tmp_path, "gpt2", "ddp=2", gpu="A100", topology="dgx-a100", timeline=True)
    found = triosim.simulate(tmp_path / "rank-0.json.gz", "ddp=2", topology="dgx-a100").memory
    assert run.memory is not None
    assert found is not None
    assert 1.0 < found.fullest.peak_bytes / run.memory.fullest.peak_bytes < 1.5
