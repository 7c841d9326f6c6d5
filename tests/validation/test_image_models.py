"""Steps of timm's models: programs without a batch size, the file of them, and the rows of timm's tables."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from triosim.errors import OptionError
from triosim.operators import features
from triosim.trace import Operator, Tensor, Trace
from validation.image_models import captured
from validation.image_models.captured import Step
from validation.image_models.program import BATCH, program_of
from validation.steps import formats
from validation.steps.rows import Record


def linear_step(batch_size: int) -> Trace:
    """A product of (batch x 4, 8) by (8, 3), and a view of the result."""
    data = Tensor(0, (batch_size * 4, 8), "float16", "input")
    weight = Tensor(1, (8, 3), "float16", "parameter")
    out = Tensor(2, (batch_size * 4, 3), "float16")
    view = Tensor(3, (batch_size, 4, 3), "float16", storage=out.storage)
    made = Operator(1, "aten::mm", "forward", "", (data, weight), (out,), 0.0)
    seen = Operator(2, "aten::view", "forward", "", (out,), (view,), 0.0)
    after = Operator(3, "aten::mm", "backward", "", (out, weight), (data,), 0.0, forward=1)
    return Trace((made, seen, after), batch_size, "linear", "RTX-3090", times="none")


def test_a_program_is_the_step_of_any_batch_size() -> None:
    again = program_of(linear_step(BATCH)).trace(16, "RTX-3090", "linear")
    for made, expected in zip(again.operators, linear_step(16).operators, strict=True):
        assert [one.shape for one in made.inputs] == [one.shape for one in expected.inputs]
        assert [one.shape for one in made.outputs] == [one.shape for one in expected.outputs]
    assert again.operators[0].inputs[0].shape == (64, 8)
    assert again.operators[0].inputs[1].shape == (8, 3)
    assert again.operators[2].forward == again.operators[0].id
    assert again.operators[1].outputs[0].storage == again.operators[1].inputs[0].storage


def test_programs_are_read_as_they_were_packed() -> None:
    program = program_of(linear_step(BATCH))
    assert captured.unpacked(captured.packed({"one": program, "two": program})) == {"one": program, "two": program}


@pytest.mark.parametrize(("model", "gmacs"), [("tv_resnet34", 3.67), ("densenet161", 7.79), ("vgg13", 11.3)])
def test_captured_models_have_the_published_multiplications(model: str, gmacs: float) -> None:
    step = captured.trace(Step(model, 224, True, True, "products"), 32, "RTX-3090")
    forward = [one for one in step.operators if one.phase == "forward"]
    products = [one for one in forward if features.kind(one) in ("convolution", "product")]
    assert sum(features.flops(one, None) for one in products) / 2e9 / 32 == pytest.approx(gmacs, rel=0.01)


def test_inference_is_the_forward_pass_of_training_by_known_statistics() -> None:
    training, inference = (
        captured.trace(Step("tv_resnet34", 224, train, True, "products"), 8, "RTX-3090") for train in (True, False)
    )
    forward = [one.name for one in training.operators if one.phase == "forward"]
    names = [one.name for one in inference.operators]
    assert names == forward[: len(names)]
    assert set(forward[len(names) :]) >= {"aten::random_", "aten::_log_softmax"}  # labels and loss
    norms = [one for one in inference.operators if one.name == "aten::native_batch_norm"]
    assert {one.attributes["training"] for one in norms} == {False}


def test_fused_attention_is_not_that_of_a_program_with_products() -> None:
    """A ResNet has no attention, so that its program serves any."""
    found = [
        captured.is_shipped(Step(name, 224, False, True, "fused")) for name in ("tv_resnet34", "vit_base_patch16_224")
    ]
    assert found == [True, False]


def test_channels_first_is_the_same_step_without_the_attribute() -> None:
    last, first = (
        captured.trace(Step("tv_resnet34", 224, True, layout, "products"), 8, "RTX-3090") for layout in (True, False)
    )
    assert any("channels_last" in one.attributes for one in last.operators)
    assert not any("channels_last" in one.attributes for one in first.operators)
    assert [one.name for one in last.operators] == [one.name for one in first.operators]


def row_of(**changed: str) -> Record:
    values = {
        **{"phase": "train", "gpu": "rtx3090", "precision": "amp", "layout": "nhwc", "torch": "112", "compiled": "no"},
        **{"model": "tv_resnet34", "batch_size": "512.0", "img_size": "224", "step_time_ms": "251.0"},
    }
    return Record(values | changed, "table:2", 2)


def test_a_row_is_a_capture_and_a_simulation() -> None:
    kind = formats.named("timm")
    assert str(kind.command(kind.read(row_of()))) == (
        "triosim capture --fake --gpu RTX-3090 -o step.json.gz validation/image_models/timm_step.py --model tv_resnet34 "
        "--image-size 224 --batch-size 512 --train --channels-last --attention products && triosim simulate step.json.gz"
    )


def test_compiled_models_are_refused() -> None:
    kind = formats.named("timm")
    with pytest.raises(OptionError, match="compiled"):
        kind.predicted(kind.read(row_of(compiled="yes")))


@pytest.mark.skipif(not all(map(find_spec, ("torch", "timm"))), reason="capturing needs PyTorch and timm")
def test_a_step_of_the_file_is_that_of_a_capture() -> None:
    step = Step("tv_resnet34", 224, True, True, "products")
    assert captured.captured(step).trace(8, "RTX-3090", step.model) == captured.trace(step, 8, "RTX-3090")
