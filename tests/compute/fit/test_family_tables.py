"""Tables of measured operators are recognised by their columns, and what is wrong with one is said in one line."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from triosim import cli
from triosim.compute import families
from triosim.compute.fit import deepbench, family_tables, table_names
from triosim.errors import TriosimError
from triosim.operators import features
from triosim.operators.number_formats import of_scaled
from triosim.trace import Tensor

GEMM = "m,n,k,latency_ms\n8,4096,1024,0.01\n16,64,32,0.002\n"
ATTENTION = "batch_size,sequence_length,num_heads,num_key_value_heads,head_dim,latency_ms\n"


def write(folder: Path, text: str, name: str = "table.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "family", "dtype"),
    [
        (GEMM, "t.csv", "product", "bfloat16"),
        ("device,B,M,N,K,latency_ms\nTesla T4,1,2,3,4,1\n", "t.csv", "product", "float32"),
        (
            "batch_size,sequence_length,num_heads,num_key_value_heads,head_dim,latency_ms\n1,16,8,2,64,0.02\n",
            "t.csv",
            "attention",
            "bfloat16",
        ),
        ("device,OPName,B,H,latency_ms\nTesla T4,add,2,3,1\n", "t.csv", "elementwise", "float32"),
        ("device,B,H,latency_ms\nTesla T4,2,3,1\n", "softmax_rows.csv", "softmax", "float32"),
        ("device,B,H,latency_ms\nTesla T4,2,3,1\n", "ln_rows.csv", "layer_norm", "float32"),
        ("m,n,k,dtype,seconds\n1,2,3,float16,1e-6\n", "t.csv", "product", "float16"),
    ],
)
def test_the_columns_say_what_a_table_is(tmp_path: Path, text: str, name: str, family: str, dtype: str) -> None:
    (table,) = family_tables.read(write(tmp_path, text, name))
    assert (table.shapes.family, table.shapes.dtype) == (family, dtype)


def test_a_compressed_table_is_the_same_table(tmp_path: Path) -> None:
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(GEMM.encode()))
    for path in (str(packed), write(tmp_path, GEMM)):
        (table,) = family_tables.read(path)
        assert table.seconds.tolist() == [1e-5, 2e-6]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,n,kk,latency_ms\n1,2,3,4\n", "table.csv:1: unknown column 'kk'"),
        ("m,n,latency_ms\n1,2,3\n", "the columns are of no known table"),
        ("m,n,k\n1,2,3\n", "0 columns of times"),
        ("m,n,k,latency_ms\n", "holds no rows"),
        ("m,n,k,latency_ms\n1,2,3,4\n1,2,x,4\n", "table.csv:3: k: 'x' is not a number"),
        ("m,n,k,latency_ms\n1,2,3.5,4\n", "table.csv:2: k: '3.5' is not a whole number above zero"),
        ("m,n,k,latency_ms\n1,2,3,0\n", "table.csv:2: latency_ms: '0' is not a time above zero"),
        ("m,n,k,latency_ms\n1,2,3,nan\n", "'nan' is not a time above zero"),
        ("m,n,k,latency_ms\n1,2,3\n", "table.csv:2: 3 cells under 4 columns"),
        ("device,B,H,latency_ms\nTesla T4,2,3,1\n", "--operator softmax"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TriosimError) as caught:
        family_tables.read(write(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GEMM, "t.csv"),
        ("B,M,N,K,latency_ms\n4,2,3,5,1\n2,7,9,11,1\n", "t.csv"),
        ("batch_size,sequence_length,num_heads,num_key_value_heads,head_dim,latency_ms\n1,16,8,2,64,0.02\n", "t.csv"),
        ("OPName,B,H,latency_ms\nadd,2,3,1\naddu,2,3,1\nrelu,4,5,1\n", "t.csv"),
        ("B,H,latency_ms\n2,3,1\n", "softmax.csv"),
        ("B,H,latency_ms\n2,3,1\n", "ln.csv"),
    ],
)
def test_the_operators_of_a_table_have_its_shapes(tmp_path: Path, text: str, name: str) -> None:
    """So that a model says the same of a table's row and of that operator in a trace."""
    (table,) = family_tables.read(write(tmp_path, text, name))
    ((places, found),) = families.calls_of(family_tables.operators(table))
    assert places.tolist() == list(range(len(table)))
    assert (found.family, found.dtype) == (table.shapes.family, table.shapes.dtype)
    for column, values in table.shapes.columns.items():
        np.testing.assert_array_equal(found[column], values)
    if table.shapes.kinds is not None:
        assert found.kinds is not None
        assert found.kinds.tolist() == table.shapes.kinds.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "table.csv: is empty"),
        ("\n \n", "table.csv: is empty"),
        ("# m,n,k\n", "table.csv: holds nothing but comments"),
        ("# by hand\nm;n;k;latency_ms\n1;2;3;4\n", "table.csv:2: its columns are separated by semicolons"),
        ("m\tn\tk\tlatency_ms\n1\t2\t3\t4\n", "table.csv:1: its columns are separated by tabs"),
        ("m,n,k,latency_ms\n1e30,2,3,4\n", "table.csv:2: m: '1e30' is not a size of a tensor"),
        ("m,n,k,latency_ms\n1,2,3,1e-30\n", "table.csv:2: latency_ms: '1e-30' is 1e-33 s"),
        ("m,n,k,seconds\n1,2,3,1e9\n", "which no operator takes"),
        ("m,n,k,dtype,seconds\n1,2,3,fp16,1\n1,2,3,fp17,1\n", "table.csv:3: unknown dtype 'fp17'"),
        (f"{ATTENTION}1,16,8,3,64,0.02\n", "table.csv:2: 8 heads cannot share 3 heads"),
        (f"{ATTENTION}1,16,2,8,64,0.02\n", "table.csv:2: 2 heads cannot share 8 heads"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TriosimError) as caught:
        family_tables.read(write(tmp_path, text))
    assert said in str(caught.value)


