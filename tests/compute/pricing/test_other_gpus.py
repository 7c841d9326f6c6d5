"""A trace of one GPU as one of another: measured times scaled by the ratio of two predictions, with their error."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import traces

import triosim
from triosim import gpus
from triosim.compute.models.forest import Forest
from triosim.compute.models.linear import Linear
from triosim.compute.models.roofline import Roofline
from triosim.compute.pricing.repricing import on_gpu, reprice
from triosim.sharding.reshape import rescaled
from triosim.trace import Operator, Tensor, Trace
from triosim.trace.formats.native import trace_json as json_format


def trace_of(gpu: str, **sizes: object) -> Trace:
    return replace(traces.mlp(batch=4096, sizes=(4096, 8192, 4096, 1024)), gpu=gpu)


def test_the_gpu_of_the_trace_changes_nothing_whatever_it_is_called() -> None:
    trace = trace_of("NVIDIA H100 80GB HBM3")
    assert on_gpu(trace, gpus.find("H100"), Linear()) is trace
    plain, named = triosim.simulate(trace, gpus=1), triosim.simulate(trace, gpus=1, gpu="h100")
    assert named.step_time_s == plain.step_time_s
    assert named.step_time_interval_s is None


def test_a_memory_bound_operator_takes_longer_by_the_ratio_of_the_bandwidths() -> None:
    """H100 to H200 differ in nothing else: 3352 GB/s and 4800 GB/s; and no product becomes slower."""
    trace = trace_of("H100")
    moved = on_gpu(trace, gpus.find("H200"), Roofline())
    for before, after in zip(trace.operators, moved.operators, strict=True):
        if before.name == "aten::relu":
            assert after.seconds == pytest.approx(before.seconds * 3352 / 4800, rel=2e-3)  # launches take as long
        assert after.seconds <= before.seconds * 1.000001
        assert (after.predicted_by, after.host_seconds) == ("roofline", before.host_seconds)
        assert after.relative_error is not None


def test_there_and_back_is_the_measured_time() -> None:
    trace = trace_of("H100")
    there = replace(on_gpu(trace, gpus.find("A100"), Roofline()), times="measured")
    back = on_gpu(there, gpus.find("H100"), Roofline())
    for before, after in zip(trace.operators, back.operators, strict=True):
        assert after.seconds == pytest.approx(before.seconds, rel=0.3)  # the fit sees two different traces


def test_linear_leaves_another_gpu_to_auto() -> None:
    moved = on_gpu(trace_of("A100"), gpus.find("H100"), Linear())
    assert all(operator.predicted_by for operator in moved.operators)
    assert not any("linear" in str(operator.predicted_by) for operator in moved.operators)
    assert moved.seconds < trace_of("A100").seconds
    assert moved.gpu == "H100-SXM"


def test_an_unknown_gpu_is_predicted_alone_and_that_is_noted() -> None:
    result = triosim.simulate(trace_of("made up"), gpus=1, gpu="H100")
    assert any(
        "without those measured on 'made up', which is not in the GPU catalogue" in note for note in result.notes
    )


def test_where_nothing_was_measured_the_prediction_stands_alone() -> None:
    trace = traces.mlp()
    empty = replace(
        trace, times="none", operators=tuple(replace(operator, seconds=0.0) for operator in trace.operators)
    )
    moved = on_gpu(empty, gpus.find("H100"), Roofline())
    assert all(operator.seconds > 0.0 for operator in moved.operators)
    assert moved.times == "predicted for H100-SXM"


def test_errors_of_another_gpu_and_of_other_shapes_are_added_as_independent() -> None:
    moved = on_gpu(trace_of("A100"), gpus.find("H100"), Roofline())
    model = Linear()
    model.fit(moved)
    shapes = rescaled(moved.operators, moved.batch_size, 2 * moved.batch_size).operators
    after = reprice(moved.operators, shapes, model, moved.gpu)
    for first, second in zip(moved.operators, after, strict=True):
        if second.predicted_by == "roofline, linear" and first.relative_error and second.relative_error:
            assert second.relative_error > first.relative_error
    assert any(operator.predicted_by == "roofline, linear" for operator in after)


@pytest.mark.parametrize(
    ("gpu", "topology"),
    [("H200", "dgx-h200"), ("GB200", "gb200-nvl72"), ("V100", "dgx-1-v100"), ("T4", "t4-pcie"), ("P100", "switch")],
)
def test_the_assumed_topology_follows_the_target(gpu: str, topology: str) -> None:
    result = triosim.simulate(trace_of("H100"), "ddp", gpus=4, gpu=gpu)
    assert any(note.startswith(f"no topology given: {topology}") for note in result.notes)
    assert result.inputs["trace"]["gpu"] == gpus.find(gpu).name
    assert gpus.find(gpu).name in result.title


def test_a_file_is_a_gpu_and_is_hashed_among_the_inputs(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("like: H100\nname: fast one\nbandwidth: 33.52 TB/s\n")
    result = triosim.simulate(trace_of("H100"), gpus=1, gpu=path)
    assert result.step_time_s < triosim.simulate(trace_of("H100"), gpus=1).step_time_s
    assert result.inputs["files"]["gpu"]["path"] == str(path)


def test_predictions_are_kept_in_the_trace_file(tmp_path: Path) -> None:
    moved = on_gpu(trace_of("A100"), gpus.find("H100"), Roofline())
    json_format.write(moved, tmp_path / "trace.json")
    assert json_format.read(tmp_path / "trace.json").operators == moved.operators


def test_a_chip_on_a_board_of_more_power_is_no_slower_than_it_was_measured_to_be() -> None:
    """The A100 of 400 W was not measured in float32; that of 300 W was, and has the same chip and less bandwidth of memory."""
    products = [
        Operator(1, "aten::mm", "forward", "", (Tensor(1, (m, k)), Tensor(2, (k, n))), (Tensor(3, (m, n)),), 0.0)
        for m, n, k in itertools.product((1024, 4096), (1280, 5120), (1280, 5120))
    ]
    found = {name: Forest().estimate(products, name) for name in ("A100-SXM-80GB", "A100-PCIe-80GB", "A100-PCIe-40GB")}
    sxm, measured, slower = (one.seconds for one in found.values())
    assert (sxm <= 1.01 * measured).all()
    assert (sxm >= 0.85 * measured).all()
    assert measured.sum() < slower.sum()
    assert (found["A100-SXM-80GB"].relative_error > found["A100-PCIe-80GB"].relative_error).all()
