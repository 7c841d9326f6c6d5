"""The table of a comparison: whom its notes are about, GPUs that differ, and what its marks mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triosim import cli
from triosim.comparison.strategies import Comparison, Strategy, StrategyResult
from triosim.reports.terminal.comparison_table import columns, legend, notes, rows

JOB = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 512
[parallelism]
data_parallel_shard_degree = {sharded}
tensor_parallel_degree = {divided}
"""


def said(notes_of: dict[str, list[str]]) -> list[str]:
    """Return the notes of strategies that say these."""
    results: dict[str, Any] = {name: SimpleNamespace(notes=some) for name, some in notes_of.items()}
    runs = (StrategyResult(Strategy(name), result) for name, result in results.items())
    return notes(Comparison("some strategies", 8, tuple(runs)))


def test_a_note_of_all_is_said_once_and_that_of_some_names_them() -> None:
    found = said({"dp=8": ["no topology"], "tp=8": ["no topology", "predicted"], "pp=8": ["no topology", "predicted"]})
    assert found == ["no topology", "tp=8, pp=8: predicted"]


def test_notes_that_differ_in_one_number_are_one_note() -> None:
    found = said({"a": ["batch 128, predicted for 64"], "b": ["batch 128, predicted for 4"], "c": []})
    assert found == ["a, b: batch 128, predicted for 4 or 64"]


def test_notes_that_differ_in_several_numbers_are_few() -> None:
    assert said({"a": ["2.5 of 3"], "b": ["3.5 of 4"]}) == ["a: 2.5 of 3", "b: 3.5 of 4"]
    found = said({name: [f"{number}.5 of {number + 1}"] for number, name in enumerate("abcdef")})
    assert found == ["a (and b, c, d and 2 more, with other figures): 0.5 of 1"]


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    sizes = {"small.toml": (2, 1), "large.toml": (2, 2)}
    for name, (sharded, divided) in sizes.items():
        (tmp_path / name).write_text(JOB.format(sharded=sharded, divided=divided), encoding="utf-8")
    return [str(tmp_path / name) for name in sizes]


def test_jobs_on_different_numbers_of_gpus_say_theirs(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    like = [word for job in jobs for word in ("--like", job)]
    assert cli.run(["compare", "llama3-8b(layers=2)", *like, "--gpu", "A100-40GB"]) == 0
    shown = capsys.readouterr().out
    _, head, *lines = shown.splitlines()
    place = head.split().index("GPUs")
    assert {line.split()[0]: line.split()[place] for line in lines[:2]} == {"small.toml": "2", "large.toml": "4"}
    assert head.split()[-1] == "eff."
    assert "eff.: gain for each GPU" in " ".join(shown.split())


def test_a_job_that_is_given_twice_is_refused(jobs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compare", "llama3-8b", "--like", jobs[0], "--like", jobs[0]]) == 2
    assert "is given twice" in capsys.readouterr().err


def test_the_mark_of_a_gpu_that_is_too_full_is_explained() -> None:
    import triosim

    found = triosim.compare("gpt2", gpus=2, gpu="A100-40GB", batch_size=64)
    place = columns(found).index("GiB")
    assert any(row[place].endswith("!") for row in rows(found))
    assert "!: more than the GPU has room for" in legend(found)
