"""Boards of a measured chip with another memory, or that may draw less power."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim import gpus
from triosim.compute.attainable_rate import DEFAULT
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.roofline import Roofline
from triosim.trace import Operator, Tensor


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Operator:
    shapes = ((m, k), (k, n), (m, n))
    *factors, out = (Tensor(number, shape, dtype) for number, shape in enumerate(shapes))
    return Operator(1, "aten::mm", "forward", "", tuple(factors), (out,), 0.0)


def board(folder: Path, text: str) -> str:
    path = folder / "board.yaml"
    path.write_text(f"like: H100-SXM\nname: a board of {folder.name}\n{text}")
    return gpus.find(path).name


def test_a_long_product_takes_its_energy_over_the_power_of_the_board(tmp_path: Path) -> None:
    """2 * 8192^3 FLOPs of 1 pJ each at 500 W are 2.2 ms; the measured H100 takes 1.4 ms."""
    name = board(tmp_path, "tdp_watts: 500 W\njoules_per_flop: 1 pJ\n")
    found = AutoComputeModel().estimate([product(8192, 8192, 8192)], name)
    assert found.seconds[0] == pytest.approx(2 * 8192**3 * 1e-12 / 500, rel=1e-9)
    assert found.model[0] == "forest"
    assert AutoComputeModel().estimate([product(8192, 8192, 8192)], "H100-SXM").seconds[0] < 0.8 * found.seconds[0]


def test_without_an_energy_the_same_chip_computes_as_the_measured_one_does(tmp_path: Path) -> None:
    name = board(tmp_path, "capacity: 96 GB\n")
    several = [product(8192, 8192, 8192), product(4096, 1024, 4096)]
    ours, measured = (AutoComputeModel().estimate(several, one) for one in (name, "H100-SXM"))
    assert ours.seconds == pytest.approx(measured.seconds, rel=1e-9)
    assert (ours.relative_error > measured.relative_error).all()


def test_slower_memory_prolongs_what_waits_for_memory(tmp_path: Path) -> None:
    name = board(tmp_path, "bandwidth: 2.4 TB/s\n")
    thin, square = product(16, 16384, 16384), product(8192, 8192, 8192)
    ours, measured = (AutoComputeModel().estimate([thin, square], one).seconds for one in (name, "H100-SXM"))
    assert 1.2 < ours[0] / measured[0] < 1.5
    assert 0.97 < ours[1] / measured[1] < 1.06


def test_half_of_the_clock_is_half_of_the_speed_of_what_computes() -> None:
    several = [product(8192, 8192, 8192), product(16, 16384, 16384)]
    slow, full = (AutoComputeModel().estimate(several, f"H100(clock={clock} GHz)").seconds for clock in (0.99, 1.98))
    assert slow[0] / full[0] == pytest.approx(2.0, rel=0.05)
    assert slow[1] / full[1] < 1.1  # it waits for memory


def test_narrow_numbers_take_less_energy_and_single_precision_has_a_law_of_its_own(tmp_path: Path) -> None:
    name = board(tmp_path, "tdp_watts: 500 W\njoules_per_flop: 1e-12\n")
    gpu = gpus.find(name)
    limits = {dtype: DEFAULT.power_limit(gpu, dtype) for dtype in ("bfloat16", "float8_e4m3fn", "tf32", "float32")}
    assert limits == pytest.approx(
        {"bfloat16": 500e12, "float8_e4m3fn": 1000e12, "tf32": 250e12, "float32": 50e12}, rel=1e-9
    )
    eight = Roofline().estimate([product(8192, 8192, 8192, "float8_e4m3fn")], name).seconds[0]
    assert eight == pytest.approx(2 * 8192**3 / 1000e12, rel=0.01)  # and a launch
