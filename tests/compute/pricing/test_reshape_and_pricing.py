"""Another batch size changes what is about samples, and the times of these operators alone."""

from __future__ import annotations

import pytest
import traces

from triosim.compute.models.linear import Linear
from triosim.compute.pricing.repricing import FLOOR_SECONDS, reprice
from triosim.errors import OptionError, TraceError
from triosim.sharding.reshape import rescaled
from triosim.trace import Operator, Trace


def by_id(operators: list[Operator]) -> dict[int, Operator]:
    return {operator.id: operator for operator in operators}


def repriced(trace: Trace, batch: int) -> list[Operator]:
    model = Linear()
    model.fit(trace)
    return reprice(trace.operators, rescaled(trace.operators, trace.batch_size, batch).operators, model)


@pytest.mark.parametrize("trace", [traces.mlp(), traces.convnet(), traces.transformer()])
def test_everything_about_samples_scales_and_nothing_about_parameters(trace: Trace) -> None:
    scaled = rescaled(trace.operators, trace.batch_size, 3 * trace.batch_size).operators
    for before, after in zip(trace.operators, scaled, strict=True):
        pairs = zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True)
        for old, new in pairs:
            fixed = old.category in ("parameter", "optimizer_state", "temporary") or old.parameter is not None
            assert new.id == old.id
            assert new.numel == (old.numel if fixed or not old.shape else 3 * old.numel)


def test_channels_that_equal_the_batch_size_do_not_scale() -> None:
    trace = traces.convnet(batch=8, channels=8)
    weight = rescaled(trace.operators, 8, 32).operators[1].inputs[1]
    assert weight.shape == (8, 8, 3, 3)


def test_an_unlinked_gradient_of_a_weight_does_not_scale_even_if_its_channels_equal_the_batch_size() -> None:
    b = traces.Builder(8)
    data, weight, out = b.tensor(8, 4, 6, 6, category="input"), b.parameter(8, 4, 3, 3), b.tensor(8, 8, 6, 6)
    conv = b.run("aten::conv2d", [data, weight], [out], layer="conv")
    gradients = [b.tensor(8, 8, 6, 6, category="gradient"), b.tensor(8, 4, 3, 3, category="gradient")]
    b.run("ConvolutionBackward0", gradients[:1], gradients[1:], layer="conv", phase="backward", forward=conv)
    backward = rescaled(b.operators, 8, 16).operators[1]
    assert backward.inputs[0].shape == (16, 8, 6, 6)
    assert backward.outputs[0].shape == (8, 4, 3, 3)


def test_the_statistics_that_a_batch_norm_saves_are_of_channels() -> None:
    b = traces.Builder(8)
    data, scale, out = b.tensor(8, 8, 6, 6, category="input"), b.parameter(8), b.tensor(8, 8, 6, 6)
    b.run("aten::native_batch_norm", [data, scale], [out, b.tensor(8), b.tensor(8)], layer="bn")
    norm = rescaled(b.operators, 8, 16).operators[0]
    assert [tensor.shape for tensor in norm.outputs] == [(16, 8, 6, 6), (8,), (8,)]


def test_batch_and_sequence_folded_into_one_scale_together() -> None:
    b = traces.Builder(4)
    words = b.tensor(4, 10, category="input", dtype="int64")
    rows = b.tensor(40, 16)
    b.run("aten::embedding", [b.parameter(100, 16), words], [rows], layer="wte")
    assert rescaled(b.operators, 4, 6).operators[0].outputs[0].shape == (60, 16)


def test_the_transpose_of_an_activation_scales_in_its_last_dimension() -> None:
    b = traces.Builder(128)
    data, weight, out = b.tensor(128, 16, category="input"), b.parameter(4096, 16), b.tensor(128, 4096)
    linear = b.run("aten::linear", [data, weight], [out], layer="fc")
    gradient = b.tensor(128, 4096, category="gradient")
    b.run("aten::relu_backward", [gradient], [gradient], layer="fc", phase="backward", forward=linear)
    turned = b.view(gradient, 4096, 128)
    b.run(
        "aten::mm", [turned, data], [b.tensor(4096, 16, category="gradient", of=weight)], layer="fc", phase="backward"
    )
    product = rescaled(b.operators, 128, 256).operators[2]
    assert product.inputs[0].shape == (4096, 256)
    assert product.outputs[0].shape == (4096, 16)


def test_a_network_that_is_fed_nothing_of_the_batch_size_cannot_be_scaled() -> None:
    b = traces.Builder(7)
    b.run("aten::linear", [b.tensor(8, 4, category="input"), b.parameter(2, 4)], [b.tensor(8, 2)], layer="fc")
    with pytest.raises(TraceError, match="batch size 7"):
        rescaled(b.operators, 7, 14)
    with pytest.raises(OptionError, match="0 samples"):
        rescaled(b.operators, 8, 0)


def test_the_same_batch_size_leaves_every_measured_time_as_it_is() -> None:
    trace = traces.mlp()
    assert repriced(trace, trace.batch_size) == list(trace.operators)


def test_the_optimizer_costs_the_same_at_any_batch_size() -> None:
    trace = traces.mlp()
    for before, after in zip(trace.operators, repriced(trace, 64), strict=True):
        if before.phase == "optimizer":
            assert after is before


def test_a_larger_batch_takes_longer_but_no_longer_than_in_proportion() -> None:
    trace = traces.mlp(sizes=(64, 128, 256, 10))
    for before, after in zip(trace.operators, repriced(trace, 32), strict=True):
        if before.phase != "optimizer":
            assert before.seconds <= after.seconds <= 4.000001 * before.seconds


def test_no_operator_becomes_shorter_than_a_kernel_can_be_unless_it_was() -> None:
    trace = traces.mlp(batch=1024, seconds=2e-6)
    assert min(operator.seconds for operator in repriced(trace, 1)) == pytest.approx(FLOOR_SECONDS)
    tiny = traces.mlp(batch=1024, seconds=1e-7)
    assert max(op.seconds for op in repriced(tiny, 1) if op.phase == "forward") == pytest.approx(1e-7)


def test_a_backward_operator_changes_with_the_forward_operator_even_where_its_own_list_of_tensors_does_not() -> None:
    b = traces.Builder(8)
    data, weight = b.tensor(8, 16, category="input"), b.parameter(32, 16)
    linear = b.run("aten::linear", [data, weight], [b.tensor(8, 32)], layer="fc")
    turned, gradient = b.view(weight, 16, 32), b.tensor(32, 16, category="gradient", of=weight)
    b.run("AddmmBackward0", [turned], [gradient], layer="fc", phase="backward", forward=linear, seconds=2e-3)
    after = by_id(repriced(b.trace(), 16))[2]
    assert after.seconds == pytest.approx(4e-3)
