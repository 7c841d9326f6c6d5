"""What steps are off by beside their parts: fitted so that nine in ten of the average source lie within their interval."""

from __future__ import annotations

import math

import pytest

from triosim.results.uncertainty import WIDTH
from validation.steps.spread import JudgedStep, covered, fit


def test_the_least_value_that_covers_nine_in_ten() -> None:
    """Ten steps, off by 1% to 10%: the ninth is covered from 9% / 2.06 = 4.37% on, in steps of half a percent."""
    steps = [JudgedStep(math.log1p(percent / 100), 0.0) for percent in range(1, 11)]
    assert fit({"a": steps}) == 0.045
    assert covered(steps, 0.045) == 0.9
    assert covered(steps, 0.09 / WIDTH - 1e-9) == 0.8


def test_each_source_counts_once_whatever_its_rows() -> None:
    """One source of 90 steps that need nothing, one of 10 that need 10%: the mean of the two is 50% until then."""
    sure, unsure = [JudgedStep(0.0, 0.0)] * 90, [JudgedStep(math.log1p(0.10), 0.0)] * 10
    assert fit({"a": sure, "b": unsure}) == pytest.approx(0.05)


def test_what_the_parts_are_off_by_is_in_the_width() -> None:
    assert JudgedStep(0.0, 0.3).width(0.4 / WIDTH) == pytest.approx(0.5)
    assert JudgedStep(math.log(1.29), 0.3).inside(0.0)
    assert not JudgedStep(math.log(1.31), 0.3).inside(0.0)
