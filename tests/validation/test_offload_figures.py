"""Offload and memory pools against what was published, as ``python -m validation offload`` compares them."""

from __future__ import annotations

import pytest

from validation import offload


def test_the_best_bandwidths_of_a_pool_are_those_of_table_v() -> None:
    best, loads = offload.sweep()
    assert best == offload.BEST
    assert loads == pytest.approx(5.0, rel=1e-2)
    assert offload.step_speedup(loads, 0.979) == pytest.approx(offload.PUBLISHED_SPEEDUP, rel=1e-2)


@pytest.mark.parametrize("case", offload.ESTIMATED)
def test_hosts_hold_what_deepspeeds_estimators_count(case: tuple[str, str]) -> None:
    """12 bytes of optimizer states and 4 of a gradient in fp32; with parameters there, 2 more."""
    assert offload.host_bytes(*case) == pytest.approx(offload.ESTIMATED[case], rel=1e-3)


def test_zero_infinity_is_ahead_by_the_filling_of_the_pipeline_alone() -> None:
    ahead = [offload.load_seconds(*offload.BASELINE, nbytes) / (nbytes / 100e9) - 1 for nbytes in (25e6, 100e6)]
    assert ahead[0] == pytest.approx(4 * ahead[1], rel=0.05)
    assert 0 < ahead[1] < 1e-3
