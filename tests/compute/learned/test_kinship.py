"""A GPU that nobody measured is predicted as the measured one that runs the same kernels at about the same rates."""

from __future__ import annotations

import numpy as np
import pytest

from triosim import gpus
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import kinship, model_files
from triosim.gpus import Gpu

MEASURED = ("A100-SXM-80GB", "H100-SXM", "H200", "B200", "GB200", "L40S")


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("B300", "B200"),
        ("GB300", "GB200"),
        ("H800", "H100-SXM"),
        ("RTX-PRO-6000-Server", "L40S"),
        ("RTX-4090", "L40S"),
        ("RTX-3090", "L40S"),
        ("A40", "L40S"),
        ("H20", None),  # an H100's instructions, at a quarter of its rate
        ("V100", None),
        ("MI300X", None),
    ],
)
def test_tensor_cores_have_relatives_of_their_instructions(name: str, relative: str | None) -> None:
    found = kinship.nearest(gpus.find(name), MEASURED, "bfloat16")
    assert (found.name if found else None) == relative


def test_outside_tensor_cores_nobody_is_related() -> None:
    assert kinship.nearest(gpus.find("H800"), MEASURED, "float32") is None


def test_a_multiprocessor_of_twice_the_rate_and_a_quarter_of_the_bandwidth_is_ln_8_away() -> None:
    one = Gpu("one", {"float32": 1e13, "bfloat16": 1e14}, 4e11, 1e10, sms=10, clock_hz=1e9)
    other = Gpu("other", {"float32": 1e13, "bfloat16": 2e14}, 1e11, 1e10, sms=10, clock_hz=1e9)
    assert kinship.distance(one, other, "bfloat16") == pytest.approx(np.log(8))


def product(size: float, dtype: str) -> FamilyCalls:
    return FamilyCalls("product", dtype, {name: np.array([1.0 if name == "b" else size]) for name in "bmnk"})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_relative_of_a_known_generation_states_a_small_error_and_others_a_large_one(dtype: str) -> None:
    model = model_files.load(model_files.SHIPPED / f"product_{dtype}.npz").models[0]
    calls, seconds = product(4096, dtype), np.array([1e-3])
    known, near, far = (model.relative_error(calls, gpus.find(name), seconds)[0] for name in ("B200", "B300", "MI300X"))
    assert known < near < far


def test_boards_without_rows_reach_what_others_published() -> None:
    """Products of 4096 to 10240 a side in TFLOP/s: github.com/zzc0721/torch-performance-test-data, issues 162, 185, 78."""
    model = model_files.load(model_files.SHIPPED / "product_bfloat16.npz").models[0]
    published = {"RTX-PRO-6000-Server": (400, 417, 387), "A40": (115, 111, 122), "RTX-4090": (152, 160, 159)}
    for name, rates in published.items():
        for size, rate in zip((4096.0, 8192.0, 10240.0), rates, strict=True):
            found = 2 * size**3 / model.seconds(product(size, "bfloat16"), gpus.find(name))[0] / 1e12
            assert found == pytest.approx(rate, rel=0.3), (name, size)
