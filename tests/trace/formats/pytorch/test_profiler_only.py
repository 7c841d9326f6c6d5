"""A profiler file without an execution trace: shapes and order tell the parameters, their gradients, and a chain."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from profile_events import Event, event, read_profile

import triosim
from triosim.errors import TraceError
from triosim.trace import Trace

LINEAR = [[4, 8], [3, 8], [3]]


class File:
    """A profiler file of calls one after the other, ten microseconds each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._moment = 0.0

    def call(self, name: str, shapes: list[Any], *, sequence: int | None = None, inside: str | None = None) -> None:
        """Add a call; one of autograd's has what it differentiates ``inside``, which is the one with shapes."""
        backward = inside is not None
        self._event(name, self._moment, 10.0, [] if backward else shapes, sequence, backward)
        if inside is not None:
            self._event(inside, self._moment + 1, 8.0, shapes, sequence, backward)
        self._moment += 20.0

    def _event(
        self, name: str, start: float, length: float, shapes: list[Any], sequence: int | None, backward: bool
    ) -> None:
        arguments: dict[str, Any] = {"External id": len(self.events)}
        if shapes:
            kinds = ["TensorList" if shape and isinstance(shape[0], list) else "float" for shape in shapes]
            arguments |= {"Input Dims": shapes, "Input type": kinds}
        if sequence is not None:
            arguments |= {"Sequence number": sequence, "Fwd thread id": int(backward)}
        self.events.append(event("cpu_op", name, start, length, **arguments))

    def update(self, *shapes: Any) -> None:
        """Add an optimizer's step of one call."""
        self.events.append(event("user_annotation", "Optimizer.step#SGD.step", self._moment - 1, 12.0))
        self.call("aten::_foreach_add_", list(shapes))

    def trace(self, folder: Path) -> Trace:
        return read_profile(folder, self.events)


def training() -> File:
    file = File()
    file.call("aten::linear", LINEAR, sequence=1)
    file.call("aten::add_", [[], []], sequence=2)  # a counter: nothing flows through it
    file.call("aten::relu", [[4, 3]], sequence=3)
    engine = "autograd::engine::evaluate_function: "
    file.call(f"{engine}ReluBackward0", [[4, 3]], sequence=3, inside="ReluBackward0")
    file.call(f"{engine}AddmmBackward0", [[4, 3]], sequence=1, inside="AddmmBackward0")
    for shape in ([3], [3, 8]):
        accumulate = "torch::autograd::AccumulateGrad"
        file.call(f"{engine}{accumulate}", [shape], inside=accumulate)
    file.update([[3, 8], [3]], [[3, 8], [3]])
    return file


def test_what_accumulates_a_gradient_is_a_parameter(tmp_path: Path) -> None:
    trace = training().trace(tmp_path)
    assert [parameter.shape for parameter in trace.parameters.values()] == [(3, 8), (3,)]
    gradients = {tensor.parameter: tensor.shape for tensor in trace.tensors.values() if tensor.parameter is not None}
    assert gradients == {number: parameter.shape for number, parameter in trace.parameters.items()}
    assert "without an execution trace" in trace.software["tensors"]


def test_the_forward_pass_is_a_chain_from_the_input(tmp_path: Path) -> None:
    linear, relu = [one for one in training().trace(tmp_path).operators if one.name in ("aten::linear", "aten::relu")]
    assert (linear.inputs[0].category, linear.inputs[0].shape) == ("input", (4, 8))
    assert linear.outputs == relu.inputs
    assert relu.inputs[0].shape == (4, 3)


