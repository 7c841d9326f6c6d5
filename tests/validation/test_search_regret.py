"""The regret of a choice: which rows are choices of one another, what the choice costs, and what is ranked last."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.validation.test_end_to_end import ONE_NODE
from validation import __main__ as validation
from validation.search_regret import Choice, Point, groups, judged, rank_correlation
from validation.steps import formats
from validation.steps.rows import Row

CHOICE = Choice("gpt(layers=2)", 1024, 8, 32, "A100", "fp16")


def points(*times: tuple[float, float]) -> list[Point]:
    """Points of which each is measured and predicted to take so long."""
    return [
        Point(Row(f"row {number}", "gpt", measured, "s", None), predicted)
        for number, (measured, predicted) in enumerate(times)
    ]


def test_the_regret_is_what_the_choice_takes_beyond_the_fastest() -> None:
    found = judged(CHOICE, points((2.0, 1.0), (1.6, 1.2), (4.0, 3.0)))
    assert (found.chosen.row.label, found.best.row.label) == ("row 0", "row 1")
    assert found.regret == pytest.approx(0.25)
    assert found.rank_correlation == pytest.approx(0.5)  # 1 - 6 (1 + 1 + 0) / (3 (9 - 1))
    assert found.best_in_first_five


def test_what_is_refused_is_ranked_last() -> None:
    found = judged(CHOICE, points((1.0, math.inf), (1.5, 2.0), (3.0, 3.0)))
    assert [one.row.label for one in found.points] == ["row 1", "row 2", "row 0"]
    assert found.regret == pytest.approx(0.5)


def test_where_nothing_can_run_the_choice_is_the_worst() -> None:
    found = judged(CHOICE, points((1.0, math.inf), (3.0, math.inf), (2.0, math.inf)))
    assert found.regret == pytest.approx(2.0)
    assert found.rank_correlation is None


def test_the_best_may_be_behind_the_first_five() -> None:
    found = judged(CHOICE, points(*((2.0, rank) for rank in range(1, 6)), (1.0, 6)))
    assert not found.best_in_first_five


def test_equal_values_share_their_rank() -> None:
    assert rank_correlation([1.0, 1.0, 2.0], [5.0, 5.0, 9.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


LINES = (
    "2,4,1,256,4,2,128,2,1,1,10.0",
    "2,4,1,256,4,2,128,1,2,1,9.0",
    "2,4,2,256,4,2,128,1,2,1,8.0",
    "2,8,2,256,4,2,128,1,2,1,16.0",  # another batch
    "2,4,2,256,8,2,128,1,2,1,8.0",  # other heads
)


def test_a_group_has_the_same_model_gpus_and_batch(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("\n".join((ONE_NODE, *LINES)))
    ((choice, rows),) = groups(formats.read(table)[1]).items()
    assert (choice.sequence, choice.gpus, choice.global_batch) == (128, 2, 4)
    assert choice.model == "gpt3-175b(layers=2, hidden=256, heads=4)"
    assert [row.line for row in rows] == [2, 3, 4]


def test_the_command_judges_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("\n".join((ONE_NODE, *LINES, "2,4,3,256,4,2,128,1,2,1,8.0")))
    monkeypatch.setattr("sys.argv", ["validation", "search_regret", "--table", str(table), "--format", "json"])
    assert validation.main() == 0
    said = json.loads(capsys.readouterr().out)
    (group,) = said["groups"]
    measured = {one["row"]: one["measured"] for one in group["points"]}
    assert group["configurations"] == 3
    assert group["regret"] == pytest.approx(measured[group["chosen"]] / 8.0 - 1)
    assert said["mean_regret"] == said["worst_regret"] == group["regret"]
    assert said["top5_hit_rate"] == 1.0
    assert [one["line"] for one in said["refused"]] == [7]


def test_a_table_without_choices_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("\n".join((ONE_NODE, *LINES[1:])))
    monkeypatch.setattr("sys.argv", ["validation", "search_regret", "--table", str(table)])
    assert validation.main() == 2
    assert "3 configurations or more" in capsys.readouterr().err
