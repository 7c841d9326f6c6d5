"""The FLOP rate that a GPU attains where nothing was measured on it: a share of its peak, or what its power allows.

A product of large float32 matrices reaches a share of the peak, unless that takes more than the board's power: inference cards
(T4, L4, P4) hold 30% to 50% of the peak that their data sheet gives. The energy of a FLOP, everything on the board
counted, is fitted for two generations of chips, before and from Ada and Hopper. On tensor cores it is what a GPU's file says
(``joules_per_flop``): of two boards with the same chip, the one with the lower power limit computes more slowly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triosim.gpus import Gpu
from triosim.trace import DTYPE_BYTES

#: Bytes of a factor that tensors do not have.
_WIDTHS = {"tf32": 4}
_NEW = ("ada", "hopper", "blackwell", "cdna")


@dataclass(frozen=True, slots=True)
class AttainableRate:
    """``share`` of the peak; joules per float32 FLOP of ``old`` chips and of ``new`` ones (from Ada and Hopper on)."""

    share: float
    old: float
    new: float

    def rate(self, gpu: Gpu, dtype: str) -> float:
        """Return FLOP/s at best."""
        return min(self.share * gpu.rate(dtype), self.power_limit(gpu, dtype))

    def power_limit(self, gpu: Gpu, dtype: str) -> float:
        """Return the FLOP/s that a board's power allows; infinity where nothing is known of it.

        A FLOP of tensor cores takes the more energy the wider its factors are: in fp8 half of what it takes in half precision.
        """
        if dtype != "float32":
            joules = gpu.joules_per_flop * _WIDTHS.get(dtype, DTYPE_BYTES.get(dtype, 2)) / 2.0
            return gpu.tdp_watts / joules if joules and gpu.tdp_watts else math.inf
        if not gpu.tdp_watts:
            return math.inf
        return gpu.tdp_watts / (self.new if gpu.architecture.lower().startswith(_NEW) else self.old)


#: Without any measurement.
PLAIN = AttainableRate(0.85, 17.5e-12, 10e-12)


def fit(gpus: Sequence[Gpu], rates: Sequence[float], dtype: str) -> AttainableRate:
    """Return the parameters with the smallest mean error of the logarithm of the measured rates."""
    best, found = np.inf, PLAIN
    for share, old, new in itertools.product(
        np.arange(0.60, 1.0, 0.02), np.arange(14e-12, 21e-12, 0.5e-12), np.arange(6e-12, 16e-12, 0.5e-12)
    ):
        tried = AttainableRate(float(share), float(old), float(new))
        error = sum(abs(np.log(tried.rate(gpu, dtype) / rate)) for gpu, rate in zip(gpus, rates, strict=True))
        if error < best - 1e-9:
            best, found = error, tried
    return found
