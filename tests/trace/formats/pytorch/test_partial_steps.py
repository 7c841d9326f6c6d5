"""A profile that holds a part of a step is refused or said to, and what an optimizer updates is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from profile_events import Event, event, read_profile

import triosim
from triosim.errors import TraceError
from triosim.trace import Trace

ENGINE = "autograd::engine::evaluate_function: "
LAYER = [[4, 8], [3, 8]]
UPDATED = [[3, 8], [3, 8]]


class Step:
    """The calls of a step of two layers, with a kernel of 5 us each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.moment = 0.0

    def call(self, name: str, shapes: list[Any], *, kernel: bool = True, **about: Any) -> None:
        shaped = {"Input Dims": shapes, "Input type": ["float"] * len(shapes), **about}
        number = len(self.events) + 1
        self._add("cpu_op", name, self.moment, 10, 1, shaped)
        self._add("cuda_runtime", "cudaLaunchKernel", self.moment + 1, 2, 1, {"correlation": number})
        if kernel:
            self._add("kernel", "gemm", self.moment + 5, 5, 7, {"correlation": number, "stream": 7})
        self.moment += 20

    def forward(self, layers: range = range(2)) -> Step:
        for layer in layers:
            self.call("aten::linear", LAYER, **{"Sequence number": layer})
        return self

    def backward(self, *, kernel: bool = True) -> Step:
        for layer in (1, 0):
            about = {"Sequence number": layer, "Fwd thread id": 1}
            self.call(f"{ENGINE}LinearBackward0", [[4, 3]], kernel=kernel, **about)
            self._add(
                "cpu_op",
                f"{ENGINE}torch::autograd::AccumulateGrad",
                self.moment - 9,
                5,
                1,
                {"Input Dims": [[3, 8]], "Input type": ["float"], "Fwd thread id": 1},
            )
        return self

    def optimizer(self, *calls: tuple[str, int]) -> Step:
        begin = self.moment
        for name, lists in calls or (("aten::_foreach_add_", 2),):
            self.call(name, UPDATED * lists)
        self._add("user_annotation", "Optimizer.step#Some.step", begin - 1, self.moment - begin, 1, {})
        return self

    def trace(self, folder: Path) -> Trace:
        return read_profile(folder, self.events)

    def _add(self, category: str, name: str, start: float, length: float, thread: int, about: dict[str, Any]) -> None:
        self.events.append(event(category, name, start, length, thread, **about))


def said(trace: Trace) -> list[str]:
    return [note for note in trace.notes if "inferred" not in note]


def test_a_whole_step_is_said_nothing_of(tmp_path: Path) -> None:
    assert said(Step().forward().backward().optimizer().trace(tmp_path)) == []


def test_copies_of_gradients_by_hooks_are_no_missing_forward_pass(tmp_path: Path) -> None:
    """As of FSDP, which copies shards before it reduces them."""
    step = Step().forward().backward()
    for _ in range(9):
        step.call(f"{ENGINE}aten::split_with_sizes_copy", [[3, 8]], **{"Fwd thread id": 1})
    assert said(step.optimizer().trace(tmp_path)) == []


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Step().backward().optimizer(), "has no forward pass"),
        (Step().optimizer(), "has no forward pass"),
        (Step().forward(range(1, 2)).backward(), "does not have the forward pass of 50% of its backward pass"),
        (Step().forward().backward(kernel=False), "has no kernels of 2 of 4 launches"),
    ],
)
def test_a_step_whose_figures_would_mean_nothing_is_refused(tmp_path: Path, step: Step, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        step.trace(tmp_path)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (Step().forward(), "no backward pass: its step is taken for inference"),
        (Step().forward().backward(), "no optimizer's step"),
        (Step().forward().backward().optimizer().optimizer(), "an optimizer steps 2 times in it"),
    ],
)
def test_what_a_step_has_not_is_said(tmp_path: Path, step: Step, what: str) -> None:
    (note,) = said(step.trace(tmp_path))
    assert what in note


def states(trace: Trace) -> dict[str, int]:
    found: dict[str, int] = {}
    for tensor in [one for one in trace.tensors.values() if one.shape == (3, 8)]:
        found[tensor.category] = found.get(tensor.category, 0) + 1
    return found


@pytest.mark.parametrize(
    ("calls", "each"),
    [
        ([("aten::_foreach_add_", 2)], 0),  # plain SGD
        ([("aten::_foreach_mul_", 1), ("aten::_foreach_add_", 2), ("aten::_foreach_add_", 2)], 1),  # momentum
        ([("aten::_foreach_lerp_", 2), ("aten::_foreach_addcmul_", 3), ("aten::_foreach_addcdiv_", 3)], 2),  # Adam
        ([("aten::_fused_adamw_", 4)], 2),
    ],
)
def test_an_optimizer_updates_parameters_and_has_states(
    tmp_path: Path, calls: list[tuple[str, int]], each: int
) -> None:
    """Two parameters of one shape, whose calls share them and ``each`` states of each."""
    found = states(Step().forward().backward().optimizer(*calls).trace(tmp_path))
    assert (found["parameter"], found.get("optimizer_state", 0), found.get("temporary", 0)) == (2, 2 * each, 0)


def test_the_memory_of_a_profile_alone_has_the_optimizer_s_states_once(tmp_path: Path) -> None:
    run = triosim.simulate("gpt2", layers=2, gpu="A100", timeline=True)
    run.save_kineto(tmp_path / "profiles")
    (read,) = (triosim.load_trace(tmp_path / "profiles" / "rank-0.json.gz"),)
    assert isinstance(read, Trace)
    found = [one.nbytes for one in read.tensors.values() if one.category == "optimizer_state"]
    assert sum(found) == 2 * sum(one.nbytes for one in read.parameters.values())
