"""A step that PyTorch runs here and now becomes a trace."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.errors import OptionError
from triosim.tracer import capture

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def small_network() -> tuple[Any, Any]:
    """A network of two layers, and a training step of it on four samples."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    inputs, targets = torch.randn(4, 8), torch.randint(0, 3, (4,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return model, step


@needs_torch
def test_a_training_step_is_captured_with_layers_links_and_parameters() -> None:
    model, step = small_network()
    trace = capture(step, model, batch_size=4)
    assert [parameter.shape for parameter in trace.parameters.values()] == [(16, 8), (16,), (3, 16), (3,)]
    layers = [operator.layer for operator in trace.operators if operator.phase == "forward"]
    assert layers[:3] == ["0", "1", "2"]
    backward = {operator.layer for operator in trace.operators if operator.forward is not None}
    assert {"0", "1", "2"} <= backward
    owned = {tensor.parameter for tensor in trace.tensors.values() if tensor.category == "gradient"}
    assert set(trace.parameters) <= owned
    assert (trace.model, trace.batch_size, trace.gpu) == ("Sequential", 4, "CPU")
    assert trace.software["torch"]


@needs_torch
def test_the_files_are_kept_where_one_asks_for_it(tmp_path: Path) -> None:
    model, step = small_network()
    trace = capture(step, model, batch_size=4, directory=tmp_path / "run")
    assert triosim.load_trace(tmp_path / "run").operators == trace.operators


@needs_torch
def test_inference_is_all_forward() -> None:
    import torch

    model, _ = small_network()
    inputs = torch.randn(4, 8)

    def step() -> None:
        with torch.no_grad():
            model(inputs)

    trace = capture(step, model, batch_size=4, warmup=1)
    assert {operator.phase for operator in trace.operators} == {"forward"}
    assert len(trace.parameters) == 4
    assert trace.operators[-1].outputs[0].category == "output"


@needs_torch
def test_the_model_is_left_without_hooks() -> None:
    model, step = small_network()
    capture(step, model, batch_size=4, warmup=1)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "4"])
def test_a_batch_size_that_is_none_is_refused(batch_size: Any) -> None:
    with pytest.raises(OptionError, match="batch_size"):
        capture(lambda: None, None, batch_size=batch_size)  # type: ignore[arg-type]


def test_without_pytorch_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match=r"pip install 'triosim\[torch\]'"):
        capture(lambda: None, None, batch_size=4)  # type: ignore[arg-type]