def test_notes_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (table,) = family_tables.read(
        write(tmp_path, "# mine\n\nm,n,k,latency_ms\n# warm\n8,4096,1024,0.01\n\n16,64,32,0.002\n")
    )
    assert table.seconds.tolist() == [1e-5, 2e-6]


@pytest.mark.parametrize("name", ["fp16", "half", "torch.float16", "FP16"])
def test_a_dtype_may_be_written_shorter(tmp_path: Path, name: str) -> None:
    (table,) = family_tables.read(write(tmp_path, f"m,n,k,dtype,seconds\n1,2,3,{name},1e-6\n"))
    assert table.shapes.dtype == "float16"


@pytest.mark.parametrize(
    ("name", "gpu", "dtype"),
    [
        ("gemm_fp8_h100.csv.gz", "H100-SXM", "float8_e4m3fn"),
        ("gemm_fp8_block_b200.csv.gz", "B200", "float8_e4m3fn_block"),
        ("gemm_nvfp4_gb200.csv", "GB200", "float4_e2m1fn_x2"),
        ("attention_causal_bf16_rtx_pro_6000_server.csv.gz", "RTX-PRO-6000-Server", "bfloat16"),
        ("linear-a100_40gb-fp16.csv", "A100-SXM-40GB", "float16"),
        ("my rows.csv", None, None),
    ],
)
def test_a_file_is_named_after_gpu_and_dtype(name: str, gpu: str | None, dtype: str | None) -> None:
    assert (table_names.gpu_of(f"b200/{name}"), table_names.format_of(f"fp16/{name}")) == (gpu, dtype)


def test_columns_say_the_dtype_before_the_name_and_the_user_only_where_neither_does(tmp_path: Path) -> None:
    rows = write(
        tmp_path, "m,n,k,dtype,seconds\n1,2,3,fp8_block,1e-6\n4,5,6,bf16,1e-5\n7,8,9,fp8_block,1e-4\n", "fp16.csv"
    )
    first, second = family_tables.read(rows)
    assert (first.shapes.dtype, first.shapes["k"].tolist()) == ("float8_e4m3fn_block", [3, 9])
    assert (second.shapes.dtype, second.lines.tolist()) == ("bfloat16", [3])
    with pytest.raises(TriosimError, match=r"fp16.csv:3: a row in bfloat16, not in float8_e4m3fn_block"):
        family_tables.read(rows, dtype="fp8_block")
    for name, asked, dtype in (
        ("fp16.csv", None, "float16"),
        ("fp16.csv", "bf16", "bfloat16"),
        ("t.csv", "fp8", "float8_e4m3fn"),
    ):
        (table,) = family_tables.read(write(tmp_path, GEMM, name), dtype=asked)
        assert table.shapes.dtype == dtype
    with pytest.raises(TriosimError, match="--dtype: unknown dtype 'fp17'; known: bfloat16"):
        family_tables.read(rows, dtype="fp17")


