"""Convolutions on tensor cores, in groups and by depth, and what their memory format costs, by the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from triosim import gpus
from triosim.compute.attainable_rate import DEFAULT
from triosim.compute.models.roofline import DEFAULTS, Roofline, class_of
from triosim.trace import Operator, Tensor


def convolution(channels: int, groups: int = 1, *, channels_last: bool = True, dtype: str = "float16") -> Operator:
    """A 3x3 convolution of 64 images of 56 x 56."""
    data, out = (Tensor(one, (64, channels, 56, 56), dtype) for one in (1, 3))
    weight = Tensor(2, (channels, channels // groups, 3, 3), dtype)
    attributes = {"groups": groups, **({"channels_last": True} if channels_last else {})}
    return Operator(1, "aten::convolution", "forward", "c", (data, weight), (out,), 0.0, attributes=attributes)


def pointwise(*, channels_last: bool) -> Operator:
    """The same with a kernel of one pixel."""
    made = convolution(256, channels_last=channels_last)
    return replace(made, inputs=(made.inputs[0], Tensor(2, (256, 256, 1, 1), "float16")))


def gradient(forward: Operator) -> Operator:
    """The gradients of data and weight."""
    data, weight = forward.inputs
    given, made = (Tensor(number, data.shape, data.dtype) for number in (4, 5))
    of_weight = Tensor(6, weight.shape, weight.dtype)
    name, inputs = "aten::convolution_backward", (given, data, weight)
    return Operator(2, name, "backward", "c", inputs, (made, of_weight), 0.0, forward=1, attributes=forward.attributes)


def seconds(operator: Operator, gpu: str = "RTX-3090") -> float:
    return float(Roofline().estimate([operator], gpu).seconds[0])


def test_tensor_cores_reach_their_part_of_the_peak() -> None:
    flops = 2.0 * 64 * 56 * 56 * 256 * 256 * 9
    used = DEFAULTS["convolution on tensor cores"]
    assert seconds(convolution(256)) == pytest.approx(flops / (used.compute * 71e12) + used.launch)


def test_channels_first_are_converted_for_tensor_cores_alone() -> None:
    image = 64 * 256 * 56 * 56
    converted = 2.0 * 2 * 2 * image / (gpus.find("RTX-3090").bandwidth * DEFAULTS["convolution on tensor cores"].memory)
    assert seconds(convolution(256, channels_last=False)) - seconds(convolution(256)) == pytest.approx(converted)
    for gpu, dtype in (("V100", "float32"), ("P100", "float16")):  # in float32, and without tensor cores
        first, last = (convolution(256, channels_last=one, dtype=dtype) for one in (False, True))
        assert seconds(first, gpu) == seconds(last, gpu)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolution_in_tf32_takes_twice_as_long_as_in_half_precision(channels_last: bool) -> None:
    """An A100 has half the rate in TF32, and numbers are twice as wide."""
    launch = DEFAULTS["convolution in TF32"].launch
    half, single = (
        seconds(convolution(256, channels_last=channels_last, dtype=dtype), "A100-SXM") - launch
        for dtype in ("float16", "float32")
    )
    assert single == pytest.approx(2.0 * half)


def test_a_depthwise_convolution_is_bound_by_its_bytes() -> None:
    image = 2 * 64 * 256 * 56 * 56
    used = DEFAULTS["depthwise convolution"]
    expected = (2 * image + 2 * 256 * 9) / (936e9 * used.memory) + used.launch
    assert seconds(convolution(256, 256)) == pytest.approx(expected)


def test_depthwise_convolutions_gain_nothing_from_bandwidth_that_ordinary_cores_cannot_use() -> None:
    """A V100 has nearly the bandwidth of an RTX 3090 (900 and 936 GB/s), but 15.7 TFLOP/s in float32, which use 534."""
    launch = DEFAULTS["depthwise convolution"].launch
    slow, quick = (seconds(convolution(256, 256), gpu) - launch for gpu in ("V100", "RTX-3090"))
    assert slow / quick == pytest.approx(936 / (0.034 * 15_700), rel=0.01)


def test_gradients_are_slower_than_their_bytes_say_and_those_by_depth_most() -> None:
    """Of 256 channels by depth: two images read and one written, instead of one and one."""
    forward = convolution(256, 256)
    used, backward = DEFAULTS["depthwise convolution"], DEFAULTS["depthwise convolution gradient"]
    image, weight = 2 * 64 * 256 * 56 * 56, 2 * 256 * 9
    step = [replace(forward, id=1), gradient(forward)]
    expected = (3 * image + 2 * weight) / (936e9 * backward.memory) + backward.launch
    assert Roofline().estimate(step, "RTX-3090").seconds[1] == pytest.approx(expected)
    assert backward.memory < used.memory


def test_forward_kernels_of_one_pixel_read_channels_first_as_they_are() -> None:
    first, last = (pointwise(channels_last=one) for one in (False, True))
    assert seconds(first) == seconds(last)


def test_a_batch_norm_by_known_statistics_moves_its_images_once_as_any_other_elementwise_operator() -> None:
    image, scale = Tensor(1, (64, 256, 56, 56), "float16"), Tensor(2, (256,), "float32")
    out = Tensor(3, image.shape, "float16")
    norms = [
        Operator(
            1, "aten::native_batch_norm", "forward", "n", (image, scale), (out,), 0.0, attributes={"training": one}
        )
        for one in (True, False)
    ]
    assert [class_of(one) for one in norms] == ["batch norm", "elementwise"]


def test_batch_norm_gains_nothing_from_bandwidth_that_multiprocessors_cannot_use() -> None:
    """108 multiprocessors at 1.41 GHz move 8.5 bytes in a clock: 1.29 of the 2.04 TB/s of an A100."""
    image, statistics = Tensor(1, (64, 256, 56, 56), "float16"), Tensor(2, (256,), "float32")
    norm = Operator(
        1, "aten::batch_norm", "forward", "n", (image, statistics), (Tensor(3, image.shape, "float16"),), 0.0
    )
    launch = DEFAULTS["batch norm"].launch
    quick, slow = (seconds(norm, gpu) - launch for gpu in ("A100-SXM-80GB", "RTX-3090"))
    assert slow / quick == pytest.approx(108 * 1.41 * 8.5 / 936)


def test_groups_in_float32_fill_the_lanes_of_ordinary_cores() -> None:
    """With 8 channels in each of 64 groups, 24 of 32 lanes do nothing, and an A100's TF32 is not used."""
    flops = 2.0 * 64 * 56 * 56 * 512 * 8 * 9
    used = DEFAULTS["grouped convolution"]
    found = seconds(convolution(512, 64, dtype="float32"), "A100-SXM-80GB")
    assert found == pytest.approx(4 * flops / (19.5e12 * used.compute) + used.launch)


@pytest.mark.parametrize(
    ("channels", "groups", "channels_last", "expected"),
    [
        (256, 1, True, "convolution"),
        (256, 256, True, "depthwise convolution"),
        (256, 32, True, "grouped convolution"),  # 8 channels in 32 groups: ResNeXt's
        (256, 4, True, "grouped gradient"),  # 64 channels: RegNet's
        (256, 4, False, "grouped convolution"),
        (240, 15, True, "grouped gradient"),  # 16 channels, but 15 groups
    ],
)
def test_gradients_of_groups_with_channels_last_are_slow_but_for_resnexts(
    channels: int, groups: int, channels_last: bool, expected: str
) -> None:
    forward = convolution(channels, groups, channels_last=channels_last)
    assert class_of(gradient(forward), forward) == class_of(gradient(forward)) == expected
    assert class_of(forward) != "grouped gradient"


def test_boards_that_halve_their_tensor_cores_reach_all_of_the_peak() -> None:
    for name, halved in (("RTX-3090", True), ("RTX-4090", True), ("A100", False), ("L40S", False)):
        gpu = gpus.find(name)
        assert (DEFAULT.rate(gpu, "float16") == gpu.flops["float16"]) is halved
