"""Pictures are drawn for any number of GPUs, and refused before the work where they cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hand_made_run import MS, recording, result

from triosim.errors import OutputError
from triosim.reports.pictures.plot import MAX_RANKS, check_plot, coarser, select
from triosim.results.result import Result
from triosim.results.values import RankTimes


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