def test_backward_calls_are_linked_and_the_optimizer_s_are_its_own(tmp_path: Path) -> None:
    trace = training().trace(tmp_path)
    forward = {one.id: one.name for one in trace.operators if one.phase == "forward"}
    assert {one.name: forward[one.forward] for one in trace.operators if one.forward is not None} == {
        "ReluBackward0": "aten::relu",
        "AddmmBackward0": "aten::linear",
    }
    assert [one.name for one in trace.operators if one.phase == "optimizer"] == ["aten::_foreach_add_"]
    assert trace.batch_size == 4
    assert trace.seconds == pytest.approx(6 * 10e-6)  # six calls of 10 us; what only hands a gradient over is none


def test_it_can_be_simulated(tmp_path: Path) -> None:
    result = triosim.simulate(training().trace(tmp_path), "ddp", gpus=2)
    assert [(row.kind, row.bytes) for row in result.data.collectives] == [("all_reduce", 4 * (24 + 3))]


def test_without_shapes_one_is_told_how_to_profile(tmp_path: Path) -> None:
    file = File()
    file.call("aten::relu", [])
    with pytest.raises(TraceError, match=r"has no shapes, .*record_shapes=True"):
        file.trace(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("Input Dims", 3), ("Input type", 1.5), ("Input type", {"x": 1})])
def test_shapes_and_types_that_are_no_lists_are_refused(tmp_path: Path, key: str, value: object) -> None:
    file = training()
    file.events[0]["args"][key] = value
    with pytest.raises(TraceError, match="the inputs of no call are"):
        file.trace(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_profile_made_here_and_now_has_the_model_s_parameters(tmp_path: Path) -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        nn.functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.zeros(4, dtype=torch.int64)).backward()
        optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "profile.json"))
    trace = triosim.load_trace(tmp_path / "profile.json")
    assert isinstance(trace, Trace)
    assert sorted(one.shape for one in trace.parameters.values()) == sorted(
        tuple(one.shape) for one in model.parameters()
    )
    assert [one.layer for one in trace.operators if one.name == "aten::linear"] == ["Linear_0"]
    assert trace.operators[0].inputs[0].shape == (4, 3, 8, 8)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_of_several_steps_in_one_file_the_last_is_taken(tmp_path: Path) -> None:
    import torch
    from torch.profiler import profile, schedule

    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1), record_shapes=True) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(5, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "profile.json.gz"))
    trace = triosim.load_trace(tmp_path / "profile.json.gz")
    assert isinstance(trace, Trace)
    assert [one.name for one in trace.operators if one.phase == "forward"].count("aten::linear") == 2
    assert sorted(one.shape for one in trace.parameters.values()) == [(3,), (3, 6), (6,), (6, 8)]
    assert trace.batch_size == 5


def test_a_transposed_weight_is_no_batch(tmp_path: Path) -> None:
    """Of an inference pass of two layers, 16 samples: each weight is transposed before its product, as PyTorch does."""
    file = File()
    file.call("aten::t", [[8, 4]])
    file.call("aten::addmm", [[8], [16, 4], [4, 8]])
    file.call("aten::t", [[3, 8]])
    file.call("aten::addmm", [[3], [16, 8], [8, 3]])
    trace = file.trace(tmp_path)
    assert trace.batch_size == 16
    transposed, first, other, second = trace.operators
    assert (transposed.outputs[0], other.outputs[0]) == (first.inputs[2], second.inputs[2])
    assert first.outputs == (second.inputs[1],)


def test_collectives_and_what_gathers_parameters_take_no_samples(tmp_path: Path) -> None:
    """FSDP gathers 40 elements, of 5 a rank, and copies them out before the layer that uses them."""
    file = File()
    file.events.append(event("user_annotation", "FSDP::pre_forward (0)", -1.0, 52.0))
    file.call("aten::narrow", [[40]])
    file.call("c10d::_allgather_base_", [[40], [5]])
    file.call("aten::split_with_sizes_copy", [[8, 5], [8, 4], [8, 1]])
    file.call("aten::linear", [[16, 4], [8, 4], [8]])
    trace = file.trace(tmp_path)
    assert trace.batch_size == 16
    assert trace.operators[-1].inputs[0].category == "input"
