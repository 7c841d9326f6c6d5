"""The memory of small steps, added up by hand: live bytes, peak, modules, and what several steps reserve."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from storage_traces import MIB, Step, training_step

from triosim import gpus
from triosim.errors import OptionError
from triosim.memory import analyse, by_module, lifetimes, replay, usage
from triosim.trace import Operator, Tensor, Trace


def test_the_peak_is_where_most_is_alive() -> None:
    """12 MiB are found; the forward adds 8, zero_grad() takes 4, the backward adds 4 before the activation goes: 20."""
    step = usage(lifetimes(training_step().trace()))
    assert [int(total) // MIB for total in step.total] == [12, 20, 16, 20, 12, 16, 12]
    assert (step.peak.index, step.peak.operator, step.peak.live) == (1, 0, 20 * MIB)
    assert step.at_peak() == {
        "parameter": 4 * MIB,
        "optimizer_state": 4 * MIB,
        "gradient": 4 * MIB,
        "activation": 8 * MIB,
    }


def test_live_bytes_are_those_of_whole_blocks_of_512() -> None:
    step = Step()
    step.found(513, "parameter")
    step.run("aten::relu")
    step.take(1)
    step.take(0)  # no memory is taken for a tensor without elements
    found = usage(lifetimes(step.trace()))
    assert (found.peak.live, found.peak.requested) == (1024 + 512, 514)


def test_what_the_step_found_is_the_peak_where_nothing_is_added() -> None:
    step = Step()
    old = step.found(MIB)
    step.run("aten::zero_")
    step.give(old)
    peak = usage(lifetimes(step.trace())).peak
    assert (peak.index, peak.operator, peak.live) == (0, -1, MIB)


def test_modules_that_differ_in_their_number_alone_are_one_row() -> None:
    step = Step()
    for layer in range(3):
        step.found(MIB, "parameter", f"layers.{layer}.mlp")
        step.found(MIB, "optimizer_state", f"layers.{layer}.mlp")
    step.found(2 * MIB, "buffer", "norm")
    step.run("aten::relu")
    found = usage(lifetimes(step.trace()))
    layers, norm = by_module(found, found.alive())
    assert (layers.module, layers.count) == ("layers.*.mlp", 3)
    assert layers.by_category == {"parameter": 3 * MIB, "optimizer_state": 3 * MIB}
    assert (norm.module, norm.total) == ("norm", 2 * MIB)
    assert [(row.module, row.count) for row in by_module(found, found.alive(), 1)] == [("layers", 1), ("norm", 1)]


def test_steps_are_played_until_nothing_more_is_reserved() -> None:
    """The first step has no state until its optimizer runs, and no old gradient; the second finds both.

    First, in a segment of 20 MiB: parameter and buffer [0-8], activation [8-16], gradient [16-20]; the activation goes, and
    the state takes [8-12] of it. Second: the activation's 8 do not fit into [12-16]: another segment. Third: as the second.
    """
    played = replay(lifetimes(training_step(buffer=4 * MIB).trace()))
    assert (played.repeats, played.steps) == (True, 3)
    assert [value // MIB for value in played.allocated] == [16, 24, 20, 24, 16, 20, 16]
    assert {value // MIB for value in played.reserved} == {40}
    assert (played.peak_allocated, played.peak_reserved) == (24 * MIB, 40 * MIB)
    assert played.fragmentation == pytest.approx(0.4)


def test_a_step_that_fills_its_segment_needs_no_other() -> None:
    """Without the buffer, the state takes the 4 MiB at the segment's end, and the activation's 8 stay together."""
    played = replay(lifetimes(training_step().trace()))
    assert (played.steps, played.peak_reserved, played.fragmentation) == (2, 20 * MIB, 0.0)


def test_a_first_step_leaves_more_than_it_found_and_says_so() -> None:
    step = Step()
    step.found(4 * MIB, "parameter")
    step.run("aten::_foreach_mul_", "optimizer")
    step.take(8 * MIB, "optimizer_state")
    report = analyse(step.trace())
    assert (report.replay.repeats, report.replay.steps, report.replay.left) == (False, 1, 8 * MIB)
    assert any("a later step begins with 8,388,608 bytes more" in note for note in report.notes)


def test_the_allocation_that_fails_is_named() -> None:
    """24 MiB for the allocator: the parameter's segment of 20 is there when the forward asks for 12 more."""
    step = Step()
    step.found(4 * MIB, "parameter", "fc")
    step.run("aten::addmm", "forward", "fc")
    step.take(12 * MIB, "activation", "fc")
    step.run("aten::relu", "forward", "act")
    step.take(12 * MIB, "activation", "act")
    report = analyse(step.trace(), capacity=25 * MIB, context=MIB)
    failed = report.out_of_memory
    assert failed is not None
    assert not report.fits
    assert (failed.step, failed.operator, failed.layer, failed.category) == (1, 1, "act", "activation")
    assert (failed.nbytes, failed.allocated, failed.reserved, failed.free) == (12 * MIB, 16 * MIB, 20 * MIB, 4 * MIB)
    assert report.peak_reserved == 32 * MIB  # what it needs, on a GPU without an end
    assert analyse(step.trace(), capacity=33 * MIB, context=MIB).fits


