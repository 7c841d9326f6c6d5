"""Units: a file says what a person would write, and a person reads what a person would write."""

from __future__ import annotations

import math

import pytest

from triosim.errors import TriosimError
from triosim.units import format_bandwidth, format_bytes, format_time, parse_bandwidth, parse_bytes, parse_time


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("25 MB", 25e6),
        ("1 GiB", 2**30),
        ("25 MiB", 25 * 2**20),
        ("8 b", 1),
        ("8 bit", 1),
        ("8 Mbits", 1e6),
        ("1.5kB", 1500),
        (7, 7),
        ("1e3", 1000),
    ],
)
def test_bytes(text: str, nbytes: float) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("450 GB/s", 450e9),
        ("400 Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("400 Gbit/s", 50e9),
        ("400Gbits/s", 50e9),
        ("1 GiB/s", 2**30),
        ("65 GB/s", 65e9),
        (1e9, 1e9),
    ],
)
def test_bandwidths(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500 ns", 5e-7), ("1.5 us", 1.5e-6), ("20 ms", 0.02), ("2 min", 120), ("3 µs", 3e-6), (0.5, 0.5)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["65 GBs", "fast", "", "65 GB/h", "GB/s", True, None, [1], "1 ms/s", "5 /s", "5 GBps"])
def test_what_is_no_bandwidth_says_what_would_be(text: object) -> None:
    with pytest.raises(TriosimError, match="write a bandwidth such as '450 GB/s'"):
        parse_bandwidth(text)  # type: ignore[arg-type]


def test_a_unit_of_another_kind_is_named() -> None:
    with pytest.raises(TriosimError, match="unknown unit 'GB' in '5 GB'"):
        parse_time("5 GB")


def test_a_person_reads_three_digits() -> None:
    assert [format_time(t) for t in (0, 1.234, 0.01234, 99.96e-6, 5e-7, 3e-12)] == [
        "0 s",
        "1.23 s",
        "12.3 ms",
        "100 us",
        "500 ns",
        "0.003 ns",
    ]
    assert [format_bytes(b) for b in (0, 12, 1640e6, 999.96e6)] == ["0 B", "12 B", "1.64 GB", "1.00 GB"]
    assert format_bandwidth(450e9) == "450 GB/s"
    assert format_bandwidth(float("inf")) == "unlimited"


def test_a_number_that_no_float_holds_is_more_than_any_machine_has() -> None:
    for parse in (parse_bytes, parse_bandwidth, parse_time):
        with pytest.raises(TriosimError, match="'1e400' is more than any machine has"):
            parse("1e400")
    assert parse_bytes("inf") == math.inf
