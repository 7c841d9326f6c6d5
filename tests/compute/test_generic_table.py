"""The table of any operators: what is written is read again, and what is wrong is said with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from triosim import gpus
from triosim.cli import run
from triosim.compute import features, operator_table, stored
from triosim.compute.operator_table import Row
from triosim.errors import TriosimError
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
        Row(embedding(), "NVIDIA H100 80GB HBM3", "warm", runs=50, case="embedding:0"),
        Row(convolution_backward(), "NVIDIA H100 80GB HBM3", "cold", "aten::conv2d", 9, "conv2d:0", "torch 2"),
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
    row = Row(convolution_backward(), "H100", "", "aten::conv2d")
    made = operator_table.operators([row], H100, "t.csv")
    assert made is not None
    (backward,) = made.rows()
    forward = {one.id: one for one in made.operators}[backward.forward or 0]
    assert [t.shape for t in forward.inputs] == [(8, 16, 28, 28), (32, 16, 3, 3)]
    assert features.flops(backward, forward) == 2 * 2 * 8 * 32 * 28 * 28 * 16 * 9


def test_of_warm_and_cold_rows_the_one_of_a_training_step_is_taken() -> None:
    rows = [
        Row(replace(one, seconds=seconds), "H100", cache, forward, case="a")
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
        (HEADER + "H100,aten::relu,forward,float32,2xx,2x3,1\n", "t.csv:2: inputs: '2xx' is no shape"),
        (HEADER + "H100,aten::relu,forward,float32,2x3,2x3,-1\n", "t.csv:2: seconds: '-1' is not a time above zero"),
        (HEADER + "H100,aten::relu,forward,float32,2x3,2x3\n", "t.csv:2: 6 cells under 7 columns"),
        (HEADER + "H100,,forward,float32,2x3,2x3,1\n", "needs a name"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TriosimError) as caught:
        operator_table.read(tmp_path / "t.csv")
    assert said in str(caught.value)


def test_a_table_is_calibrated_by_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(embedding(1e-5 * k), name) for name in ("NVIDIA H100 80GB HBM3", "Tesla T4") for k in (1, 2)]
    operator_table.write(rows, tmp_path / "t.csv.gz")
    table, own = str(tmp_path / "t.csv.gz"), str(tmp_path / "own.npz")
    assert run(["calibrate", "compute", table, "-o", own]) == 0
    assert {one.gpu for one in stored.load_laws(own)} == {"H100-SXM", "T4"}
    assert run(["calibrate", "compute", table, "--gpu", "T4", "-o", own]) == 0
    assert {(one.gpu, one.rows) for one in stored.load_laws(own)} == {("T4", 2)}
    assert run(["calibrate", "compute", table, "--gpu", "V100", "-o", own]) == 2
    assert "has no rows of V100" in capsys.readouterr().err
    assert run(["calibrate", "evaluate", table]) == 2
    assert "add --gpu NAME" in capsys.readouterr().err
