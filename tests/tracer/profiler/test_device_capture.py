"""A step that PyTorch runs here and now becomes a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import triosim  # noqa: E402
from triosim.errors import CaptureError, OptionError  # noqa: E402
from triosim.memory.liveness.lifetimes import lifetimes  # noqa: E402
from triosim.memory.memory_report import analyse  # noqa: E402
from triosim.trace import Trace  # noqa: E402
from triosim.tracer import capture, capture_script, capture_step  # noqa: E402


def small_network(optimizer: str = "SGD", **options: Any) -> tuple[Any, Any, Callable[[], None]]:
    """A network of two layers and a batch norm, its optimizer, and a training step of it on four samples."""
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    options = options or {"lr": 0.1, "momentum": 0.9, "foreach": True}
    optimizing = getattr(torch.optim, optimizer)(model.parameters(), **options)
    inputs, targets = torch.randn(4, 8), torch.randint(0, 3, (4,))

    def step() -> None:
        optimizing.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizing.step()

    return model, optimizing, step


def bytes_of(trace: Trace, category: str, *, owned: bool = False) -> int:
    storages = {
        tensor.storage: tensor.nbytes
        for tensor in trace.tensors.values()
        if tensor.category == category and (tensor.parameter is not None or not owned)
    }
    return sum(storages.values())


def test_a_block_with_one_step_gives_its_trace() -> None:
    model, optimizer, step = small_network()
    with capture(model, optimizer) as captured:
        step()
    trace = captured.trace
    assert [parameter.shape for parameter in trace.parameters.values()] == [(16, 8), (16,), (16,), (16,), (3, 16), (3,)]
    assert (trace.model, trace.batch_size, trace.gpu, trace.times) == ("Sequential", 4, "CPU", "measured")
    assert trace.step_seconds is None  # no step ran without the profiler
    assert {operator.phase for operator in trace.operators} == {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("fake", [False, True])
def test_the_passes_that_an_optimizer_asks_for_are_passes(fake: bool) -> None:
    """LBFGS calls the model and its backward pass within its own step."""
    from triosim.tracer.fake_device import fake_capture

    device = "cuda" if fake else "cpu"
    with fake_capture(skip=0) if fake else capture() as captured:
        model = torch.nn.Linear(8, 3).to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
        data = torch.randn(4, 8).to(device)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(data).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    products = [one.phase for one in captured.trace.operators if one.name in ("aten::linear", "aten::addmm")]
    assert products == ["forward"]
    assert {one.phase for one in captured.trace.operators} == {"forward", "backward", "optimizer"}


def test_a_block_with_many_steps_measures_some_without_the_profiler() -> None:
    model, optimizer, step = small_network()
    with capture(model, optimizer, skip=2, steps=2) as captured:
        for _ in range(12):
            step()
    trace, cost = captured.trace, captured.cost
    assert cost.steps == 2
    assert trace.step_seconds == cost.plain
    assert trace.software["profiler"].startswith("adds ")
    assert all(operator.host_seconds is not None for operator in trace.operators if operator.seconds)


def test_modules_phases_and_links_are_known_in_forward_and_backward() -> None:
    model, optimizer, step = small_network()
    trace = capture_step(step, model, optimizer, warmup=1, steps=1)
    layers = [operator.layer for operator in trace.operators if operator.name in ("aten::linear", "aten::batch_norm")]
    assert layers == ["0", "1", "3"]
    by_id = {operator.id: operator for operator in trace.operators}
    linked = {operator.name: by_id[operator.forward] for operator in trace.operators if operator.forward is not None}
    assert linked["NativeBatchNormBackward0"].name == "aten::batch_norm"
    assert linked["NativeBatchNormBackward0"].layer == "1"
    assert linked["ReluBackward0"].layer == "2"


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("Adam", {"lr": 0.1, "foreach": False}),
        ("AdamW", {"lr": 0.1, "foreach": True}),
        ("AdamW", {"lr": 0.1, "amsgrad": True}),
        ("Adafactor", {"lr": 0.1}),
    ],
)
def test_tensors_have_the_bytes_that_pytorch_reports(optimizer: str, options: dict[str, Any]) -> None:
    if not hasattr(torch.optim, optimizer):
        pytest.skip(f"this PyTorch has no {optimizer}")
    model, optimizing, step = small_network(optimizer, **options)
    trace = capture_step(step, model, optimizing, warmup=1, steps=1)
    parameters = sum(one.nbytes for one in model.parameters())
    states = [
        value for state in optimizing.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    assert bytes_of(trace, "parameter") == parameters
    assert bytes_of(trace, "gradient", owned=True) == parameters
    assert bytes_of(trace, "optimizer_state") == sum(value.nbytes for value in states)
    assert set(trace.parameters) == {
        tensor.parameter for tensor in trace.tensors.values() if tensor.category == "optimizer_state"
    }


def test_storages_hold_what_was_there_before_the_step_and_what_it_took() -> None:
    """A buffer without a layer is what earlier tests left in the process."""
    model, optimizer, step = small_network("AdamW", lr=0.1)
    trace = capture_step(step, model, optimizer, warmup=1, steps=1)
    held = dict.fromkeys(("parameter", "buffer", "gradient", "optimizer_state"), 0)
    for storage in trace.storages:
        there = storage.born < 0 or storage.category == "gradient"
        if (
            storage.category in held
            and there
            and storage.died is None
            and (storage.layer or storage.category != "buffer")
        ):
            held[storage.category] += storage.nbytes
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    assert held["parameter"] == held["gradient"] == sum(one.nbytes for one in model.parameters())
    assert held["optimizer_state"] == sum(value.nbytes for value in states)
    assert held["buffer"] == sum(one.nbytes for one in model.buffers())
    assert all(storage.died is None or storage.died > storage.born for storage in trace.storages)
    weights = [storage.layer for storage in trace.storages if storage.category == "parameter"]
    assert weights == ["0", "0", "1", "1", "3", "3"]


def test_a_tensor_s_storage_is_the_entry_of_that_number() -> None:
    model, optimizer, step = small_network("Adam", lr=0.1)
    trace = capture_step(step, model, optimizer, steps=0)
    storages = {one.id: one for one in trace.storages}
    assert len(storages) == len(trace.storages)
    joined = [tensor for tensor in trace.tensors.values() if tensor.storage in storages]
    assert all(
        tensor.nbytes <= storages[tensor.storage].nbytes and tensor.category == storages[tensor.storage].category
        for tensor in joined
    )
    named = {tensor.storage for tensor in trace.tensors.values() if tensor.category == "parameter"}
    assert named <= storages.keys()
    layers = {item.layer for item in lifetimes(trace).items if item.category == "optimizer_state"}
    assert layers == {"0", "1", "3"}


@pytest.mark.parametrize("first", [True, False])
def test_gradients_that_the_step_before_left_are_there_until_zero_grad(first: bool) -> None:
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        if first:
            optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).sum()
        if not first:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    report = analyse(capture_step(step, model, optimizer, steps=0))
    old = [item for item in report.usage.lifetimes.items if item.category == "gradient" and item.born is None]
    assert sorted(item.nbytes for item in old) == [4 * 4, 4 * 8 * 4]
    forward = [item.born for item in report.usage.lifetimes.items if item.operator >= 0 and item.born is not None]
    assert all(item.died is not None and (item.died < min(forward)) is first for item in old)
    assert report.replay.repeats  # the new ones are what the next step finds
    assert report.peak_allocated >= report.peak_live
    assert not any("later step" in note for note in report.notes)


def test_what_runs_after_another_optimizer_s_step_is_not_the_optimizer_s() -> None:
    """Nor what a module computes for a later backward pass, once the step's own is over."""
    first, second = torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)
    one, other = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)
    with capture(skip=1, steps=0) as captured:
        for _ in range(3):
            first(torch.ones(2, 8)).sum().backward()
            other_loss = second(torch.ones(2, 4)).sum()
            one.step()
            other.zero_grad()
            other_loss.backward()
            other.step()
            second(torch.ones(2, 4)).relu()
    passes = [operator for operator in captured.trace.operators if operator.name in ("aten::linear", "AddmmBackward0")]
    assert [(operator.name, operator.phase) for operator in passes] == [
        ("AddmmBackward0", "backward"),
        ("aten::linear", "forward"),
        ("aten::linear", "forward"),
        ("AddmmBackward0", "backward"),
        ("aten::linear", "forward"),
    ]


