"""The energy of a FLOP, and the clock that a board's power leaves."""

from __future__ import annotations

import math

import pytest

from triosim import gpus
from triosim.gpus import energy


@pytest.mark.parametrize("gpu", gpus.catalogue(), ids=lambda gpu: gpu.name)
def test_power_lowers_the_clock_and_never_raises_it(gpu: gpus.Gpu) -> None:
    for dtype, rate in gpu.flops.items():
        assert energy.joules(gpu, dtype) >= 0
        assert 0 < energy.sustained_clock(gpu, dtype) <= gpu.clock_hz
        assert energy.sustained_rate(gpu, dtype) == math.inf or energy.sustained_rate(gpu, dtype) < rate


@pytest.mark.parametrize(
    "name", ["V100", "T4", "A100", "A40", "L4", "H100", "B200", "GB300", "MI250", "MI300X", "RTX-5090"]
)
def test_every_gpu_with_tensor_cores_has_an_energy_of_half_precision(name: str) -> None:
    assert 0.5e-12 < energy.joules(gpus.find(name), "float16") < 4e-12


def test_by_hand() -> None:
    """1.2 pJ times 989.4 TFLOP/s are 1,187 W. Of 700 W a clock of (700 / 1187)^(3/4) = 0.673 is left, 1.33 of 1.98 GHz."""
    h100 = gpus.find("H100")
    assert energy.sustained_clock(h100, "bfloat16") == pytest.approx(0.673 * 1.98e9, rel=1e-3)
    assert energy.sustained_rate(h100, "bfloat16") == pytest.approx(0.673 * 989.4e12, rel=1e-3)


def test_a_file_says_energies_by_dtype_or_one_of_half_precision() -> None:
    one, several = gpus.find("H100(energy=0.8 pJ)"), gpus.find("H100(energy={bf16: 0.8 pJ, fp8: 0.5 pJ})")
    assert energy.joules(one, "bfloat16") == energy.joules(one, "float16") == 0.8e-12
    assert energy.joules(one, "float8_e4m3fn") == 0.4e-12
    assert energy.joules(several, "float8_e4m3fn") == 0.5e-12
    assert energy.joules(several, "float16") == 0.8e-12
    assert energy.joules(several, "tf32") == 1.6e-12


def test_old_and_new_float32() -> None:
    """70 W at 17.5 pJ are 4 TFLOP/s on a T4, 72 W at 10 pJ are 7.2 on an L4."""
    assert energy.sustained_rate(gpus.find("T4"), "float32") == pytest.approx(4e12)
    assert energy.sustained_rate(gpus.find("L4"), "float32") == pytest.approx(7.2e12)
