"""The least error of a table follows from what its rows contradict."""

from __future__ import annotations

import pytest

from validation.steps.least_error import Work, of_repeats, of_work


def test_of_two_times_of_one_command_one_is_missed() -> None:
    """The shorter for both is half of the longer too little: 0.5 of two rows, and nothing for a command of one row."""
    assert of_repeats([("a", 1.0), ("a", 2.0)]) == pytest.approx(0.25)
    assert of_repeats([("a", 1.0), ("b", 2.0)]) == 0.0


def test_a_layer_of_more_samples_that_takes_less_cannot_be_met() -> None:
    """Two samples in 1 s and one in 2 s: both in 1 s is half of the second too little, both in 2 s the whole first too much."""
    one, two = (Work(1024, 4, samples, False, (1.0, 0.0, 0.0, 0.0, 0.0)) for samples in (1, 2))
    assert of_work([one, two], [2.0, 1.0]) == pytest.approx(0.25)
    assert of_work([one, two], [1.0, 2.0]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("changed", [{"tp": 2}, {"unfused": True}])
def test_layers_of_other_kernels_have_no_order(changed: dict[str, int]) -> None:
    sizes = {"features": 1024, "tp": 4, "samples": 2, "unfused": False, "amounts": (1.0, 0.0, 0.0, 0.0, 0.0)}
    one, two = Work(**{**sizes, "samples": 1}), Work(**{**sizes, **changed})  # type: ignore[arg-type]
    assert of_work([one, two], [2.0, 1.0]) == pytest.approx(0.0, abs=1e-9)
