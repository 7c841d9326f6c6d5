"""Errors of a sample before and after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from validation.steps.compare import main
from validation.steps.printed import COLUMNS


def printed(path: Path, *errors: float) -> str:
    lines = [f"one,row {number},step time,s,1,{1 + error / 100},{error},," for number, error in enumerate(errors)]
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    return str(path)


def test_tables_and_rows_that_got_worse_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """10 and 4% before, 2 and 9% after the change; a third row is new."""
    main(printed(tmp_path / "before.csv", -10, 4), printed(tmp_path / "now.csv", 2, -9, 50))
    assert capsys.readouterr().out.splitlines() == [
        "one: 2 rows, 7.0% before, 5.5% now",
        "  worse: one, row 1, step time: +4.0% before, -9.0% now",
    ]
