"""Laws of one's own rows: from traces and tables, honest about how few they come from, and used for what they are of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import triosim
from triosim import gpus
from triosim.cli import run
from triosim.compute.fit import kind_fitting, operator_rows
from triosim.compute.learned import model_files
from triosim.compute.models.auto import AutoComputeModel
from triosim.compute.models.calibrated import Calibrated, kind_features
from triosim.compute.models.roofline import DEFAULTS
from triosim.trace import Operator, Tensor, Trace

H100 = gpus.find("H100")
SIZES = [2**n for n in range(18, 29)]


def pooling(elements: int, number: int) -> Operator:
    """A pooling of 4 us and 8 bytes an element at 2 TB/s, the length of a step in no model that ships."""
    data, out = Tensor(2 * number, (elements,)), Tensor(2 * number + 1, (elements,))
    return Operator(number, "aten::avg_pool2d", "forward", "pool", (data,), (out,), 4e-6 + 8 * elements / 2e12)


def convolutions(samples: list[int], seconds: Callable[[int], float]) -> tuple[Operator, ...]:
    """Forward and backward of a convolution, for each number of samples."""
    made = []
    for number, n in enumerate(samples):
        shapes = ((n, 64, 56, 56), (64, 64, 3, 3), (n, 64, 56, 56))
        data, weight, out = (Tensor(10_000 + 10 * number + k, shape) for k, shape in enumerate(shapes))
        made.append(Operator(2 * number, "aten::conv2d", "forward", "c", (data, weight), (out,), seconds(n)))
        gradients = tuple(Tensor(10_005 + 10 * number + k, shape) for k, shape in enumerate(shapes))
        node = Operator(
            2 * number + 1, "ConvolutionBackward0", "backward", "c", (gradients[2], data, weight), gradients[:2],
            3 * seconds(n), forward=2 * number,
        )  # fmt: skip
        made.append(node)
    return tuple(made)


def trace_of(*operators: Operator, gpu: str = "H100", times: str = "measured") -> Trace:
    return Trace(operators, 8, gpu=gpu, times=times)


def law(trace: Trace, name: str) -> kind_fitting.KindRegression:
    found = kind_fitting.fit(operator_rows.of_trace(trace))
    (one,) = [law for law in found if law.key.name == name]
    return one


def test_a_straight_law_is_found_and_stated_to_be_sure() -> None:
    found = law(trace_of(*(pooling(n, k) for k, n in enumerate(SIZES))), "avgpool2d")
    asked = kind_features([pooling(3 * 2**22, 0)], H100)
    assert found.seconds(asked, np.array([0]))[0] == pytest.approx(4e-6 + 8 * 3 * 2**22 / 2e12, rel=0.02)
    assert found.relative_error(asked, np.array([0]))[0] < 0.05
    assert (found.rows, found.sizes) == (11, 11)


def test_one_row_is_as_unsure_as_the_roofline_and_right_in_its_own_size() -> None:
    (single,) = operators = [pooling(2**26, 1)]
    found = law(trace_of(*operators), "avgpool2d")
    asked = kind_features(operators, H100)
    assert found.seconds(asked, np.array([0]))[0] == pytest.approx(single.seconds)
    assert found.error == found.beyond == DEFAULTS["reduction"].error


def test_the_same_noise_in_fewer_rows_is_a_larger_error() -> None:
    random = np.random.default_rng(0)
    noisy = [replace(one, seconds=one.seconds * float(np.exp(0.05 * random.normal()))) for one in
             (pooling(round(2 ** random.uniform(18, 28)), k) for k in range(39))]  # fmt: skip
    errors = [law(trace_of(*noisy[:count]), "avgpool2d").error for count in (2, 5, 39)]
    assert errors[0] > errors[1] > errors[2] > 0.02


def test_sizes_that_repeat_are_held_out_together() -> None:
    """A hundred calls of one size say nothing of another size."""
    once = law(trace_of(pooling(2**20, 1)), "avgpool2d")
    often = law(trace_of(*(pooling(2**20, k) for k in range(100))), "avgpool2d")
    assert (often.rows, often.sizes) == (100, 1)
    assert often.error == once.error


def test_beyond_the_measured_sizes_the_error_is_that_of_the_ends() -> None:
    """Twice as slow from 2**25 elements on: laws of the smaller sizes miss that."""
    bent = [replace(one, seconds=one.seconds * (2 if one.outputs[0].numel >= 2**25 else 1))
            for one in (pooling(n, k) for k, n in enumerate(SIZES))]  # fmt: skip
    found = law(trace_of(*bent), "avgpool2d")
    inside, outside = kind_features([pooling(2**20, 1), pooling(2**31, 2)], H100), np.array([0, 1])
    errors = found.relative_error(inside, outside)
    assert errors[1] > errors[0]


def test_forward_and_backward_dtypes_and_names_are_kept_apart() -> None:
    trace = trace_of(*convolutions([1, 2, 4, 8, 16], lambda n: 1e-4 * n))
    names = {(one.key.name, one.key.phase, one.key.dtype) for one in kind_fitting.fit(operator_rows.of_trace(trace))}
    assert names == {
        ("conv2d", "forward", "tf32"), ("any convolution", "forward", "tf32"),
        ("convolution", "backward", "tf32"), ("any convolution", "backward", "tf32"),
    }  # fmt: skip


def test_what_was_predicted_is_no_row() -> None:
    measured, guessed = pooling(2**20, 1), replace(pooling(2**24, 2), predicted_by="roofline")
    assert [one.id for one in operator_rows.of_trace(trace_of(measured, guessed)).rows()] == [1]
    with pytest.raises(triosim.TriosimError, match="no measured operator"):
        operator_rows.of_trace(trace_of(guessed))
    with pytest.raises(triosim.TriosimError, match="no measured operator"):
        operator_rows.of_trace(trace_of(measured, times="predicted: by hand"))


def test_a_trace_of_an_unknown_gpu_needs_its_name() -> None:
    trace = trace_of(pooling(2**20, 1), gpu="Gizmo 9000")
    with pytest.raises(triosim.TriosimError, match="--gpu"):
        operator_rows.of_trace(trace)
    assert operator_rows.of_trace(trace, H100).gpu == H100


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    """A trace whose laws are in use: convolutions at 1% of what an H100 should reach, and poolings."""
    slow = convolutions([1, 2, 4, 8, 16], lambda n: 1e-3 * n)
    trace = trace_of(*slow, *(pooling(n, 100 + k) for k, n in enumerate(SIZES)))
    triosim.save_trace(trace, tmp_path / "trace.json")
    assert run(["calibrate", "compute", str(tmp_path / "trace.json"), "-o", str(tmp_path / "own.npz")]) == 0
    assert "conv2d tf32" in capsys.readouterr().err
    monkeypatch.setenv(model_files.ENVIRONMENT, str(tmp_path / "own.npz"))
    return trace


def test_auto_uses_the_laws_of_every_kind_that_the_trace_held(calibrated: Trace) -> None:
    found = AutoComputeModel().estimate(calibrated.operators, "H100")
    assert {*found.model} == {"calibrated"}
    np.testing.assert_allclose(found.seconds, [one.seconds for one in calibrated.operators], rtol=0.05)
    same = Calibrated().estimate(calibrated.operators, "H100")
    assert found.relative_error.tolist() == same.relative_error.tolist()


def test_a_trace_of_another_gpu_takes_the_times_of_the_calibrated_one(calibrated: Trace) -> None:
    """Of an operator that took 1 ms on an A100 too, the law says 1 ms for the H100, where data sheets say half."""
    elsewhere = replace(calibrated, gpu="A100")
    model = AutoComputeModel()
    model.fit(elsewhere)
    ratios = model.ratios(elsewhere.operators, elsewhere.operators, "A100", "H100")
    assert {*ratios.model} == {"calibrated"}
    np.testing.assert_allclose(ratios.seconds, 1.0, rtol=0.05)


def test_what_the_trace_did_not_hold_is_left_to_other_models(calibrated: Trace) -> None:
    half = tuple(Tensor(k, (4096, 4096), "bfloat16") for k in range(3))
    product = Operator(1, "aten::mm", "forward", "fc", half[:2], half[2:], 0.0)
    assert AutoComputeModel().estimate([product], "H100").model == ["forest"]
    assert np.isnan(Calibrated().estimate([product], "H100").seconds).all()
    assert np.isnan(Calibrated().estimate(calibrated.operators, "A100").seconds).all()


def test_a_name_that_the_trace_did_not_hold_goes_by_its_class(calibrated: Trace) -> None:
    other = [replace(one, name="aten::cudnn_convolution") for one in calibrated.operators[:1]]
    found = AutoComputeModel().estimate(other, "H100")
    assert found.model == ["calibrated"]
    assert found.seconds[0] == pytest.approx(1e-3, rel=0.05)


def test_evaluate_judges_a_trace(calibrated: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, models = str(tmp_path / "trace.json"), str(tmp_path / "own.npz")
    assert run(["calibrate", "evaluate", trace, "--models", models, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] == len(calibrated.operators)
    assert said["mape_percent"] < 5.0
    assert said["kinds"]["convolution backward"]["model"] == "calibrated"
    assert said["measured_seconds"] == pytest.approx(said["predicted_seconds"], rel=0.05)
    assert run(["calibrate", "evaluate", trace, "--gpu", "A100", "--models", models]) == 0
    assert "roofline" in capsys.readouterr().out  # the laws are of the H100


def test_a_gpu_that_is_named_goes_before_the_trace_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    triosim.save_trace(trace_of(pooling(2**20, 1), gpu="Gizmo 9000"), tmp_path / "t.json")
    assert run(["calibrate", "compute", str(tmp_path / "t.json"), "-o", str(tmp_path / "o.npz")]) == 2
    assert "'Gizmo 9000' is not in the catalogue; add --gpu NAME" in capsys.readouterr().err
    assert run(["calibrate", "compute", str(tmp_path / "t.json"), "--gpu", "L4", "-o", str(tmp_path / "o.npz")]) == 0
    assert {one.gpu for one in model_files.load(tmp_path / "o.npz").regressions} == {"L4"}


def test_what_is_stored_is_read_again(calibrated: Trace, tmp_path: Path) -> None:
    read = model_files.load(tmp_path / "own.npz").regressions
    model_files.save([], tmp_path / "again.npz", read)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "own.npz").read_bytes()
    assert model_files.load(tmp_path / "own.npz").models == []


def test_element_wise_tables_fit_into_one_file_too(tmp_path: Path) -> None:
    table = tmp_path / "elem.csv"
    rows = "".join(f"relu,1024,{2**n},{(4e-6 + 8 * 1024 * 2**n / 2e12) * 1e3}\n" for n in range(4, 18))
    table.write_text("OPName,B,H,latency_ms\n" + rows, encoding="utf-8")
    assert run(["calibrate", "compute", str(table), "--gpu", "H100", "-o", str(tmp_path / "own.npz")]) == 0
    assert {str(one.key) for one in model_files.load(tmp_path / "own.npz").regressions} == {"relu", "any elementwise"}


def test_trees_are_grown_from_many_rows_where_they_are_better(tmp_path: Path) -> None:
    """Rows of more than 1,000 elements take another kernel, three times as slow: no line over bytes says that."""
    pytest.importorskip("sklearn")
    random = np.random.default_rng(1)
    made = []
    for number in range(200):
        rows, width = (round(2 ** random.uniform(6, 14)) for _ in range(2))
        data = tuple(Tensor(2 * number + k, (rows, width)) for k in (0, 1))
        seconds = (3e-6 + 8 * rows * width / 1e12) * (3 if width > 1000 else 1)
        made.append(Operator(number, "aten::cumsum", "forward", "", data[:1], data[1:], seconds))
    found = law(trace_of(*made), "cumsum")
    assert found.form == "trees"
    assert found.error < 0.1
    model_files.save([], tmp_path / "own.npz", [found])
    (again,) = model_files.load(tmp_path / "own.npz").regressions
    asked = kind_features(made, H100)
    every = np.arange(len(made))
    np.testing.assert_allclose(
        found.seconds(asked, every), again.seconds(asked, every), rtol=1e-3
    )  # leaves are rounded