@pytest.mark.parametrize(("form", "factors", "scales"), [
    ("fp8", [(8, 1024), (1024, 4096)], [(), ()]),
    ("fp8_block", [(8, 1024), (1024, 4096)], [(8, 8), (8, 32)]),
    ("nvfp4", [(8, 512), (512, 4096)], [(8, 64), (64, 4096)]),
])  # fmt: skip
def test_products_of_narrow_numbers_have_scales(
    tmp_path: Path, form: str, factors: list[tuple[int, ...]], scales: list[tuple[int, ...]]
) -> None:
    """DeepSeek's blocks are 1 by 128 and 128 by 128 numbers; nvfp4 has two numbers in a byte, and a scale for each 16."""
    (table,) = family_tables.read(write(tmp_path, "m,n,k,latency_ms\n8,4096,1024,0.01\n"), dtype=form)
    (operator,) = family_tables.operators(table)
    assert operator.name == "aten::_scaled_mm"
    assert [tensor.shape for tensor in operator.inputs] == [*factors, *scales]
    assert features.flops(operator) == 2 * 8 * 4096 * 1024
    ((_, calls),) = families.calls_of([operator])
    assert (calls.dtype, calls["m"], calls["n"], calls["k"]) == (table.shapes.dtype, 8, 4096, 1024)


@pytest.mark.parametrize(
    ("scales", "dtype"),
    [
        (((), ()), "float8_e4m3fn"),
        (((64, 1), (1, 32)), "float8_e4m3fn"),  # one for each row and each column
        (((64, 512), (512, 1)), "float8_e4m3fn_block"),
        (((64, 1), (1, 1)), "float8_e4m3fn_block"),
    ],
)
def test_the_scales_of_both_factors_say_whether_they_are_in_blocks(
    scales: Sequence[tuple[int, ...]], dtype: str
) -> None:
    factors = [Tensor(0, (64, 65536), "float8_e4m3fn"), Tensor(1, (65536, 32), "float8_e4m3fn")]
    assert of_scaled([*factors, *(Tensor(2, shape, "float32") for shape in scales)]) == dtype


def test_deepbench_multiplies_matrices_that_are_stored_by_columns(tmp_path: Path) -> None:
    text = (
        "gpu,precision,M,N,K,A Transpose,B Transpose,Time (msec)\nNV_V100,Float,1760,16,2560,N,N,0.05\n"
        'NV_T4,"16 bit inputs, 16 bit multiplication, 32 bit addition",35,8457,4096,T,N,0.5\n'
    )
    single, half = deepbench.read(write(tmp_path, text))
    assert (single.shapes.dtype, single.gpus(), half.shapes.dtype, half.gpus()) == (
        "float32", ["NV_V100"], "float16", ["NV_T4"]
    )  # fmt: skip
    assert [half.shapes[name].tolist() for name in "bmnk"] == [[1], [8457], [35], [4096]]
    assert half.seconds.tolist() == [5e-4]


def test_names_of_gpus_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    rows = "V100-SXM2-16GB,Float,1760,16,1760,N,N,0.059\nV100\x1b[31m,Float,1760,16,1760,N,N,0.059\n"
    table.write_text(f"gpu,precision,M,N,K,A Transpose,B Transpose,Time (msec)\n{rows}")
    assert cli.run(["calibrate", "evaluate", str(table)]) == 0
    printed = capsys.readouterr()
    assert "refused, off by 100% each" in printed.out
    assert "\x1b[31m" not in printed.out + printed.err
