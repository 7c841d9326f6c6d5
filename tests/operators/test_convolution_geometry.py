"""The geometry of convolutions from the shapes of their tensors, and which gradients a backward operator computes."""

from __future__ import annotations

from typing import Any

import pytest

from triosim.operators.convolutions import Geometry, forward_call, gradient_calls
from triosim.operators.features import flops
from triosim.trace import Operator, Tensor

Shape = tuple[int, ...]


def operator(
    name: str, inputs: list[Shape], outputs: list[Shape], phase: Any = "forward", **attributes: Any
) -> Operator:
    tensors = tuple(Tensor(number, shape, "float32") for number, shape in enumerate((*inputs, *outputs)))
    given, made = tensors[: len(inputs)], tensors[len(inputs) :]
    forward = 0 if phase == "backward" and name.startswith("Conv") else None
    return Operator(int(phase == "backward"), name, phase, "", given, made, 0.0, forward=forward, attributes=attributes)


#: The stem of ResNet: 3 to 64 channels, 7x7, stride 2, of 8 images of 224x224.
STEM = Geometry(8, 3, 64, 1, 224, 224, 112, 112, 7, 7, 2, 1)
IMAGES, WEIGHT, OUT = (8, 3, 224, 224), (64, 3, 7, 7), (8, 64, 112, 112)


def test_a_stem_by_its_shapes() -> None:
    call = forward_call(operator("aten::conv2d", [IMAGES, WEIGHT], [OUT], stride=[2, 2], padding=[3, 3], groups=1))
    assert call is not None
    assert call == (STEM, "forward")


def test_shapes_alone_say_the_stride() -> None:
    call = forward_call(operator("aten::cudnn_convolution", [IMAGES, WEIGHT], [OUT]))
    assert call is not None
    assert call.geometry.stride == 2


@pytest.mark.parametrize(
    ("inputs", "out", "geometry"),
    [
        ([(4, 80, 3000), (512, 80, 3)], (4, 512, 3000), Geometry(4, 80, 512, 1, 1, 3000, 1, 3000, 1, 3, 1, 1)),
        ([(80, 3000), (512, 80, 3)], (512, 3000), Geometry(1, 80, 512, 1, 1, 3000, 1, 3000, 1, 3, 1, 1)),
        (
            [(2, 16, 8, 32, 32), (32, 16, 3, 3, 3)],
            (2, 32, 8, 32, 32),
            Geometry(2, 16, 32, 1, 8 * 32, 32, 8 * 32, 32, 9, 3, 1, 1),
        ),
        ([(2, 64, 56, 56), (64, 1, 3, 3)], (2, 64, 56, 56), Geometry(2, 64, 64, 64, 56, 56, 56, 56, 3, 3, 1, 1)),
    ],
    ids=["1d", "without a batch", "3d", "depthwise"],
)
def test_other_convolutions(inputs: list[Shape], out: Shape, geometry: Geometry) -> None:
    one = operator("aten::convolution", inputs, [out])
    call = forward_call(one)
    assert call is not None
    assert call.geometry == geometry
    window = geometry.kernel_height * geometry.kernel_width
    pixels = geometry.batch * geometry.out_height * geometry.out_width
    assert flops(one) == 2 * pixels * geometry.out_channels * geometry.in_channels // geometry.groups * window


def test_a_transposed_convolution_is_the_data_gradient_of_the_one_that_undoes_it() -> None:
    """From 512 channels of 16x16 to 256 of 32x32: a convolution of stride 2 from 256 channels of 32x32 to 512 of 16x16."""
    one = operator("aten::conv_transpose2d", [(4, 512, 16, 16), (512, 256, 4, 4)], [(4, 256, 32, 32)], stride=[2, 2])
    of = Geometry(4, 256, 512, 1, 32, 32, 16, 16, 4, 4, 2, 1)
    assert forward_call(one) == (of, "data")
    backward = operator(
        "ConvolutionBackward0", [(4, 256, 32, 32)], [(4, 512, 16, 16), (512, 256, 4, 4)], "backward", stride=[2, 2]
    )
    assert gradient_calls(backward, one) == [(of, "forward"), (of, "weight")]


@pytest.mark.parametrize(
    ("outputs", "directions"),
    [([IMAGES, WEIGHT, (64,)], ["data", "weight"]), ([WEIGHT], ["weight"]), ([IMAGES], ["data"])],
)
def test_a_backward_operator_computes_what_it_writes(outputs: list[Shape], directions: list[str]) -> None:
    forward = operator("aten::conv2d", [IMAGES, WEIGHT], [OUT], stride=[2, 2])
    node = operator("ConvolutionBackward0", [OUT, IMAGES, WEIGHT], outputs, "backward")
    alone = operator("aten::convolution_backward", [OUT, IMAGES, WEIGHT], outputs, "backward", stride=[2, 2])
    assert gradient_calls(node, forward) == gradient_calls(alone, None) == [(STEM, one) for one in directions]


@pytest.mark.parametrize(
    ("name", "inputs", "out"),
    [
        ("aten::linear", [(8, 16), (32, 16)], (8, 32)),
        ("aten::conv2d", [(8, 3, 32, 32), (64, 4, 3, 3)], (8, 64, 32, 32)),
        ("aten::conv2d", [(8, 3, 32, 32), (64, 3, 3, 3)], (8, 32, 32, 32)),
        ("aten::conv2d", [(8, 3, 32, 32), (64, 3)], (8, 64)),
    ],
    ids=["a product", "channels", "result", "weight"],
)
def test_what_is_no_convolution_has_no_geometry(name: str, inputs: list[Shape], out: Shape) -> None:
    assert forward_call(operator(name, inputs, [out])) is None
