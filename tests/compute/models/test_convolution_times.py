"""Convolutions by the learned model: dtypes, gradients, GPUs that were not measured, and the calls that it leaves to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triosim import gpus
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.convolutions import Convolutions
from triosim.trace import Operator, Tensor


def conv2d(
    batch: int, channels: int, side: int, *, kernel: int = 3, dtype: str = "float32", **attributes: Any
) -> Operator:
    groups = attributes.setdefault("groups", 1)
    data = Tensor(0, (batch, channels, side, side), dtype)
    weight = Tensor(1, (channels, channels // groups, kernel, kernel), dtype, "parameter")
    out = Tensor(2, (batch, channels, side, side), dtype)
    return Operator(0, "aten::conv2d", "forward", "", (data, weight), (out,), 0.0, attributes=attributes)


def backward(forward: Operator, *, data: bool = True, weight: bool = True) -> Operator:
    made = tuple(
        Tensor(10 + number, tensor.shape, tensor.dtype)
        for number, (tensor, one) in enumerate(zip(forward.inputs, (data, weight), strict=True))
        if one
    )
    given = (forward.outputs[0], *forward.inputs)
    return Operator(1, "ConvolutionBackward0", "backward", "", given, made, 0.0, forward=0)


def seconds(operators: list[Operator], gpu: str) -> list[float]:
    found: list[float] = Convolutions().estimate(operators, gpu).seconds.tolist()
    return found


@pytest.mark.parametrize("gpu", ["A100-PCIe-80GB", "V100", "H100", "A40", "L4", "B200"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_larger_batches_take_longer_and_none_beats_winograd_at_the_peak(gpu: str, dtype: str) -> None:
    batches = (4, 16, 64, 256)
    found = seconds([conv2d(batch, 256, 28, dtype=dtype) for batch in batches], gpu)
    assert (np.diff(found) > 0).all()
    sheet = gpus.find(gpu)
    peak = max(sheet.rate(dtype), sheet.rate("tf32") if dtype == "float32" else 0.0)
    for batch, one in zip(batches, found, strict=True):
        assert one > 2 * batch * 28 * 28 * 256 * 256 * 9 / 4 / peak


def test_the_loops_of_tables_add_the_same_to_all_convolutions_with_odd_channels() -> None:
    """NeuSight's; those of multiples of 8 were measured by DeepBench, whose loop adds nothing."""
    calls = [conv2d(8, channels, 14, allow_tf32=False) for channels in (27, 251, 64)]
    alone = Convolutions().estimate(calls, "A100-PCIe-80GB").seconds
    added = Convolutions(sustained=False).estimate(calls, "A100-PCIe-80GB").seconds - alone
    assert added[0] == pytest.approx(added[1])
    assert 50e-6 < added[0] < 310e-6
    assert added[2] == 0.0


def test_a_backward_operator_takes_both_gradients() -> None:
    forward = conv2d(32, 128, 28)
    both, data, weight = (
        seconds([forward, backward(forward, **which)], "V100")[1] for which in ({}, {"weight": False}, {"data": False})
    )
    assert both == pytest.approx(data + weight)


def test_tf32_is_used_where_the_gpu_has_it_unless_the_operator_forbids_it() -> None:
    """On an A100, whose tensor cores are eight times as fast in TF32; a V100 has none."""
    may, may_not = conv2d(64, 512, 28, kernel=1), conv2d(64, 512, 28, kernel=1, allow_tf32=False)
    quick, slow = seconds([may, may_not], "A100")
    assert 1.5 * quick < slow
    assert len(set(seconds([may, may_not], "V100"))) == 1


@pytest.mark.parametrize("gpu", ["V100", "T4", "A100", "H100", "L40S"])
def test_tensor_cores_are_faster_in_half_precision(gpu: str) -> None:
    half, single = seconds([conv2d(64, 256, 56, dtype=one, allow_tf32=False) for one in ("float16", "float32")], gpu)
    assert half < single


def test_tensor_cores_read_channels_that_are_last_without_converting_them() -> None:
    first, last = conv2d(64, 64, 56, dtype="float16"), conv2d(64, 64, 56, dtype="float16", channels_last=True)
    slow, quick = AutoComputeModel().estimate([first, last], "RTX-3090").seconds
    assert slow > quick
    assert (
        len(set(seconds([conv2d(8, 64, 28, channels_last=one, allow_tf32=False) for one in (False, True)], "V100")))
        == 1
    )


def test_a_gpu_that_was_not_measured_is_less_sure() -> None:
    one = [conv2d(37, 200, 30, allow_tf32=False)]
    known, unknown = (Convolutions().estimate(one, gpu).relative_error[0] for gpu in ("A100-PCIe-80GB", "H100"))
    assert known < 0.2 < unknown


def test_what_no_table_is_like_is_left_to_others() -> None:
    """Channels last on tensor cores, and boards that halve them, are known from steps alone."""
    first, last = (conv2d(64, 64, 56, dtype="float16", channels_last=one) for one in (False, True))
    assert np.isnan(seconds([first, last], "A100")).tolist() == [False, True]
    assert np.isnan(seconds([first, last], "RTX-3090")).all()


def test_convolutions_in_groups_and_products_are_left_to_others() -> None:
    product = Operator(0, "aten::mm", "forward", "", conv2d(1, 8, 8).inputs[:2], (), 0.0)
    grouped = conv2d(8, 64, 28, groups=64)
    assert np.isnan(seconds([grouped, product], "A100")).all()
    assert AutoComputeModel().estimate([grouped], "A100").model == ["roofline"]
    assert AutoComputeModel().estimate([conv2d(8, 64, 28)], "A100").model == ["convolutions"]