def test_a_capture_inside_of_another_is_refused_and_the_outer_one_goes_on() -> None:
    model, optimizer, step = small_network()
    with capture(model, optimizer) as outer:
        with pytest.raises(CaptureError, match="a capture is running already"), capture(model, optimizer):
            pass
        with pytest.raises(CaptureError, match="a capture is running already"):
            capture_step(lambda: None)
        step()
    assert outer.trace.operators
    with capture(model, optimizer) as later:
        step()
    assert later.trace.operators


def test_the_files_are_kept_where_one_asks_for_it(tmp_path: Path) -> None:
    model, optimizer, step = small_network()
    trace = capture_step(step, model, optimizer, steps=2, directory=tmp_path / "run")
    again = triosim.load_trace(tmp_path / "run")
    assert isinstance(again, Trace)
    assert again.operators == trace.operators
    assert again.storages == trace.storages


def test_inference_is_all_forward() -> None:
    model, _, _ = small_network()
    inputs = torch.randn(4, 8)
    with torch.no_grad(), capture(model) as captured:
        model(inputs)
    trace = captured.trace
    assert {operator.phase for operator in trace.operators} == {"forward"}
    assert (len(trace.parameters), trace.batch_size) == (6, 4)
    assert trace.operators[-1].outputs[0].category == "output"


