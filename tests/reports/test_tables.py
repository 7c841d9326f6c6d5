"""Tables for people: short, and within 80 columns."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made_run import MS, result
from hypothesis import given
from hypothesis import strategies as st

from triosim.reports.terminal.result_tables import as_text
from triosim.reports.terminal.tables import percent, plain_text, shorten, table
from triosim.results.figure_rows import COLUMNS
from triosim.results.values import LayerShare, LayerTimes, LinkLoad, RankTimes, ResultData
from triosim.units import format_ranks, format_rate, parse_ranks


def large() -> ResultData:
    """A thousand ranks, of which one is slow, with names as long as they come."""
    ranks = tuple(RankTimes(r, 8 * MS, 5 * MS, 2 * MS, 0.0 if r else 1 * MS, 0.0) for r in range(1024))
    share = LayerShare("0-1023", 1 * MS, 2 * MS, 0.0, 3 * MS, 2)
    layers = tuple(
        LayerTimes(f"model.language_model.layers.{i}.self_attention.qkv_proj", 1 * MS, 2 * MS, 0.0, 3 * MS, 2, (share,))
        for i in range(100)
    )
    links = tuple(LinkLoad(f"node{i}.gpu0.nvlink.port3->node{i}.nvswitch.port7", i, i / 200) for i in range(100))
    return replace(result().data, ranks=ranks, layers=layers, links=links)


@pytest.mark.parametrize("data", [result().data, large()], ids=["small", "large"])
def test_a_result_is_readable_in_80_columns(data: ResultData) -> None:
    lines = as_text(data, "a title", width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60


def test_ranks_that_read_the_same_are_one_row() -> None:
    lines = as_text(large(), "a title", width=80).splitlines()
    assert any(line.strip().startswith("1-1023 ") for line in lines)
    assert any(line.strip().startswith("all 1024 ") for line in lines)


def test_waits_within_the_clock_s_rounding_are_none() -> None:
    ranks = tuple(RankTimes(r, 8 * MS, 5 * MS, 2 * MS, 1e-18 * r, 0.0) for r in range(4))
    text = as_text(replace(result().data, ranks=ranks), "a title", width=80)
    assert any(line.strip().startswith("0-3 ") for line in text.splitlines())
    assert " ns" not in text


def test_the_ten_slowest_layers_and_the_five_busiest_links_are_shown() -> None:
    text = as_text(large(), "a title", width=80)
    assert "Slowest layers (10 of 100)" in text
    assert "Busiest links (5 of 100)" in text
    assert text.index("node99") < text.index("node95")


def test_many_ranks_that_differ_are_cut_short() -> None:
    ranks = tuple(RankTimes(r, (8 + r) * MS, 5 * MS, 2 * MS, 0.0, 0.0) for r in range(40))
    text = as_text(replace(result().data, ranks=ranks), "a title", width=80)
    assert "… 28 more" in text


def test_a_name_in_square_brackets_is_shown_as_it_is() -> None:
    data = result().data
    layer = replace(data.layers[0], layer="[red]x[/red]")
    assert "[red]x[/red]" in as_text(replace(data, layers=(layer,), notes=("[bold]",)), "[title]")


def test_a_share_that_is_small_is_not_shown_as_nothing() -> None:
    assert percent(1, 1_000_000) == "<0.1%"
    assert percent(0, 1) == "0%"
    assert percent(0.123, 1) == "12%"


def test_the_rate_of_a_slow_step_is_not_rounded_away() -> None:
    assert [format_rate(rate) for rate in (1234.5, 99.96, 15.38, 1.6, 0.0021)] == [
        "1,234",
        "100",
        "15.4",
        "1.60",
        "0.00210",
    ]


def test_a_long_name_keeps_its_end() -> None:
    assert shorten("encoder.layers.10.conv1", 10) == "….10.conv1"


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranks_written_short_read_back_as_they_were(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == sorted(ranks)


def test_csv_has_a_row_for_every_figure(tmp_path: Path) -> None:
    made = result()
    made.to_csv(tmp_path / "result.csv")
    with (tmp_path / "result.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert ["step", "", "step_time", "0.01", "s"] in rows
    figures = {(table, item, quantity): float(value) for table, item, quantity, value, _ in rows}
    assert len(figures) == len(rows), "no two rows say the same thing"
    for rank in made.data.ranks:
        assert figures["rank", str(rank.rank), "exposed_communication"] == rank.exposed_communication_s
    assert figures["link", "forth", "bytes"] == 5e6
    assert figures["layer_on_ranks", "a on 0-1", "total"] == made.data.layers[0].total_s


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_table_keeps_its_main_column(width: int) -> None:
    rows = [("a.long.name.of.a.module", "12.5 MiB", "130 MiB", "1.25 MiB", "144 MiB")]
    text = plain_text(table("Bytes", "module", "weights", "gradients", "other", "all", rows=rows, main=("all",)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "144 MiB" in text
    assert ("a wider terminal also shows:" in text) == (width == 40)
