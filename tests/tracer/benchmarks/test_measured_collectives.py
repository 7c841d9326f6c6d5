"""Collectives are measured between the processes of torchrun, into a table that goes on where it ended."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from triosim.cli import run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
_LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python")


def measure(table: Path, *options: str) -> list[dict[str, str]]:
    command = [*_LAUNCH, sys.executable, "-m", "triosim", "calibrate", "collectives", "-o", str(table), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return list(csv.DictReader(table.read_text().splitlines()))


def test_two_processes_measure_each_collective_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    first = measure(tmp_path / "t.csv", "--collectives", "all_reduce,all_gather", "--least", "1KiB", "--most", "2KiB")
    assert [(row["collective"], row["bytes"]) for row in first] == [
        ("all_reduce", "1024"), ("all_reduce", "2048"), ("all_gather", "1024"), ("all_gather", "2048"),
    ]  # fmt: skip
    assert all((row["gpu"], row["gpus"], row["nodes"]) == ("CPU", "2", "1") for row in first)
    assert all(float(row["time_us"]) > 0.0 for row in first)
    more = measure(tmp_path / "t.csv", "--least", "1KiB", "--most", "1KiB")
    assert more[:4] == first
    assert [row["collective"] for row in more[4:]] == ["reduce_scatter", "all_to_all", "broadcast"]


def test_an_older_table_gets_the_slow_downs_of_what_runs_beside_products(tmp_path: Path) -> None:
    """A row that was measured alone is measured again, and one of less than 1 MiB, which no product notices, is kept."""
    sizes = ("--collectives", "all_reduce", "--least", "512KiB", "--most", "1MiB")
    alone = measure(tmp_path / "t.csv", *sizes)
    assert [row.pop("compute_slowdown") + row.pop("collective_slowdown") for row in alone] == ["", ""]
    lines = [",".join(row) for row in (alone[0].keys(), *(row.values() for row in alone))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    small, large = measure(tmp_path / "t.csv", *sizes, "--overlap")
    assert small == {**alone[0], "compute_slowdown": "", "collective_slowdown": ""}
    assert float(large["compute_slowdown"]) >= 1.0
    assert float(large["collective_slowdown"]) >= 1.0


def test_without_a_launcher_one_line_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert run(["calibrate", "collectives", "-o", str(tmp_path / "t.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "torchrun --nproc-per-node" in error
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--collectives", "all_redcue"], "did you mean 'all_reduce'"),
        (["--least", "2KiB", "--most", "1KiB"], "--least"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "collectives", "-o", str(tmp_path / "t.csv"), *options]) == 2
    assert said in capsys.readouterr().err
