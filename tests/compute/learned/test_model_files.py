"""Models of one's own displace what ships where they were seen to be better; files that are none are refused."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import triosim
from triosim import gpus
from triosim.cli import run
from triosim.compute.fit import kind_fitting, operator_rows
from triosim.compute.learned import model_files
from triosim.compute.learned.kind_regression import MEASURED_ERROR
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.calibrated import Calibrated
from triosim.compute.models.forest import Forest
from triosim.compute.pricing.repricing import on_gpu
from triosim.trace import Operator, Tensor, Trace

H100 = gpus.find("H100")


def product(m: int, n: int, k: int, seconds: float = 0.0, number: int = 0) -> Operator:
    shapes = ((m, k), (n, k), (m, n))
    data, weight, out = (Tensor(3 * number + place, shape, "bfloat16") for place, shape in enumerate(shapes))
    return Operator(number, "aten::linear", "forward", "fc", (data, weight), (out,), seconds)


def gemm(path: Path, rows: list[tuple[int, int, int]], factor: float = 1.0) -> str:
    """A table of products that take ``factor`` times what ships says of an H100."""
    with model_files.using(""):
        seconds = Forest().estimate([product(*sizes) for sizes in rows], "H100").seconds * factor
    lines = [",".join(map(str, (*sizes, 1e3 * time))) for sizes, time in zip(rows, seconds, strict=True)]
    path.write_text("m,n,k,latency_ms\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_a_few_rows_correct_what_ships_and_do_not_displace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """On a GPU that runs everything 1.2 times as long, one row says so of all sizes; trees of one row would say one time."""
    random = np.random.default_rng(0)
    sizes = [(int(m), int(n), int(k)) for m, n, k in 64 * random.integers(1, 64, (rows, 3))]
    table = gemm(tmp_path / "t.csv", sizes, 1.2)
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", str(tmp_path / "own.npz")]) == 0
    assert model_files.load(tmp_path / "own.npz").models == []
    asked = [product(m, 4096, 4096, number=m) for m in (64, 512, 8192)]
    before = AutoComputeModel().estimate(asked, "H100").seconds
    monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / "own.npz"))
    np.testing.assert_allclose(AutoComputeModel().estimate(asked, "H100").seconds, 1.2 * before, rtol=0.02)


def test_evaluate_judges_by_the_laws_that_simulate_would_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, own = gemm(tmp_path / "t.csv", [(64, 4096, 4096), (512, 4096, 4096)], 3.0), str(tmp_path / "own.npz")
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", own]) == 0
    capsys.readouterr()
    assert run(["calibrate", "evaluate", table, "--gpu", "H100", "--models", own, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert '"model": "calibrated"' in out
    assert "the given models were fitted to t.csv" in err
    assert run(["calibrate", "evaluate", table, "--gpu", "A100", "--models", own, "--format", "json"]) == 0
    assert '"model": "forest"' in capsys.readouterr().out  # the laws are of the H100


def test_a_law_that_learned_nothing_stands_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poolings that take 4 us or 4 s, whatever their size, so that any law is off by far more than the time itself."""
    made = [pooling(number, 2**k, 4e-6 if number % 2 else 4.0) for number, k in enumerate(range(18, 28))]
    laws = kind_fitting.fit(operator_rows.of_trace(Trace(tuple(made), 8, gpu="H100")))
    assert min(law.error for law in laws) > 1.0
    model_files.save([], tmp_path / "own.npz", laws)
    monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / "own.npz"))
    others = [pooling(number, 3 * 2**k, 0.0) for number, k in enumerate(range(17, 27))]
    assert {*AutoComputeModel().estimate(others, "H100").model} == {"roofline"}


