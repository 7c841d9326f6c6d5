"""The table of any operators: what is written is read again, and what is wrong is said with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from triosim import gpus
from triosim.cli import run
from triosim.compute.fit import operator_table
from triosim.compute.fit.operator_table import MeasuredOperator
from triosim.compute.learned import model_files
from triosim.errors import TriosimError
from triosim.operators import features
from triosim.trace import Operator, Tensor

H100 = gpus.find("H100")
HEADER = "device,operator,phase,dtype,inputs,outputs,seconds\n"


def embedding(seconds: float = 2e-5) -> Operator:
    table, words, out = (
        Tensor(0, (1000, 64), "bfloat16"),
        Tensor(1, (8, 16), "int64"),
        Tensor(2, (8, 16, 64), "bfloat16"),
    )
    return Operator(
        0, "aten::embedding", "forward", "", (table, words), (out,), seconds, attributes={"padding_idx": -1}
    )


def convolution_backward(seconds: float = 3e-4) -> Operator:
    shapes = ((8, 32, 28, 28), (8, 16, 28, 28), (32, 16, 3, 3))
    inputs = tuple(Tensor(k, shape, "bfloat16") for k, shape in enumerate(shapes))
    outputs = tuple(Tensor(10 + k, shape, "bfloat16") for k, shape in enumerate(shapes[1:]))
    return Operator(0, "ConvolutionBackward0", "backward", "", inputs, outputs, seconds)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_rows_are_written_and_read_again(tmp_path: Path, name: str) -> None:
    rows = [
        MeasuredOperator(embedding(), "NVIDIA H100 80GB HBM3", "warm", runs=50, case="embedding:0"),
        MeasuredOperator(
            convolution_backward(), "NVIDIA H100 80GB HBM3", "cold", "aten::conv2d", 9, "conv2d:0", "torch 2"
        ),
    ]
    operator_table.write(rows, tmp_path / name, ["conv2d:1 skipped"])
    assert operator_table.recognises(tmp_path / name)
    again = operator_table.read(tmp_path / name)
    assert operator_table.notes(tmp_path / name) == ["conv2d:1 skipped"]
    for one, other in zip(rows, again, strict=True):
        assert replace(one, operator=other.operator) == other
        for attribute in ("name", "phase", "seconds", "attributes"):
            assert getattr(one.operator, attribute) == getattr(other.operator, attribute)
        for side in ("inputs", "outputs"):
            mine, its = (getattr(row.operator, side) for row in (one, other))
            assert [(t.shape, t.dtype) for t in mine] == [(t.shape, t.dtype) for t in its]


def test_a_backward_row_has_the_flops_of_what_it_differentiates() -> None:
    """Two products of 2 * 8 * 32 * 28 * 28 * 16 * 9 FLOPs: the gradients of the data and of the weight."""
    row = MeasuredOperator(convolution_backward(), "H100", "", "aten::conv2d")
    made = operator_table.operators([row], H100, "t.csv")
    assert made is not None
    (backward,) = made.rows()
    forward = {one.id: one for one in made.operators}[backward.forward or 0]
    assert [t.shape for t in forward.inputs] == [(8, 16, 28, 28), (32, 16, 3, 3)]
    assert features.flops(backward, forward) == 2 * 2 * 8 * 32 * 28 * 28 * 16 * 9


def test_of_warm_and_cold_rows_the_one_of_a_training_step_is_taken() -> None:
    rows = [
        MeasuredOperator(replace(one, seconds=seconds), "H100", cache, forward, case="a")
        for one, forward in ((embedding(), ""), (convolution_backward(), "aten::conv2d"))
        for cache, seconds in (("warm", 1e-5), ("cold", 2e-5))
    ]

    def times(cache: str | None) -> list[float]:
        made = operator_table.operators(rows, H100, "t.csv", cache)
        assert made is not None
        return made.seconds.tolist()

    assert times(None) == [1e-5, 2e-5]
    assert times("warm") == [1e-5, 1e-5]
    assert times("cold") == [2e-5, 2e-5]
    only_cold = operator_table.operators(rows[1:2], H100, "t.csv")
    assert only_cold is not None
    assert only_cold.seconds.tolist() == [2e-5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,operator,phase,dtype,inputs,seconds\nH100,aten::mm,forward,float32,2x3,1\n", "no column 'outputs'"),
        (HEADER.replace("seconds", "second"), "t.csv:1: unknown column 'second'; did you mean 'seconds'?"),
        (HEADER, "holds no rows"),
        (HEADER + "H100,aten::relu,forwards,float32,2x3,2x3,1\n", "t.csv:2: phase: 'forwards' is not known"),
        (HEADER + "H100,aten::relu,forward,float33,2x3,2x3,1\n", "t.csv:2: dtype: 'float33' is not known"),
        (HEADER + "H100,aten::relu,forward,float32,2xx,2x3,1\n", "t.csv:2: inputs: '2xx' is not a shape"),
        (HEADER + "H100,aten::relu,forward,float32,2x3,2x3,-1\n", "t.csv:2: seconds: '-1' is not a time above zero"),
        (HEADER + "H100,aten::relu,forward,float32,2x3,2x3\n", "t.csv:2: 6 cells under 7 columns"),
        (HEADER + "H100,,forward,float32,2x3,2x3,1\n", "needs a name"),
        (HEADER + "H100,aten::relu,forward,float32,0x64,0x64,1\n", "t.csv:2: inputs: '0x64' has no element"),
        (HEADER + "H100,aten::relu,forward,float32,64,64,1e-30\n", "t.csv:2: seconds: '1e-30' is 1e-30 s"),
        (HEADER + "H100,aten::mm,forward,float32,8x8 9x8,8x8,1\n", "t.csv:2: 8x8 cannot be multiplied by 9x8"),
        (HEADER + "H100,aten::mm,forward,float32,8x4 4x6,8x7,1\n", "t.csv:2: the result has the shape 8x6, not 8x7"),
        (HEADER + "H100,aten::linear,forward,float32,8x8,8x8,1\n", "t.csv:2: linear needs two tensors"),
        (HEADER + "H100,aten::conv2d,forward,float32,8x3x9x9 8x4x3x3,8x8x7x7,1\n", "does not fit the 3 channels"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TriosimError) as caught:
        operator_table.read(tmp_path / "t.csv")
    assert said in str(caught.value)


def test_a_table_is_calibrated_by_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        MeasuredOperator(embedding(1e-5 * k), name) for name in ("NVIDIA H100 80GB HBM3", "Tesla T4") for k in (1, 2)
    ]
    operator_table.write(rows, tmp_path / "t.csv.gz")
    table, own = str(tmp_path / "t.csv.gz"), str(tmp_path / "own.npz")
    assert run(["calibrate", "compute", table, "-o", own]) == 0
    assert {one.gpu for one in model_files.load(own).regressions} == {"H100-SXM", "T4"}
    assert run(["calibrate", "compute", table, "--gpu", "T4", "-o", own]) == 0
    assert {(one.gpu, one.rows) for one in model_files.load(own).regressions} == {("T4", 2)}
    assert run(["calibrate", "compute", table, "--gpu", "V100", "-o", own]) == 2
    assert "has no rows of V100" in capsys.readouterr().err
    assert run(["calibrate", "evaluate", table]) == 0
    assert "MAPE by GPU" in capsys.readouterr().out


def test_grouped_and_transposed_convolutions_and_vectors_are_right_as_they_are(tmp_path: Path) -> None:
    rows = (
        "H100,aten::conv2d,forward,float32,8x32x9x9 32x1x3x3,8x32x7x7,1",
        "H100,aten::conv_transpose2d,forward,float32,8x32x9x9 32x16x3x3,8x16x11x11,1",
        "H100,aten::addmm,forward,float32,6 8x4 4x6,8x6,1",
        "H100,aten::matmul,forward,float32,8x4 4,8,1",
        "H100,aten::matmul,forward,float32,2x3x8x4 4x6,2x3x8x6,1",
    )
    (tmp_path / "t.csv").write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    assert len(operator_table.read(tmp_path / "t.csv")) == len(rows)


def calibrate(path: Path, *options: str) -> int:
    return run(["calibrate", "compute", str(path), *options, "-o", str(path.with_suffix(".npz"))])


def test_a_table_need_not_name_its_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the column, or with an empty cell, --gpu says it."""
    without, empty = tmp_path / "without.csv", tmp_path / "empty.csv"
    without.write_text(HEADER.removeprefix("device,") + "aten::relu,forward,fp16,64,64,1e-5\n", encoding="utf-8")
    empty.write_text(
        HEADER + "H100,aten::relu,forward,bf16,64:half,64,1e-5\n,aten::relu,forward,bf16,8,8,1e-5\n", encoding="utf-8"
    )
    assert calibrate(without) == 2
    assert "add --gpu NAME" in capsys.readouterr().err
    assert calibrate(empty) == 2
    assert "empty.csv:3: device: empty" in capsys.readouterr().err
    for path, rows in ((without, 1), (empty, 2)):
        assert calibrate(path, "--gpu", "H100") == 0
        (law,) = {(one.gpu, one.rows) for one in model_files.load(path.with_suffix(".npz")).regressions}
        assert law == ("H100-SXM", rows)


def test_a_gpu_outside_of_the_catalogue_is_described_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, mine = tmp_path / "t.csv", tmp_path / "mine.yaml"
    table.write_text(HEADER + "Gizmo 9000,aten::relu,forward,float32,64,64,1e-5\n", encoding="utf-8")
    mine.write_text("name: my prototype\nlike: H100-SXM\nflops: {bf16: 1 PFLOP/s}\n", encoding="utf-8")
    assert calibrate(table) == 2
    assert "t.csv:2: device: 'Gizmo 9000' is not in the GPU catalogue" in capsys.readouterr().err
    assert calibrate(table, "--gpu", "H100") == 2
    assert "--gpu my_gpu.yaml" in capsys.readouterr().err
    assert calibrate(table, "--gpu", str(mine)) == 0
    assert {one.gpu for one in model_files.load(table.with_suffix(".npz")).regressions} == {"my prototype"}
    assert gpus.find(str(mine)).rate("bfloat16") == 1e15
