"""Boards of a measured chip with another memory, or that may draw less power."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from triosim import gpus
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.roofline import Roofline
from triosim.gpus import energy
from triosim.trace import Operator, Tensor


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Operator:
    shapes = ((m, k), (k, n), (m, n))
    *factors, out = (Tensor(number, shape, dtype) for number, shape in enumerate(shapes))
    return Operator(1, "aten::mm", "forward", "", tuple(factors), (out,), 0.0)


def board(folder: Path, text: str) -> str:
    path = folder / "board.yaml"
    path.write_text(f"like: H100-SXM\nname: a board of {folder.name}\n{text}")
    return gpus.find(path).name


def test_a_long_product_runs_at_the_clock_whose_power_is_the_limit() -> None:
    """At 1 pJ a FLOP the peak of 989.4 TFLOP/s takes 989.4 W; of 500 W a clock of (500 / 989.4)^(3/4) = 0.599 is left."""
    found = AutoComputeModel().estimate([product(8192, 8192, 8192)], "H100(power=500 W, energy=1 pJ)")
    assert 2 * 8192**3 / found.seconds[0] == pytest.approx(0.5993 * 989.4e12, rel=1e-3)
    assert found.model[0] == "forest"


def test_more_power_is_never_slower_and_less_energy_neither() -> None:
    several = [product(m, 8192, 4096) for m in (16, 512, 2048, 16384)]
    boards = [f"H100(power={power} W, energy={energy} pJ)" for energy in (1.4, 0.9) for power in (300, 500, 700, 2000)]
    times = [AutoComputeModel().estimate(several, name).seconds for name in boards]
    assert all((slower >= faster).all() for slower, faster in itertools.pairwise(times[:4]))
    assert all((slower >= faster).all() for slower, faster in zip(times[:4], times[4:], strict=True))


def test_a_step_is_held_to_the_power_that_a_short_loop_may_exceed() -> None:
    """Long products of the table reach 800 TFLOP/s of an H100, its 700 W two thirds of the peak of 989."""
    several = [product(8192, 8192, 8192), product(512, 512, 512)]
    loop, step = (AutoComputeModel(sustained=one).estimate(several, "H100").seconds for one in (False, True))
    assert 2 * 8192**3 / loop[0] > 700e12
    assert 2 * 8192**3 / step[0] == pytest.approx(energy.sustained_rate(gpus.find("H100"), "bfloat16"))
    assert step[1] == loop[1]


def test_a_loop_and_a_step_are_alike_where_power_is_plenty() -> None:
    several = [product(8192, 8192, 8192), product(64, 8192, 512)]
    loop, step = (AutoComputeModel(sustained=one).estimate(several, "H20").seconds for one in (False, True))
    assert loop.tolist() == step.tolist()


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
    model = AutoComputeModel(sustained=False)
    slow, full = (model.estimate(several, f"H100(clock={clock} GHz)").seconds for clock in (0.99, 1.98))
    assert slow[0] / full[0] == pytest.approx(2.0, rel=0.05)
    assert slow[1] / full[1] < 1.1  # it waits for memory


def test_long_products_of_narrow_numbers_are_held_by_power_too() -> None:
    """fp8 takes half of the energy at twice the peak rate: the same power, and so the same clock."""
    gpu = gpus.find("H100(power=500 W)")
    clocks = {energy.sustained_clock(gpu, dtype) for dtype in ("bfloat16", "float8_e4m3fn", "tf32")}
    assert max(clocks) / min(clocks) == pytest.approx(1.0, rel=1e-3)
    eight = Roofline().estimate([product(8192, 8192, 8192, "float8_e4m3fn")], gpu.name).seconds[0]
    assert 2 * 8192**3 / eight == pytest.approx(energy.sustained_rate(gpu, "float8_e4m3fn"), rel=0.01)  # and a launch