def test_a_compiled_model_is_captured_as_it_is_written() -> None:
    model, optimizer, _ = small_network()
    captured = capture()
    with captured:
        with pytest.warns(UserWarning, match=r"test_device_capture\.py:\d+: compilation is left out"):
            compiled = torch.compile(model)
        compiled(torch.randn(5, 8)).sum().backward()
        optimizer.step()
    assert [o.layer for o in captured.trace.operators if o.name == "aten::linear"] == ["0", "3"]
    assert captured.trace.batch_size == 5


def test_the_model_is_left_without_hooks() -> None:
    from torch.nn.modules import module

    model, optimizer, step = small_network()
    before = len(module._global_forward_hooks), len(module._global_forward_pre_hooks)
    with capture(model, optimizer, skip=1, steps=1):
        for _ in range(3):  # it is left in the middle of the plan
            step()
    with pytest.raises(ZeroDivisionError), capture(model, optimizer):
        raise ZeroDivisionError
    assert (len(module._global_forward_hooks), len(module._global_forward_pre_hooks)) == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_block_whose_optimizer_was_never_called_has_no_step() -> None:
    model, optimizer, _ = small_network()
    with pytest.raises(CaptureError, match="the capture has no step"), capture(model, optimizer):
        pass
    with pytest.raises(CaptureError, match="leave the block first"), capture(model, optimizer) as captured:
        assert captured.trace


def test_a_script_that_trains_too_little_to_be_measured_gives_the_step_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad(); model(torch.ones(3, 4)).sum().backward(); optimizer.step()
"""
    )
    trace, cost = capture_script(tmp_path / "train.py", skip=1)
    assert (trace.model, trace.batch_size) == ("Linear", 3)
    assert (cost.plain, cost.light, cost.overhead) == (None, None, None)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "4"])
def test_a_batch_size_that_is_none_is_refused(batch_size: Any) -> None:
    with pytest.raises(OptionError, match="batch_size"):
        capture(batch_size=batch_size)
    with pytest.raises(OptionError, match="batch_size"):
        capture_step(lambda: None, batch_size=batch_size)


def test_a_script_s_own_annotations_may_be_open_when_the_step_ends() -> None:
    """PyTorch's profiler writes to memory that it gave back when a range that began under it ends after it."""
    model, optimizer, step = small_network()
    with capture(model, optimizer, skip=1, steps=3) as captured:
        for _ in range(9):
            with torch.profiler.record_function("train"), torch.profiler.record_function("step"):
                step()
    assert captured.cost.steps == 3
    with torch.profiler.profile() as profiler, torch.profiler.record_function("afterwards"):
        step()
    assert "afterwards" in {event.key for event in profiler.key_averages()}


def test_an_untried_version_of_pytorch_warns_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from triosim.tracer import pytorch_version

    monkeypatch.setattr(pytorch_version, "TESTED_WITH_A_DEVICE", ("1.0", "1.1"))
    model, optimizer, step = small_network()
    with pytest.warns(UserWarning, match=r"captures on a real device were tested with PyTorch 1\.0, 1\.1, and this is"):
        trace = capture_step(step, model, optimizer, warmup=0, steps=0)
    assert trace.operators


def test_what_a_version_of_pytorch_lacks_is_an_error_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.delattr(torch.nn.modules.module, "register_module_forward_hook")
    with pytest.raises(CaptureError, match=r"has no torch\.nn\.modules\.module\.register_module_forward_hook, .*; use"):
        capture_step(lambda: called.append(1), warmup=0)
    assert called == []