def test_what_was_measured_in_these_shapes_has_its_measured_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, the median counts; with another stride, or in the backward pass, it is another call."""
    times = (2e-3, 3e-3)
    made = [pooling(number, 2**20, seconds) for number, seconds in enumerate(times)]
    laws = kind_fitting.fit(operator_rows.of_trace(Trace(tuple(made), 8, gpu="H100")))
    model_files.save([], tmp_path / "own.npz", laws)
    monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / "own.npz"))
    found = Calibrated().estimate([made[0], replace(made[0], id=9, attributes={"stride": [2, 2]})], "H100")
    assert found.seconds[0] == pytest.approx(2.5e-3)
    assert found.relative_error[0] == MEASURED_ERROR < found.relative_error[1]


def pooling(number: int, n: int, seconds: float) -> Operator:
    data, out = Tensor(2 * number, (n,)), Tensor(2 * number + 1, (n,))
    return Operator(number, "aten::avg_pool2d", "forward", "", (data,), (out,), seconds)


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.npz"
    monkeypatch.setenv(model_files.ENVIRONMENT, str(own))
    found = []
    for number, factor in enumerate((2.0, 4.0)):
        table = gemm(tmp_path / "t.csv", [(512, 4096, 4096)], factor)
        assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", str(own)]) == 0
        os.utime(own, ns=(number, number))
        found.append(AutoComputeModel().estimate([product(512, 4096, 4096)], "H100").seconds[0])
    assert found[1] == pytest.approx(2 * found[0], rel=1e-3)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("t.csv", "t.csv: cannot hold fitted models; name a file that ends in .npz"),
        ("y.json", "y.json: cannot hold fitted models"),
    ],
)
def test_models_go_into_npz_files_or_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, said: str
) -> None:
    table = gemm(tmp_path / "t.csv", [(64, 4096, 4096)])
    before = Path(table).read_text(encoding="utf-8")
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", str(tmp_path / output)]) == 2
    assert said in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["t.csv"]
    assert Path(table).read_text(encoding="utf-8") == before


def test_a_folder_of_models_is_judged_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, folder = gemm(tmp_path / "t.csv", [(64, 4096, 4096)]), str(tmp_path / "models")
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", folder]) == 0
    capsys.readouterr()
    assert run(["calibrate", "evaluate", table, "--gpu", "H100", "--models", folder, "--format", "json"]) == 0
    assert '"model": "calibrated"' in capsys.readouterr().out


def test_models_of_another_gpu_change_nothing_and_are_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, before, after = (str(tmp_path / name) for name in ("own.npz", "before.json", "after.json"))
    table = gemm(tmp_path / "t.csv", [(64, 4096, 4096)], 2.0)
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", own]) == 0
    trace = tmp_path / "trace.json.gz"
    predicted = product(64, 64, 64, 1e-5, 1)
    triosim.save_trace(Trace((predicted,), 64, gpu="A100-SXM-80GB", times="predicted"), trace)
    assert run(["simulate", str(trace), "-q", "-o", before]) == 0
    assert run(["simulate", str(trace), "-q", "--models", own, "-o", after]) == 0
    results = [triosim.Result.load(path) for path in (before, after)]
    assert results[0].step_time_s == results[1].step_time_s
    assert any("holds no models of A100-SXM-80GB" in note for note in results[1].data.notes)
    capsys.readouterr()


def test_where_models_are_said_to_be_there_must_be_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, trace = gemm(tmp_path / "t.csv", [(64, 4096, 4096)]), tmp_path / "trace.json.gz"
    triosim.save_trace(Trace((product(64, 64, 64, 1e-5, 1),), 64, gpu="H100"), trace)
    (tmp_path / "none").mkdir()
    for name, said in (
        ("absent.npz", "cannot be read: No such file"),
        ("none", "is a folder without fitted models"),
        ("trace.json.gz", "is not a file of fitted models"),
    ):
        models = str(tmp_path / name)
        assert run(["calibrate", "evaluate", table, "--gpu", "H100", "--models", models]) == 2
        assert f"{models}: {said}" in capsys.readouterr().err
    for name in ("absent.npz", "none"):
        monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / name))
        assert run(["simulate", str(trace)]) == 2
        assert f"TRIOSIM_MODELS={tmp_path / name}: " in capsys.readouterr().err


def test_a_missing_package_is_told_before_anything_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    table = gemm(tmp_path / "t.csv", [(64 * number, 512, 512) for number in range(1, 60)])
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", str(tmp_path / "o.npz")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "fitting needs scikit-learn" in line


def test_unknown_operators_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "elem.csv"
    table.write_text(
        "OPName,B,H,latency_ms\nfrobnicate,8,8,0.01\nfrobnicate,8,16,0.01\nrelu,8,8,0.01\n", encoding="utf-8"
    )
    for command in (["evaluate"], ["compute", "-o", str(tmp_path / "o.npz")]):
        assert run(["calibrate", *command, str(table), "--gpu", "H100"]) == 0
        assert capsys.readouterr().err.count("unknown operators: aten::frobnicate") == 1


def test_rows_that_the_shipped_models_saw_are_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("gemm_bf16_h100.csv", False), ("gemm_bf16_h100.csv.gz", True)):
        text = Path(gemm(tmp_path / "t.csv", [(64, 4096, 4096)])).read_bytes()
        (tmp_path / name).write_bytes(text)
        assert run(["calibrate", "evaluate", str(tmp_path / name), "--gpu", "H100"]) == 0
        assert ("the models that ship were fitted to" in capsys.readouterr().err) == said


# ---- what is not known is said ---------------------------------------------------------------------------------------


def test_a_gpu_that_nobody_knows_is_said_and_less_sure() -> None:
    operators = tuple(product(64, 1024, 1024 * number, 1e-5 * number, number) for number in range(1, 7))
    sums = {}
    for gpu in ("A100", "Gizmo 9000"):
        inputs = tuple(
            replace(one, inputs=(replace(one.inputs[0], category="input"), *one.inputs[1:])) for one in operators
        )
        found = triosim.simulate(Trace(inputs, 64, gpu=gpu), batch_size=128, compute_model="roofline")
        assert any("'Gizmo 9000' is not in the catalogue" in note for note in found.notes) == (gpu != "A100")
        assert found.step_time_interval_s is not None
        sums[gpu] = found.step_time_interval_s[1] / found.step_time_s
    assert sums["Gizmo 9000"] > sums["A100"]


def test_a_model_that_says_nothing_of_another_gpu_is_named() -> None:
    trace = Trace(tuple(product(64, 1024, 1024 * number, 1e-5, number) for number in (1, 2)), 64, gpu="A100")
    model = triosim.plugins.load("compute_models", "linear")()
    assert "by auto, because linear estimates no operator on another GPU" in on_gpu(trace, H100, model).times
    assert "auto" not in on_gpu(trace, H100, AutoComputeModel()).times


def test_a_few_rows_are_not_fitted_as_what_ships_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    table = gemm(tmp_path / "gemm_h100.csv", [(64, 4096, 4096)])
    assert run(["calibrate", "compute", table, "--gpu", "all", "-o", str(tmp_path / "models")]) == 2
    assert (
        "1 rows of product in bfloat16 are too few for all GPUs together; leave out --gpu all"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "models").exists()


def test_a_measured_call_is_found_whatever_the_regression_that_would_predict_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum in a product's backward pass counts with products; where it was measured by itself, it stands alone."""
    data, out = Tensor(1, (8, 64)), Tensor(2, (1, 64))
    alone = Operator(1, "aten::sum", "backward", "", (data,), (out,), 7e-5, attributes={"dim": [0]})
    model_files.save([], tmp_path / "own.npz", kind_fitting.fit(operator_rows.of_trace(Trace((alone,), 8, gpu="H100"))))
    monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / "own.npz"))
    weight, made = Tensor(3, (64, 64)), Tensor(4, (8, 64))
    forward = Operator(2, "aten::addmm", "forward", "", (data, weight), (made,), 0.0)
    found = Calibrated().estimate([forward, replace(alone, id=3, forward=2, seconds=0.0)], "H100")
    assert found.seconds[1] == pytest.approx(7e-5)


def test_the_environment_names_models_as_the_option_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a trace whose times were predicted when it was captured: both predict it anew."""
    table, own = gemm(tmp_path / "t.csv", [(512, 4096, 4096), (1024, 4096, 4096)], 3.0), str(tmp_path / "own.npz")
    assert run(["calibrate", "compute", table, "--gpu", "H100", "-o", own]) == 0
    captured = Trace((product(512, 4096, 4096, 1e-3),), 512, gpu="H100", times="predicted")
    asked = triosim.simulate(captured, models=own, training=False).step_time_s
    assert asked != pytest.approx(1e-3, rel=0.1)
    monkeypatch.setenv(model_files.ENVIRONMENT, own)
    assert triosim.simulate(captured, training=False).step_time_s == pytest.approx(asked)
