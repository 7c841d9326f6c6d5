"""Tables of measured operators are recognised by their columns, and what is wrong with one is said in one line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from triosim.compute import families
from triosim.compute.fit import family_tables
from triosim.errors import TriosimError

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
    table = family_tables.read(write(tmp_path, text, name))
    assert (table.shapes.family, table.shapes.dtype) == (family, dtype)


def test_a_compressed_table_is_the_same_table(tmp_path: Path) -> None:
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(GEMM.encode()))
    assert (
        family_tables.read(packed).seconds.tolist()
        == family_tables.read(write(tmp_path, GEMM)).seconds.tolist()
        == [1e-5, 2e-6]
    )


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
    table = family_tables.read(write(tmp_path, text, name))
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
        ("m,n,k,dtype,seconds\n1,2,3,fp16,1\n1,2,3,bf16,1\n", "table.csv:3: several dtypes: bfloat16, float16"),
        (f"{ATTENTION}1,16,8,3,64,0.02\n", "table.csv:2: 8 heads cannot share 3 heads"),
        (f"{ATTENTION}1,16,2,8,64,0.02\n", "table.csv:2: 2 heads cannot share 8 heads"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TriosimError) as caught:
        family_tables.read(write(tmp_path, text))
    assert said in str(caught.value)


def test_notes_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    table = family_tables.read(
        write(tmp_path, "# mine\n\nm,n,k,latency_ms\n# warm\n8,4096,1024,0.01\n\n16,64,32,0.002\n")
    )
    assert table.seconds.tolist() == [1e-5, 2e-6]


@pytest.mark.parametrize("name", ["fp16", "half", "torch.float16", "FP16"])
def test_a_dtype_may_be_written_shorter(tmp_path: Path, name: str) -> None:
    assert family_tables.read(write(tmp_path, f"m,n,k,dtype,seconds\n1,2,3,{name},1e-6\n")).shapes.dtype == "float16"
