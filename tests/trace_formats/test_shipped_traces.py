"""The traces that ship with triosim: known networks, with a dataflow that can be trusted and times that say what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import triosim
from triosim.trace import Trace

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "traces"
NETWORKS = {"resnet50": (25_557_032, 128), "vgg13": (133_047_848, 128), "gpt2": (124_439_808, 8)}


@pytest.fixture(scope="module", params=NETWORKS)
def trace(request: pytest.FixtureRequest) -> Trace:
    return triosim.load_trace(FOLDER / f"{request.param}_a100_roofline.json.gz")


def test_the_networks_have_their_published_numbers_of_parameters(trace: Trace) -> None:
    elements, batch = NETWORKS[trace.model]
    assert sum(parameter.numel for parameter in trace.parameters.values()) == elements
    assert trace.batch_size == batch


def test_the_times_say_that_nobody_measured_them(trace: Trace) -> None:
    assert trace.times.startswith("predicted: roofline of an NVIDIA A100")


def test_forward_convolutions_and_products_take_as_many_operations_as_published(trace: Trace) -> None:
    # Per image: ResNet-50 4.09 GMACs (torchvision), VGG-13 11.32; GPT-2: 2 N per token, and attention's 4 t d a layer.
    expected = {
        "resnet50": 2 * 4.09e9 * 128,
        "vgg13": 2 * 11.32e9 * 128,
        "gpt2": 8 * 1024 * (2 * (12 * 12 * 768**2 + 768 * 50257) + 12 * 4 * 1024 * 768),
    }[trace.model]
    heavy = ("aten::conv2d", "aten::linear", "aten::scaled_dot_product_attention")
    flops = sum(operator.flops or 0 for operator in trace.operators if operator.name in heavy)
    assert flops == pytest.approx(expected, rel=0.01)


def test_everything_that_is_read_was_there_or_was_made_before(trace: Trace) -> None:
    there = {"input", "parameter", "buffer", "optimizer_state"}
    made: set[int] = set()
    for operator in trace.operators:
        for tensor in operator.inputs:
            assert tensor.category in there or tensor.id in made, (operator, tensor)
        made.update(tensor.id for tensor in operator.outputs)


def test_each_tensor_is_made_once_unless_it_is_changed_in_place(trace: Trace) -> None:
    made: set[int] = set()
    for operator in trace.operators:
        given = {tensor.id for tensor in operator.inputs}
        fresh = [tensor.id for tensor in operator.outputs if tensor.id not in given]
        assert not made & set(fresh), operator
        made.update(fresh)


def test_each_parameter_gets_a_gradient_that_the_optimizer_reads(trace: Trace) -> None:
    made = {tensor.id: tensor.parameter for one in trace.operators if one.phase == "backward" for tensor in one.outputs}
    read = [
        tensor
        for one in trace.operators
        if one.phase == "optimizer"
        for tensor in one.inputs
        if tensor.category == "gradient"
    ]
    assert sorted({tensor.parameter or 0 for tensor in read}) == sorted(trace.parameters)
    assert all(made[tensor.id] == tensor.parameter for tensor in read)
    assert all(trace.parameters[tensor.parameter or 0].shape == tensor.shape for tensor in read)


def test_each_forward_operator_with_parameters_is_differentiated(trace: Trace) -> None:
    differentiated = {operator.forward for operator in trace.operators}
    for operator in trace.operators:
        if operator.phase == "forward" and any(tensor.category == "parameter" for tensor in operator.inputs):
            assert operator.id in differentiated, operator


def test_an_activation_s_gradient_has_its_shape(trace: Trace) -> None:
    by_id = {operator.id: operator for operator in trace.operators}
    for operator in trace.operators:
        if operator.forward is not None and operator.name not in ("NllLossBackward0", "LogSoftmaxBackward0"):
            wanted = {tensor.shape for tensor in by_id[operator.forward].inputs}
            assert {tensor.shape for tensor in operator.outputs} <= wanted, operator


def test_residual_networks_add(trace: Trace) -> None:
    additions = sum(
        operator.name in ("aten::add", "aten::add_") and len(operator.inputs) == 2 for operator in trace.operators
    )
    assert additions == {"resnet50": 16, "vgg13": 0, "gpt2": 25}[trace.model]


def test_the_script_makes_the_very_same_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(FOLDER / "make.py"), str(tmp_path)], check=True, capture_output=True)
    for name in NETWORKS:
        made = triosim.load_trace(tmp_path / f"{name}_a100_roofline.json.gz")
        shipped = triosim.load_trace(FOLDER / f"{name}_a100_roofline.json.gz")
        assert made.operators == shipped.operators
        assert made.times == shipped.times
