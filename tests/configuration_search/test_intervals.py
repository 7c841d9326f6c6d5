"""Intervals as axes: their ends, units and scale, and what an exact search says of them."""

from __future__ import annotations

import pytest

from tests.search_spaces import GPT, space
from triosim.configuration_search.spaces.interval import Interval
from triosim.configuration_search.spaces.rules import validity_of
from triosim.errors import OptionError


def interval(text: str) -> Interval:
    found = Interval.read(text, "here")
    assert found is not None
    return found


def test_units_may_differ_between_the_ends() -> None:
    assert interval("500 KB..1 GB") == Interval(500, 1e6, "KB", whole=False)
    assert interval("25..400 Gb/s") == Interval(25, 400, "Gb/s", whole=False)
    with pytest.raises(OptionError, match="'MB' and 'ns' do not measure the same"):
        interval("1 MB..5 ns")


def test_whole_numbers_without_a_unit_stay_whole() -> None:
    assert interval("1..8").value(3.2) == 3
    assert interval("1.0..8").value(3.21987) == 3.22
    assert interval("1 MB..8 MB").value(3.21987) == "3.22 MB"


def test_rounding_stays_within_the_ends() -> None:
    assert interval("1.0004 GB/s..2.0004 GB/s").value(2.0004) == "2 GB/s"
    assert interval("1.0004 GB/s..2.0004 GB/s").value(1.0004) == "1.0004 GB/s"


def test_a_factor_of_ten_makes_a_scale_logarithmic() -> None:
    assert interval("1..10").logarithmic
    assert not interval("1..9").logarithmic
    assert not interval("0..1000").logarithmic


@pytest.mark.parametrize("text", ["dgx-h100", "../topology.yaml", "1", "1..", "a..b"])
def test_other_values_are_no_intervals(text: str) -> None:
    assert Interval.read(text, "here") is None


def test_an_exact_search_has_no_end_of_them() -> None:
    with pytest.raises(
        OptionError,
        match=r"--vary bucket_size: '1 MB..25 MB' is an interval, of which only a sampler draws values; give --sampler tpe",
    ):
        validity_of(space(GPT, "dp=8 bucket_size=1MB..25MB"))


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        ("micro_batch_size=0..4", "0 is less than 1"),
        ("micro_batch_size=8..4", "'8..4' is empty"),
        ("bucket_size=1GB/s..2GB/s", "bucket_size: "),
        ("recompute=1..4", "recompute: "),
    ],
)
def test_ends_are_checked_as_values_are(varied: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        space(GPT, varied)
