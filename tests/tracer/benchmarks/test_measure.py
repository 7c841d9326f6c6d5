"""Operators are measured here and now, on the CPU, into a table that goes on where it ended and that models are fitted to."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from triosim.cli import run
from triosim.compute.fit import operator_table
from triosim.compute.learned import model_files
from triosim.errors import OptionError, TriosimError
from triosim.results.result import Result
from triosim.tracer.benchmarks import cases, timers
from triosim.tracer.benchmarks.cases import BENCHMARKS, SizeLimits
from triosim.tracer.benchmarks.measure import MeasurementPlan, measure

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
SMALL = SizeLimits(1e6, 1e7)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No times are looked at here, so nothing large has to be written before a call with a cold cache."""
    monkeypatch.setattr(timers, "_FLUSHED_BYTES", 1 << 16)


def plan(*names: str, count: int = 1, seconds: float | None = None) -> MeasurementPlan:
    return MeasurementPlan(names, ("float32",), count, seconds, limits=SMALL)


@pytest.mark.slow
@needs_torch
def test_every_benchmark_runs_with_the_shapes_that_its_row_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, tuple[int, ...]] = {}
    call = cases.call

    def noted(torch: Any, benchmark: str, tensors: Any, attributes: Any) -> Any:
        found = call(torch, benchmark, tensors, attributes)
        result = found()
        made[benchmark] = tuple(result.shape) if hasattr(result, "shape") else ()
        return found

    monkeypatch.setattr(cases, "call", noted)
    outcome = measure(plan(), str(tmp_path / "t.csv"), "cpu")
    assert outcome.skipped == ()
    assert set(made) == set(BENCHMARKS)
    rows = operator_table.read(tmp_path / "t.csv")
    assert len(rows) == outcome.rows == outcome.new
    for row in rows:
        benchmark = row.case.partition(":")[0]
        if row.operator.phase == "forward":
            assert row.operator.outputs[0].shape == made[benchmark]
        if row.operator.phase == "backward":
            assert row.operator.inputs[0].shape == made[benchmark]
    kept = {(row.case.partition(":")[0], row.operator.phase, row.cache) for row in rows}
    for name, benchmark in BENCHMARKS.items():
        phases = [benchmark.phase, *(["backward"] if benchmark.backward else [])]
        assert {(name, phase, cache) for phase in phases for cache in ("warm", "cold")} <= kept


@needs_torch
def test_backward_operators_are_called_as_in_a_trace(tmp_path: Path) -> None:
    measure(plan("linear", "conv2d", "relu"), str(tmp_path / "t.csv"), "cpu")
    names = {row.operator.name for row in operator_table.read(tmp_path / "t.csv") if row.operator.phase == "backward"}
    assert names == {"AddmmBackward0", "ConvolutionBackward0", "ReluBackward0"}


