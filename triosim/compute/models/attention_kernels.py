"""Operator times of attention by the kernel that runs: FlashAttention-2 or cuDNN's on Hopper, or the first one in Triton.

The measured tables of these chips hold FlashAttention 3 and 4, which are written for them. PyTorch's flash attention is
FlashAttention-2, whose products do not use Hopper's asynchronous tensor core instructions: it reaches about half of that rate.
Shah et al., "FlashAttention-3" (2024), figures 5 and 6, show the rates of each kernel on an H100, for 16,384 tokens and heads
of 2,048 features together, by sequence length s. They are within 8% of

    rate = peak * share * s / (s + half)

where ``half`` is the length at which half of the rate is reached. The figures have no causal backward pass: its mask is assumed
to cost as much as the forward pass's.

The first FlashAttention as written in Triton (``attributes["kernel"] == "triton"``; Dao et al. 2022) is what many trained with
in 2022 and 2023. Its rate is what MPT's steps with long sequences leave for attention (mosaicml/llm-foundry: 168 to 184 TFLOP/s
on H100s, 98 to 101 on A100s, for heads of 64 as of 128 features): its products are Ampere's on both, and it scales with
multiprocessors and clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import ComputeModel, Estimates
from triosim.compute.operator_sequence import OperatorSequence, deduplicated
from triosim.gpus import Gpu, energy
from triosim.operators.features import base_name
from triosim.trace import Operator

#: The time of a call without any arithmetic.
_LAUNCH_SECONDS = 8e-6
#: The relative error: of the formula, and of what the figures leave out, such as other numbers of heads.
_ERROR = 0.1
_BLOCK = 128
_EMPTY_THERE = 16 / (2048 / 132)  # the waves of the figures' calls, over the full waves that their blocks would make
_PEAK = 989.4e12  # of the H100 of the figures
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A kernel's TFLOP/s for long sequences on the H100, and the length at which it reaches half of them."""

    tflops: float
    half: float

    def rate(self, length: float, speed: float) -> float:
        """Return FLOP/s at a length, on a chip of so many times the speed."""
        return self.tflops * 1e12 * speed * length / (length + self.half)


#: By kernel, pass and whether it is causal, then by features of a head; between two of these widths the larger one's holds.
_CURVES: Mapping[tuple[str, str, bool], Mapping[int, RateCurve]] = {
    ("flash", "forward", True): {64: RateCurve(303, 350), 128: RateCurve(340, 400), 256: RateCurve(303, 230)},
    ("flash", "forward", False): {64: RateCurve(325, 75), 128: RateCurve(373, 100), 256: RateCurve(327, 80)},
    ("flash", "backward", False): {64: RateCurve(293, 245), 128: RateCurve(328, 270)},
    ("cudnn", "forward", True): {64: RateCurve(394, 380), 128: RateCurve(550, 380), 256: RateCurve(515, 330)},
    ("cudnn", "forward", False): {64: RateCurve(417, 120), 128: RateCurve(615, 80), 256: RateCurve(590, 110)},
    ("cudnn", "backward", False): {64: RateCurve(442, 340), 128: RateCurve(535, 385)},
}
#: Of the first FlashAttention in Triton, in both directions, with or without a mask.
_TRITON = RateCurve(172, 350)
_SMS, _CLOCK = 132, 1.98e9  # of the H100
_BACKWARD = 2.5  # times the arithmetic of the forward pass: Dao et al. 2022


class AttentionKernels(ComputeModel):
    """``_scaled_dot_product_flash_attention``, ``..._cudnn_attention`` and their backward, in half precision."""

    name = "attention"

    @deduplicated
    def estimate(self, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        """Return the time of each call of a known kernel on a GPU; NaN for other operators."""
        target = gpus.find(gpu)
        seen = OperatorSequence.of(operators)
        seconds = [_seconds(operator, forward, target) for operator, forward in zip(seen, seen.forwards, strict=True)]
        return Estimates(np.array(seconds), np.full(len(seen), _ERROR), [self.name] * len(seen))


def _seconds(operator: Operator, forward: Operator | None, gpu: Gpu) -> float:
    """Return the time of a call of a known kernel; NaN for other operators."""
    call = _call(operator, forward)
    if call is None or not _runs_on(call[0], gpu):
        return float("nan")
    kernel, causal, sizes = call
    batch, heads, length, keys, width = sizes
    backward = base_name(operator.name).endswith("_backward")
    speed = gpu.sms * gpu.clock_hz / (_SMS * _CLOCK) if kernel == "triton" else gpu.rate("bfloat16") / _PEAK
    rate = _curve(kernel, backward, causal, width).rate(length, speed)
    flops = 4.0 * batch * heads * length * keys * width * (0.5 if causal else 1.0) * (_BACKWARD if backward else 1.0)
    # The figures' calls are 2,048 blocks: their rates include the empty share of the last wave.
    blocks = batch * heads * -(-(keys if backward else length) // _BLOCK)
    waves = blocks / max(gpu.sms, 1)
    seconds = flops / rate * (-(-waves // 1) / waves) / _EMPTY_THERE + _LAUNCH_SECONDS
    return max(seconds, flops / energy.sustained_rate(gpu, "bfloat16"))


def knows(operator: Operator, gpu: Gpu) -> bool:
    """Whether an operator is a call of a kernel whose rates on a GPU are known."""
    call = _call(operator, None)
    return call is not None and _runs_on(call[0], gpu)


def _runs_on(kernel: str, gpu: Gpu) -> bool:
    return gpu.architecture in (("ampere", "hopper") if kernel == "triton" else ("hopper",))


def _call(operator: Operator, forward: Operator | None) -> tuple[str, bool, tuple[int, int, int, int, int]] | None:
    """Return the kernel, whether it is causal, and (batch, heads, queries, keys, features of a head)."""
    of = forward or operator
    name = base_name(of.name)
    kernel = next((one for one in ("flash", "cudnn") if name.startswith(f"scaled_dot_product_{one}_attention")), None)
    kernel = of.attributes.get("kernel", kernel)
    if kernel not in ("flash", "cudnn", "triton") or "cpu" in name:
        return None
    given = [tensor for tensor in of.inputs if len(tensor.shape) == 4]
    if forward is None and name.endswith("_backward"):
        given = given[1:]  # the first input is the gradient
    if len(given) < 3 or given[0].dtype not in _HALF:
        return None
    (batch, heads, length, width), (_, _, keys, _) = given[0].shape, given[1].shape
    sizes = (batch, heads, length, keys, width)
    return (kernel, of.attributes.get("is_causal") is True, sizes) if min(sizes) else None


def _curve(kernel: str, backward: bool, causal: bool, width: int) -> RateCurve:
    if kernel == "triton":
        return _TRITON
    direction = "backward" if backward else "forward"
    curves = _CURVES[kernel, direction, causal and not backward]
    curve = curves[min((known for known in curves if known >= width), default=max(curves))]
    if not (backward and causal):
        return curve
    masked, full = (_curve(kernel, False, one, width) for one in (True, False))
    return RateCurve(curve.tflops * masked.tflops / full.tflops, curve.half + masked.half - full.half)
