"""What the loop of a benchmark adds to its rows, and that predictions of steps leave it out."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.compute.fit.loop_cost import added_by_loop, usual

ROWS = 2400


def rows_of_a_loop(first: float, last: float) -> tuple[np.ndarray, np.ndarray]:
    """Times of rows, of which one in three takes 1 us and others up to 1 ms, and what a loop added to each."""
    least = np.where(np.arange(ROWS) % 3 == 0, 1e-6, np.random.default_rng(0).uniform(1e-4, 1e-3, ROWS))
    added = np.linspace(first, last, ROWS)
    return least, added


def test_a_cost_that_grows_is_what_the_smallest_rows_take_beyond_their_own_time() -> None:
    least, added = rows_of_a_loop(60e-6, 360e-6)
    found = added_by_loop(least + added, least)
    assert found == pytest.approx(added, abs=300e-6 / 12)  # a twelfth of the table is taken to cost the same
    assert (np.diff(found) >= 0.0).all()


def test_slow_rows_do_not_raise_the_cost() -> None:
    least, added = rows_of_a_loop(100e-6, 100e-6)
    seconds = least + added
    seconds[5] += 1.0
    assert added_by_loop(seconds, least) == pytest.approx(added)


def test_a_table_of_few_rows_shows_no_cost() -> None:
    assert not added_by_loop(np.full(500, 1e-3), np.full(500, 1e-6)).any()


def test_the_usual_cost_has_the_smallest_relative_error() -> None:
    """Of rows of 100, 200 and 1,000 us with costs of 10, 60 and 300: the first counts as much as both others and more."""
    assert usual(np.array([10e-6, 60e-6, 300e-6]), np.array([100e-6, 200e-6, 1000e-6])) == 10e-6
    assert usual(np.array([10e-6, 60e-6, 300e-6]), np.array([100e-6, 90e-6, 1000e-6])) == 60e-6
