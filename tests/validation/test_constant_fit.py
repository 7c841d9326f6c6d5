"""The fit of a constant: sources whose steps follow it by hand."""

from __future__ import annotations

import numpy as np
import pytest

from validation.steps.constant_fit import fitted, left_out

FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)


def rows(best: float, slope: float) -> np.ndarray:
    """Return the errors of two rows that are right at a factor of the constant, and whose times follow it by a power."""
    return slope * (np.log(FACTORS)[:, None] - np.log(best)) * np.ones((1, 2))


def test_the_energy_at_which_steps_are_right_is_found() -> None:
    assert fitted({"one": rows(1.1, 0.7)}, FACTORS) == pytest.approx(1.1, rel=0.01)


def test_the_source_whose_steps_follow_power_most_decides() -> None:
    """Between 0.9 and 1.1 a tenth more energy makes one worse by 7% and the other better by 1%."""
    sources = {"bound by power": rows(0.9, 0.7), "hardly": rows(1.1, 0.1)}
    assert fitted(sources, FACTORS) == pytest.approx(0.9, rel=0.01)


def test_rows_of_a_source_count_as_one() -> None:
    many = np.repeat(rows(1.1, 0.4), 10, axis=1)
    assert fitted({"few": rows(0.9, 0.5), "many": many}, FACTORS) == pytest.approx(0.9, rel=0.01)


def test_all_sources_of_a_gpu_are_left_out_together() -> None:
    """The fit without a GPU sees neither of its models: 0.9, where they are right at 1.1."""
    sources = {"t small H100": rows(1.1, 0.5), "t large H100": rows(1.1, 0.5), "t small B200": rows(0.9, 0.5)}
    found = left_out(sources, FACTORS, -1)
    assert found["H100"] == (pytest.approx(0.9, rel=0.01), pytest.approx(1 - (0.9 / 1.1) ** 0.5, rel=0.02))
    assert found["B200"][0] == pytest.approx(1.1, rel=0.01)
    assert left_out({"t small H100": rows(1.1, 0.5)}, FACTORS, -1) == {}