@needs_torch
def test_a_second_call_goes_on_and_keeps_what_was_measured(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv.gz")
    first = measure(plan("relu", count=2), path, "cpu")
    before = operator_table.read(path)
    again = measure(plan("relu", count=3), path, "cpu")
    assert (first.rows, again.rows, again.new) == (8, 12, 4)
    assert operator_table.read(path)[:8] == before
    assert measure(plan("relu", count=3), path, "cpu").new == 0


@needs_torch
def test_ctrl_c_leaves_a_whole_table(tmp_path: Path) -> None:
    def interrupted(done: int, total: int, label: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(plan("add", count=5), str(tmp_path / "t.csv.gz"), "cpu", interrupted)
    assert {row.case for row in operator_table.read(tmp_path / "t.csv.gz")} == {"add:float32:0:0", "add:float32:0:1"}
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv.gz"]


@needs_torch
def test_what_does_not_fit_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = cases.call

    def full(torch: Any, benchmark: str, *rest: Any) -> Any:
        if benchmark == "mm":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 TiB")
        return call(torch, benchmark, *rest)

    monkeypatch.setattr(cases, "call", full)
    outcome = measure(plan("mm", "add"), str(tmp_path / "t.csv"), "cpu")
    (said,) = outcome.skipped
    assert said.startswith("mm:float32:0:0 on CPU: ")
    assert said.endswith("does not fit into memory")
    assert {row.operator.name for row in operator_table.read(tmp_path / "t.csv")} == {"aten::add"}
    monkeypatch.undo()
    assert measure(plan("mm", "add"), str(tmp_path / "t.csv"), "cpu").new == 0  # it is not tried again


@needs_torch
def test_another_failure_is_said_and_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = cases.call

    def broken(torch: Any, benchmark: str, *rest: Any) -> Any:
        if benchmark == "mm":
            raise RuntimeError("an illegal memory access")
        return call(torch, benchmark, *rest)

    monkeypatch.setattr(cases, "call", broken)
    with pytest.raises(TriosimError, match="mm:float32:0:0: failed: an illegal memory access"):
        measure(plan("add", "mm"), str(tmp_path / "t.csv"), "cpu")
    assert {row.operator.name for row in operator_table.read(tmp_path / "t.csv")} == {"aten::add"}


@needs_torch
def test_a_file_that_is_another_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.csv"
    other.write_text("day,lunch\n1,soup\n", encoding="utf-8")
    with pytest.raises(TriosimError, match="unknown column 'day'"):
        measure(plan("relu"), str(other), "cpu")
    assert other.read_text(encoding="utf-8") == "day,lunch\n1,soup\n"


@needs_torch
def test_models_are_fitted_to_what_the_command_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, own = str(tmp_path / "t.csv.gz"), str(tmp_path / "own.npz")
    options = ["--device", "cpu", "--count", "1", "--dtypes", "float32", "--operators", "softmax,foreach_mul"]
    assert run(["calibrate", "measure", "-o", table, *options]) == 0
    assert "6 rows in" in capsys.readouterr().err
    assert run(["calibrate", "compute", table, "-o", own]) == 0
    assert {str(one.key) for one in model_files.load(own).regressions} >= {
        "softmax",
        "softmax backward",
        "foreachmul optimizer",
    }
    assert {one.gpu for one in model_files.load(own).regressions} == {"CPU"}
    assert run(["calibrate", "evaluate", table, "--models", own]) == 0


@needs_torch
def test_options_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.csv")
    for options, said in (
        (["--device", "tpu"], "'tpu' is not a device"),
        (["--operators", "liner"], "did you mean 'linear'?"),
        (["--dtypes", "float33"], "did you mean 'float32'?"),
        (["--count", "0"], "0 is less than 1"),
    ):
        assert run(["calibrate", "measure", "-o", path, *options]) == 2
        assert said in capsys.readouterr().err
    assert not Path(path).exists()


def test_without_pytorch_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match=r"pip install 'triosim\[torch\]'"):
        measure(plan("relu"), str(tmp_path / "t.csv"))


@needs_torch
def test_the_operators_that_a_step_leans_on_are_measured_and_then_predicted_as_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole loop, with the CPU in a GPU's place: missing, measure, compute, simulate."""
    files = {
        name: str(tmp_path / name) for name in ("plan.csv", "measured.csv", "own.npz", "before.json", "after.json")
    }
    step = ["resnet18", "--gpu", "CPU", "--dtype", "float32", "--micro-batch-size", "1", "-q"]
    assert run(["calibrate", "missing", *step, "-o", files["plan.csv"]]) == 0
    planned = operator_table.read(files["plan.csv"], timed=False)
    with pytest.raises(TriosimError, match="seconds: '' is not a number"):
        operator_table.read(files["plan.csv"])
    assert (
        run(["calibrate", "measure", "--plan", files["plan.csv"], "-o", files["measured.csv"], "--device", "cpu"]) == 0
    )
    measured = {row.call for row in operator_table.read(files["measured.csv"])}
    assert measured == {row.call for row in planned}
    assert run(["calibrate", "compute", files["measured.csv"], "-o", files["own.npz"]]) == 0
    assert run(["simulate", *step, "-o", files["before.json"]]) == 0
    assert run(["simulate", *step, "--models", files["own.npz"], "-o", files["after.json"]]) == 0
    before, after = (Result.load(files[name]) for name in ("before.json", "after.json"))
    widths = [one.step_time_interval_s[1] / one.step_time_s for one in (before, after) if one.step_time_interval_s]
    assert widths[1] < widths[0]
    assert {row.model for row in after.data.predictions} == {"calibrated"}
    assert run(["calibrate", "missing", *step, "--models", files["own.npz"]]) == 2
    assert "all operators of this step were measured" in capsys.readouterr().err


def test_a_plan_is_not_overwritten_and_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file, table = str(tmp_path / "plan.csv"), str(tmp_path / "t.csv")
    Path(plan_file).write_text("operator,inputs\n")
    assert run(["calibrate", "measure", "--plan", plan_file, "-o", plan_file]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert run(["calibrate", "measure", "--plan", plan_file, "-o", table, "--count", "4"]) == 2
    assert "--count: has no effect with --plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("operator,phase\nx,forward\n", "there is no column"),
        ("operator,inputs\n", "there is no column"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "plan.csv").write_text(text)
    command = ["calibrate", "measure", "--plan", str(tmp_path / "plan.csv"), "-o", str(tmp_path / "t.csv")]
    assert run([*command, "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
