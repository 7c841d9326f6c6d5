"""The energy of a FLOP, and the rate and clock at which a board computes for long.

A board that would draw more than its limit lowers its clock, and with it the voltage. With c, the share of the boost clock,

    power = energy of a FLOP at the boost clock * peak rate * c^(4/3)

is all that the board draws, and long products run at the peak rate times the c whose power is the limit. Without the voltage
the exponent would be 1, with it in proportion 3; what does not depend on the clock lowers it. 4/3 lies between those of two
pairs of boards: H100s of 500 and 700 W in training steps (1.2), and A100s of 250 and 300 W in float32 products (1.8).

``HALF`` has the energy of half precision on tensor cores by architecture; that of others is proportional to the width of the
factors. A benchmark's short loop may run faster, since the limit is that of an average over tens of milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from triosim.gpus.gpu import Gpu
from triosim.trace import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a half-precision FLOP on tensor cores at the boost clock, and what the figure rests on."""

    joules: float
    source: str


#: By the beginning of an architecture's name.
HALF: Mapping[str, Energy] = {
    "volta": Energy(2.95e-12, "107 TFLOP/s of a V100's long products in DeepBench, at 300 W"),
    "turing": Energy(1.8e-12, "44 TFLOP/s of a T4's long products in DeepBench, at 70 W"),
    "ampere": Energy(1.8e-12, "the most that training steps of A100s allow"),
    "ada": Energy(1.44e-12, "269 TFLOP/s of an L40S's long products in loops, at 350 W"),
    "hopper": Energy(1.2e-12, "fitted to training steps of H100s of 500 and 700 W"),
    "blackwell": Energy(
        0.87e-12, "1,755 TFLOP/s of a B200's long products in loops at 1,000 W, slower in steps as an H100's are"
    ),
    "cdna3": Energy(1.3e-12, "708 TFLOP/s that AMD calls achievable on an MI300X, at 750 W"),
    "cdna2": Energy(1.8e-12, "assumed as Ampere's, of the same process"),
}
#: Joules of a float32 FLOP outside tensor cores, before and from Ada and Hopper on: fitted to products of eight GPUs, each at
#: the clock of its limit.
FLOAT32_OLD, FLOAT32_NEW = 17.5e-12, 10e-12
#: The exponent of the clock in the power.
CLOCK_EXPONENT = 4.0 / 3.0
_NEW = ("ada", "hopper", "blackwell", "cdna")
#: Bytes of a number of a factor, where they are not those of the dtype.
_WIDTHS = {"tf32": 4, "float8_e4m3fn_block": 1, "float4_e2m1fn_x2": 0.5}


def is_new(gpu: Gpu) -> bool:
    """Whether a chip's float32 FLOPs take the lower energy: those from Ada and Hopper on."""
    return gpu.architecture.lower().startswith(_NEW)


def of_architecture(gpu: Gpu) -> Energy | None:
    """Return the energy of a half-precision FLOP on GPUs of an architecture, or None where nothing is known."""
    return HALF.get(gpu.architecture.lower())


def joules(gpu: Gpu, dtype: str) -> float:
    """Return the joules of a FLOP of a long product; 0 where nothing is known.

    What the GPU's file says of a dtype counts first, then what it says of half precision, then its architecture.
    """
    own, known = gpu.joules_per_flop, of_architecture(gpu)
    if dtype in own or dtype == "float32":
        return own.get(dtype) or (FLOAT32_NEW if is_new(gpu) else FLOAT32_OLD)
    half = own.get("float16") or own.get("bfloat16") or (known.joules if known else 0.0)
    return half * _WIDTHS.get(dtype, DTYPE_BYTES.get(dtype, 2)) / DTYPE_BYTES["float16"]


def sustained_rate(gpu: Gpu, dtype: str) -> float:
    """Return the FLOP/s that a board's power allows for long; infinity where it does not limit them, or nothing is known."""
    limit, peak = gpu.tdp_watts, gpu.rate(dtype)
    full = joules(gpu, dtype) * peak
    if not limit or full <= limit:
        return math.inf
    return float(peak * (limit / full) ** (1.0 if dtype == "float32" else 1.0 / CLOCK_EXPONENT))


def sustained_clock(gpu: Gpu, dtype: str) -> float:
    """Return the clock in Hz of long products of a dtype: as far below the boost clock as their rate is below the peak."""
    return gpu.clock_hz * min(1.0, sustained_rate(gpu, dtype) / gpu.rate(dtype))
