"""``triosim doubt``: what a result's interval comes from, and what would narrow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import traces

import triosim
from triosim.cli import run


def test_the_sources_are_listed_with_the_measurements_that_would_narrow_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = triosim.simulate(traces.mlp(batch=256, sizes=(256, 512, 256, 64)), gpus=1, batch_size=512)
    result.save(tmp_path / "result.json")
    assert run(["doubt", str(tmp_path / "result.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for one in result.data.doubts:
        assert one.source in shown
    assert f"1. {result.data.doubts[0].measurement}" in shown


def test_a_result_of_measured_times_alone_has_no_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    triosim.simulate(traces.mlp(), gpus=1).save(tmp_path / "result.json")
    assert run(["doubt", str(tmp_path / "result.json")]) == 2
    assert "all times in this result were measured" in capsys.readouterr().err


def test_a_result_of_an_older_version_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    triosim.simulate(traces.mlp(), gpus=1, batch_size=512).save(path)
    older = json.loads(path.read_text())
    del older["doubts"]
    path.write_text(json.dumps(older))
    assert run(["doubt", str(path)]) == 2
    assert "an older version wrote this result" in capsys.readouterr().err


def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert run(["doubt", str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "x.json: is not a result" in error
