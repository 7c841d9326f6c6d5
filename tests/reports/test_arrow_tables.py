"""Tables for other programs: Parquet and Arrow files, and pandas, hold the rows of ``--csv``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import hand_made_run as run
import pytest

from triosim.errors import OutputError
from triosim.reports.files import arrow_table
from triosim.results.figure_rows import COLUMNS


def csv_rows(folder: Path) -> list[list[str]]:
    run.result().to_csv(folder / "run.csv")
    with open(folder / "run.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_parquet_and_arrow_files_hold_the_rows_of_csv(tmp_path: Path) -> None:
    parquet, feather = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.feather")
    run.result().to_parquet(tmp_path / "run.parquet")
    run.result().to_arrow(tmp_path / "run.arrow")
    head, *rows = csv_rows(tmp_path)
    for table in (parquet.read_table(tmp_path / "run.parquet"), feather.read_table(tmp_path / "run.arrow")):
        assert table.column_names == head
        assert [[*map(str, row.values())] for row in table.to_pylist()] == [
            [table, item, quantity, str(float(value)), unit] for table, item, quantity, value, unit in rows
        ]
        about = json.loads(table.schema.metadata[b"triosim"])
        assert about == {"title": run.result().title, "inputs": run.result().to_dict()["inputs"]}


def test_pandas_has_the_rows_of_csv(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = run.result().to_pandas()
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == len(csv_rows(tmp_path)) - 1
    assert frame[(frame.table == "step") & (frame.quantity == "step_time")].value.item() == pytest.approx(10e-3)


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_table, "find_spec", lambda name: None)
    with pytest.raises(
        OutputError, match=r"run.parquet: this kind of table needs pyarrow; pip install 'triosim\[arrow\]'"
    ):
        run.result().to_parquet(tmp_path / "run.parquet")
    assert not list(tmp_path.iterdir())
