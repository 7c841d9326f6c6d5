"""Attention by the kernel that PyTorch runs: FlashAttention-2 and cuDNN's, on Hopper."""

from __future__ import annotations

import math

import pytest

from triosim.compute.models.attention_kernels import AttentionKernels
from triosim.compute.models.auto import AutoComputeModel
from triosim.trace import Operator, Tensor

#: TFLOP/s on an H100 of 16,384 tokens, whose heads have 2,048 features together (Shah et al. 2024, figures 5 and 6).
FIGURES = [
    ("flash", "forward", True, 128, 512, 191),
    ("flash", "forward", True, 128, 2048, 298),
    ("flash", "forward", True, 128, 8192, 333),
    ("flash", "forward", True, 64, 8192, 295),
    ("flash", "forward", False, 128, 8192, 370),
    ("flash", "forward", True, 256, 16384, 298),
    ("flash", "backward", False, 128, 8192, 318),
    ("flash", "backward", False, 64, 1024, 238),
    ("cudnn", "forward", True, 128, 8192, 529),
    ("cudnn", "forward", False, 128, 2048, 617),
    ("cudnn", "backward", False, 128, 8192, 518),
]


def call(
    named: str, direction: str, causal: bool, width: int, length: int, batch: int | None = None, **said: object
) -> list[Operator]:
    """One call, behind the forward one that it differentiates."""
    shape = (batch or 16384 // length, 2048 // width, length, width)
    tensors = tuple(Tensor(number, shape, "bfloat16") for number in range(6))
    name = f"aten::_scaled_dot_product_{named}_attention"
    attributes = {"is_causal": causal, **said}
    calls = [Operator(1, name, "forward", "", tensors[:3], tensors[3:4], 0.0, attributes=attributes)]
    if direction == "backward":
        given = (tensors[4], *tensors[:4])
        calls.append(Operator(2, f"{name}_backward", "backward", "", given, tensors[3:], 0.0, forward=1))
    return calls


def seconds(calls: list[Operator], gpu: str = "H100-SXM") -> float:
    return float(AttentionKernels().estimate(calls, gpu).seconds[-1])


@pytest.mark.parametrize(("kernel", "direction", "causal", "width", "length", "published"), FIGURES)
def test_the_published_rates_are_met_within_7_percent(
    kernel: str, direction: str, causal: bool, width: int, length: int, published: float
) -> None:
    """FLOPs as the figures count them: half of the scores where they are masked, and 2.5 times as many backward."""
    flops = 4 * 16384 * length * 2048 * (0.5 if causal else 1) * (2.5 if direction == "backward" else 1)
    assert flops / seconds(call(kernel, direction, causal, width, length)) == pytest.approx(published * 1e12, rel=0.07)


def test_what_pytorch_calls_flash_attention_is_slower_on_hopper_than_the_tables_of_flash_attention_3() -> None:
    ours = AutoComputeModel().estimate(call("flash", "forward", True, 128, 8192), "H100-SXM")
    table = AutoComputeModel().estimate(call("flash", "forward", True, 128, 8192, kernel="measured"), "H100-SXM")
    assert (ours.model, table.model) == (["attention"], ["forest"])
    assert 1.6 < ours.seconds[0] / table.seconds[0] < 2.0  # 602 / 333 TFLOP/s in the paper


def test_the_h200_computes_attention_as_the_h100_does_and_other_chips_have_their_own_kernels() -> None:
    calls = call("flash", "forward", True, 128, 4096)
    assert seconds(calls, "H200") == pytest.approx(seconds(calls), rel=1e-12)
    assert math.isnan(seconds(calls, "A100-SXM-80GB"))
    assert AutoComputeModel().estimate(calls, "A100-SXM-80GB").model == ["forest"]


def test_causal_attention_of_long_sequences_takes_half_as_long_or_a_little_more() -> None:
    for direction in ("forward", "backward"):
        masked, full = (seconds(call("flash", direction, causal, 128, 16384)) for causal in (True, False))
        assert 0.5 < masked / full < 0.6


def test_a_call_that_fills_a_wave_by_one_block_takes_two_waves() -> None:
    """132 multiprocessors: 16 heads of 8 blocks are a wave, and twice as many two waves, although 8 of 264 are empty."""
    one, two = (seconds(call("flash", "forward", True, 128, 1024, batch=batch)) - 8e-6 for batch in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-6)


def test_single_precision_is_left_to_others() -> None:
    calls = call("flash", "forward", True, 128, 4096)
    single = [
        Operator(
            1, calls[0].name, "forward", "", tuple(Tensor(n, (4, 16, 4096, 128), "float32") for n in range(3)), (), 0.0
        )
    ]
    assert math.isnan(seconds(single))


@pytest.mark.parametrize(("gpu", "measured"), [("H100-SXM", (168, 184)), ("A100-SXM-80GB", (98, 101))])
def test_flash_attention_in_triton_is_as_fast_as_long_sequences_of_mpt_show(
    gpu: str, measured: tuple[int, int]
) -> None:
    """TFLOP/s that the steps of MPT leave for both passes of attention of 32,768 and 65,536 tokens (llm-foundry, 2023)."""
    flops = 4 * 32768**2 * 2048 * 0.5 * 3.5
    calls = call("flash", "backward", True, 128, 32768, 1, kernel="triton")
    took = AttentionKernels().estimate(calls, gpu).seconds.sum()
    assert 0.95 * measured[0] < flops / took / 1e12 < 1.05 * measured[1]


def test_flash_attention_in_triton_is_not_known_on_other_generations() -> None:
    assert math.isnan(seconds(call("flash", "forward", True, 128, 8192, kernel="triton"), "V100-SXM2-32GB"))