def test_streams_have_their_own_memory() -> None:
    step = Step()
    for stream in ("compute", "all-gather"):
        step.run("aten::empty", stream=stream)
        step.give(step.take(12 * MIB, "communication", stream=stream))
    played = replay(lifetimes(step.trace()))
    assert (played.peak_allocated, played.peak_reserved) == (12 * MIB, 24 * MIB)


def test_cublas_takes_a_workspace_for_each_thread_that_multiplies() -> None:
    """On Hopper 32 MiB in the forward's and in the backward's thread; on Ampere 8 MiB and 128 KiB."""
    trace = training_step().trace()
    hopper = usage(lifetimes(trace, gpus.find("H100")))
    assert hopper.at_peak()["workspace"] == 64 * MIB
    ampere = usage(lifetimes(trace, gpus.find("A100-SXM-40GB")))
    assert ampere.at_peak()["workspace"] == 2 * 8_519_680
    assert "workspace" not in usage(lifetimes(trace, gpus.find("CPU"))).at_peak()
    assert "workspace" not in analyse(trace, "H100", workspace=False).usage.at_peak()


def test_without_a_product_there_is_no_workspace() -> None:
    step = Step()
    step.run("aten::convolution")
    step.take(MIB)
    assert "workspace" not in analyse(step.trace(), "H100").usage.at_peak()


def test_a_gpu_has_what_pytorch_sees_of_it() -> None:
    report = analyse(training_step().trace("NVIDIA H100 80GB HBM3"))
    assert report.gpu == "H100-SXM"
    assert report.capacity / 2**30 == pytest.approx(79.18)
    assert report.fits


def test_of_a_gpu_that_is_not_known_nothing_is_said() -> None:
    report = analyse(training_step().trace())
    assert math.isinf(report.capacity)
    assert any("give --gpu or --capacity" in note for note in report.notes)


def test_a_capacity_below_the_context_is_an_error() -> None:
    with pytest.raises(OptionError, match="--capacity: a capacity of 1,000 bytes is no larger than"):
        analyse(training_step().trace(), capacity=1000)


def estimated_trace() -> Trace:
    """y = x W; z = relu(y); dy; dW; W -= dW: 1 MiB each, without storages."""
    elements = (MIB // 4,)
    x = Tensor(1, elements, category="input")
    w = Tensor(2, elements, category="parameter")
    y, z = (Tensor(number, elements) for number in (3, 4))
    dy = Tensor(5, elements, category="gradient")
    dw = Tensor(6, elements, category="gradient", parameter=2)
    rows: list[tuple[str, str, tuple[Tensor, ...], tuple[Tensor, ...]]] = [
        ("aten::mul", "forward", (x, w), (y,)),
        ("aten::relu", "forward", (y,), (z,)),
        ("aten::threshold_backward", "backward", (z,), (dy,)),
        ("aten::mul", "backward", (x, dy), (dw,)),
        ("aten::add_", "optimizer", (w, dw), (w,)),
    ]
    operators = [
        Operator(place, name, phase, "fc", inputs, outputs, 0.0)  # type: ignore[arg-type]
        for place, (name, phase, inputs, outputs) in enumerate(rows)
    ]
    return Trace(tuple(operators), 1)


def test_without_storages_a_tensor_lives_from_its_first_to_its_last_use() -> None:
    """x and W stay. y until the relu, z until its backward, dy until the product, dW to the end of the step."""
    report = analyse(estimated_trace())
    assert report.estimated
    assert "an estimate" in report.notes[0]
    assert [int(total) // MIB for total in report.usage.total] == [2, 3, 4, 3, 4, 3, 4, 3, 2]
    assert report.usage.peak.operator == 1
    assert report.replay.repeats


def test_a_view_is_the_same_bytes() -> None:
    trace = estimated_trace()
    first = trace.operators[0]
    view = replace(first.outputs[0], id=99, shape=(512, 512), storage=first.outputs[0].storage)
    second = replace(trace.operators[1], inputs=(view,))
    seen = analyse(replace(trace, operators=(first, second, *trace.operators[2:])))
    assert seen.peak_live == analyse(trace).peak_live
