"""Pictures are drawn for any number of GPUs, and refused before the work where they cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hand_made_run import MS, recording, result
from traces import mlp

import triosim
from triosim.comparison.schedule_alone import run_schedule
from triosim.errors import OutputError
from triosim.reports.pictures import comparison_plot, link_plot, schedule_plot
from triosim.reports.pictures.plot import MAX_RANKS, check_plot, coarser, select, unit_of
from triosim.results.result import Result
from triosim.results.values import RankTimes

RING = "ring(2, bandwidth=1 MB/s)"


def rank(number: int, compute: float = 8 * MS) -> RankTimes:
    return RankTimes(number, compute, 0.0, 0.0, 0.0, 0.0)


def test_a_picture_of_a_run_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, run in (("phases.png", recording()), ("plain.png", recording(timeline=False, iterations=2))):
        result(run).plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_loaded_result_is_drawn_without_its_gantt_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result().save(tmp_path / "result.json")
    Result.load(tmp_path / "result.json").plot(tmp_path / "bars.svg")
    drawing = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert "</svg>" in drawing


def test_a_kind_of_picture_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"\.png or \.svg or \.pdf"):
        check_plot(tmp_path / "picture.xls")


def test_without_matplotlib_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OutputError, match=r"pip install 'triosim\[plot\]'"):
        check_plot(tmp_path / "picture.png")


def test_few_ranks_are_all_drawn_and_of_many_those_that_differ() -> None:
    assert [one.rank for one in select([rank(r) for r in range(MAX_RANKS)])] == list(range(MAX_RANKS))
    many = [rank(r, 9 * MS if r == 517 else 8 * MS) for r in range(1024)]
    chosen = [one.rank for one in select(many)]
    assert len(chosen) == MAX_RANKS
    assert chosen == sorted(chosen)
    assert {0, 517} <= set(chosen)


def test_gaps_that_nobody_would_see_are_closed() -> None:
    assert coarser([(0, 1), (1.001, 2), (2.5, 3)], 0.01) == [(0, 2), (2.5, 3)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would have been saved."""
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    for module in (schedule_plot, comparison_plot, link_plot):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    return figures


@pytest.mark.parametrize(("stages", "micro_batches", "numbers"), [(2, 4, 16), (8, 40, 0)])
def test_a_schedule_numbers_every_box_or_none(drawn: list[Any], stages: int, micro_batches: int, numbers: int) -> None:
    schedule_plot.write_schedule_plot(run_schedule("1f1b", stages, micro_batches), "a.png")
    assert len(drawn[0].axes[0].texts) == numbers
    assert drawn[0].axes[0].get_xlabel() == "time (s)"


def test_a_comparison_of_many_draws_shows_the_quantiles_of_its_table(drawn: list[Any]) -> None:
    compared = triosim.compare(
        mlp(), gpus=2, topology=RING, draws=5, conditions={"stragglers": {"spread": 0.5, "seed": 1}}
    )
    comparison_plot.ComparisonPlot().write(compared, "a.png")
    times = drawn[0].axes[0]
    _, scale = unit_of(max(run.result.data.draws.p95_s for run in compared.runs))
    assert [bar.get_width() for bar in times.patches] == pytest.approx(
        [run.result.data.draws.p50_s * scale for run in compared.runs]
    )
    assert [x for line in times.lines for x in line.get_xdata()] == pytest.approx(
        [x * scale for run in compared.runs for x in (run.result.data.draws.p5_s, run.result.data.draws.p95_s)]
    )


def test_one_colour_means_one_load_in_both_parts_of_a_picture_of_links(drawn: list[Any]) -> None:
    result = triosim.simulate(mlp(), "ddp", gpus=2, topology=RING, links=True)
    link_plot.LinkPlot().write(result, "a.png")
    above, below, bar = drawn[0].axes
    load = max(link.utilisation for link in result.data.links)
    hottest = max(above.patches, key=lambda arrow: arrow.get_linewidth()).get_edgecolor()
    raster = below.images[0]
    assert hottest == pytest.approx(raster.cmap(raster.norm(load)))
    assert bar.get_ylim() == (0.0, 1.0)
    assert above.get_anchor() == "C", "the topology stands in the middle, not beside the scale of colours"
