"""A recurrent layer without a GPU is one operator of cuDNN's, as on a GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from triosim.compute.pricing.prediction import with_predicted_times  # noqa: E402
from triosim.operators.features import flops  # noqa: E402
from triosim.trace import Operator, Trace  # noqa: E402
from triosim.tracer.fake_device import fake_capture  # noqa: E402

SAMPLES, LENGTH, FEATURES, HIDDEN = 8, 50, 64, 128


def captured(kind: str, gpu: str = "H100-SXM", half: Any = None, **options: Any) -> Trace:
    with fake_capture(gpu) as capture:
        layer = getattr(nn, kind)(FEATURES, HIDDEN, **options).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            with torch.autocast("cuda", half, enabled=half is not None):
                out, _ = layer(torch.randn(LENGTH, SAMPLES, FEATURES, device="cuda"))
            out.sum().backward()
            optimizer.step()
    return capture.trace


def recurrent(trace: Trace) -> list[Operator]:
    return [one for one in trace.operators if "rnn" in one.name or "cell" in one.name]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_layer_is_one_operator_forward_and_one_backward(kind: str, gates: int) -> None:
    """Each weight is applied once in each of 400 steps; the gradients of data and weights cost as much again each."""
    trace = captured(kind, num_layers=2, bidirectional=True)
    forward, backward = recurrent(trace)
    assert (forward.name, backward.name) == ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward")
    assert forward.outputs[0].shape == (LENGTH, SAMPLES, 2 * HIDDEN)
    assert forward.outputs[1].shape == (4, SAMPLES, HIDDEN)
    weights = 2 * gates * HIDDEN * (FEATURES + HIDDEN + 2 * HIDDEN + HIDDEN)
    assert flops(forward) == 2 * LENGTH * SAMPLES * weights
    assert backward.forward == forward.id
    assert flops(backward, forward) == 2 * flops(forward)
    made = sum(one.numel for one in backward.outputs if one.category == "gradient")
    assert made == weights + 2 * 2 * 2 * gates * HIDDEN  # and two rows of biases for each layer and direction


def test_steps_wait_for_each_other() -> None:
    """Two layers of 50 steps are 100 products in a row, none shorter than a launch; twice as many take twice as long."""
    short, long = (with_predicted_times(captured("LSTM", num_layers=count)) for count in (2, 4))
    first, second = recurrent(short)[0].seconds, recurrent(long)[0].seconds
    assert first > 100 * 1e-6
    assert second == pytest.approx(2 * first, rel=0.1)


@pytest.mark.parametrize(("gpu", "half", "fused"), [("H100-SXM", True, True), ("T4", True, False), ("T4", False, True)])
def test_bfloat16_is_cudnns_from_ampere_on(gpu: str, half: bool, fused: bool) -> None:
    forward = recurrent(captured("LSTM", gpu, torch.bfloat16 if half else None))[0]
    assert (forward.name == "aten::_cudnn_rnn") == fused
    assert forward.outputs[0].dtype == ("bfloat16" if half else "float32")


def test_without_cudnn_each_step_is_a_cell() -> None:
    torch.backends.cudnn.enabled = False
    try:
        names = [one.name for one in recurrent(captured("LSTM")) if one.phase == "forward"]
    finally:
        torch.backends.cudnn.enabled = True
    assert names == ["aten::_thnn_fused_lstm_cell"] * LENGTH


def test_samples_of_different_lengths_are_packed() -> None:
    lengths = torch.tensor([5, 2, 9, 9])
    with fake_capture() as capture:
        layer = nn.LSTM(FEATURES, HIDDEN, batch_first=True, proj_size=32).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            data = torch.randn(4, 9, FEATURES, device="cuda")
            out, (hidden, cell) = layer(pack_padded_sequence(data, lengths, batch_first=True, enforce_sorted=False))
            padded, again = pad_packed_sequence(out, batch_first=True)
            padded.sum().backward()
            optimizer.step()
    assert padded.shape == (4, 9, 32)
    assert (hidden.shape, cell.shape) == ((1, 4, 32), (1, 4, HIDDEN))
    assert again.shape == (4,)
    forward = recurrent(capture.trace)[0]
    assert forward.outputs[0].shape == (5 + 2 + 9 + 9, 32)
    assert flops(forward) == 2 * 25 * (4 * HIDDEN * (FEATURES + 32) + 32 * HIDDEN)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_gradients_of_functions_are_those_of_one_operator(kind: str) -> None:
    with fake_capture() as capture:
        layer = getattr(nn, kind)(4, 5, batch_first=True).cuda()
        weights, optimizer = dict(layer.named_parameters()), torch.optim.SGD(layer.parameters(), lr=0.1)

        def loss(given: Any, data: Any) -> Any:
            return torch.func.functional_call(layer, given, (data,))[0].sum()

        for _ in range(2):
            gradients = torch.func.grad(loss)(weights, torch.randn(3, 2, 4, device="cuda"))
            each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.randn(7, 3, 2, 4, device="cuda"))
            for name, weight in weights.items():
                weight.grad = gradients[name]
                assert (weight.grad.shape, each[name].shape) == (weight.shape, (7, *weight.shape))
            optimizer.step()
    names = [one.name for one in recurrent(capture.trace)]
    there, back = "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"
    assert names == [there, back, *[there] * 7, *[back] * 7]  # one after another, as PyTorch does


@pytest.mark.parametrize("bias", [True, False])
def test_a_gru_in_bfloat16_before_ampere_is_a_cell_for_each_time_step(*, bias: bool) -> None:
    """Each step has the product of the state, and the cell; the gradient of a cell has three gates in both products."""
    with fake_capture("T4") as capture:
        layer = nn.GRU(FEATURES, HIDDEN, bias=bias).cuda().bfloat16()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            data = torch.randn(LENGTH, SAMPLES, FEATURES, device="cuda", dtype=torch.bfloat16)
            layer(data)[0].sum().backward()
            optimizer.step()
    cells = [one for one in capture.trace.operators if "gru_cell" in one.name]
    assert len(cells) == 2 * LENGTH
    assert cells[0].outputs[0].shape == (SAMPLES, HIDDEN)
    shapes = [tensor.shape for tensor in cells[-1].outputs]
    assert shapes[:3] == [(SAMPLES, 3 * HIDDEN), (SAMPLES, 3 * HIDDEN), (SAMPLES, HIDDEN)]
    assert shapes[3:] == 2 * [(3 * HIDDEN,)] * bias
