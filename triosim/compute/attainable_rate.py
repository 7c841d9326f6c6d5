"""The FLOP rate of a GPU without measurements: a share of its peak, or the rate that its power allows.

A product of large float32 matrices reaches a share of the peak, unless that takes more than the board's power: inference cards
(T4, L4, P4) reach 30% to 50% of the peak of their data sheet. The energy of a FLOP, for the whole board, is fitted for two
generations of chips, before and from Ada and Hopper. What the power allows on tensor cores, in steps and not in loops, is in
``triosim.gpus.energy``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triosim.gpus import Gpu, energy


@dataclass(frozen=True, slots=True)
class AttainableRate:
    """The fitted share of the peak, and joules per float32 FLOP of old chips and of new ones (from Ada and Hopper on)."""

    share: float
    old: float
    new: float

    def rate(self, gpu: Gpu, dtype: str) -> float:
        """Return the FLOP/s that large products attain."""
        return min(
            (1.0 if halves_tensor_cores(gpu, dtype) else self.share) * gpu.rate(dtype), self.power_limit(gpu, dtype)
        )

    def power_limit(self, gpu: Gpu, dtype: str) -> float:
        """Return the FLOP/s in float32 that a board's power allows; infinity in other dtypes, and where it is not known."""
        if dtype != "float32" or not gpu.tdp_watts:
            return math.inf
        return gpu.tdp_watts / (self.new if energy.is_new(gpu) else self.old)


def halves_tensor_cores(gpu: Gpu, dtype: str) -> bool:
    """Whether a board adds up half precision in float32 at half its tensor cores' rate, twice that of its other cores.

    GeForce boards do, and nothing else limits products there, which reach all of the peak: whole models of timm in half
    precision come to 65 of 71 TFLOP/s on an RTX 3090.
    """
    return "tf32" in gpu.flops and dtype in ("float16", "bfloat16") and gpu.rate(dtype) < 2.2 * gpu.rate("float32")


#: The parameters without any fit.
DEFAULT = AttainableRate(0.85, energy.FLOAT32_OLD, energy.FLOAT32_NEW)


def fit(gpus: Sequence[Gpu], rates: Sequence[float], dtype: str) -> AttainableRate:
    """Return the parameters with the smallest mean error of the logarithm of the measured rates."""
    best, found = np.inf, DEFAULT
    for share, old, new in itertools.product(
        np.arange(0.60, 1.0, 0.02), np.arange(14e-12, 21e-12, 0.5e-12), np.arange(6e-12, 16e-12, 0.5e-12)
    ):
        tried = AttainableRate(float(share), float(old), float(new))
        error = sum(abs(np.log(tried.rate(gpu, dtype) / rate)) for gpu, rate in zip(gpus, rates, strict=True))
        if error < best - 1e-9:
            best, found = error, tried
    return found
