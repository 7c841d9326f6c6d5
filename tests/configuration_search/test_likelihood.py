"""How likely one step is faster than another: normal errors, of which the part that both have in common cancels."""

from __future__ import annotations

import math

import pytest

from triosim.configuration_search.answer.likelihood import chance, chance_of_being_better
from triosim.configuration_search.outcome import Figures

#: A mean absolute deviation of 8%: a standard deviation of 10%, times sqrt(pi / 2) = 1.2533.
DOUBT = {"machine and framework": 0.1 / 1.2533}
ONE_DEVIATION = 0.8413  # of a normal distribution below one standard deviation


def test_independent_errors_add_in_squares() -> None:
    assert chance(math.exp(math.sqrt(2) * 0.1), DOUBT, DOUBT, correlation=0.0) == pytest.approx(ONE_DEVIATION, abs=1e-4)
    assert chance(math.exp(0.1), DOUBT, {}, correlation=0.0) == pytest.approx(ONE_DEVIATION, abs=1e-4)


def test_sources_add_in_squares() -> None:
    two = {"launches": 0.3 / 1.2533, "network": 0.4 / 1.2533}
    assert chance(math.exp(0.5), two, {}) == pytest.approx(ONE_DEVIATION, abs=1e-4)


def test_what_both_have_in_common_cancels() -> None:
    # The difference of two errors of 10% with a correlation of 0.5 deviates by 10%; with 1, by nothing.
    assert chance(math.exp(0.1), DOUBT, DOUBT, correlation=0.5) == pytest.approx(ONE_DEVIATION, abs=1e-4)
    assert chance(1.001, DOUBT, DOUBT, correlation=1.0) == pytest.approx(1.0)


def test_measured_times_are_certain() -> None:
    assert chance(1.001, {}, {}) == 1.0
    assert chance(1.0, {}, {}) == 0.5


def test_doubts_are_parts_of_their_own_steps() -> None:
    first = Figures(1.0, 8, 4.0, 0.7, 0.1, 0.2, 0.0, doubts=(("network", 0.1),))
    second = Figures(2.0, 8, 2.0, 0.7, 0.1, 0.2, 0.0, doubts=(("network", 0.2),))
    assert chance_of_being_better(first, second, 2.0) == chance(2.0, {"network": 0.1}, {"network": 0.1})
    assert chance_of_being_better(second, first, 0.5) == pytest.approx(1.0 - chance_of_being_better(first, second, 2.0))
