"""Tables of convolutions in the columns of NeuSight and of DeepBench, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.compute import families
from triosim.compute.fit import convolution_tables, family_fitting, measured_files, operator_rows
from triosim.errors import TriosimError

NEUSIGHT = (
    "gpu,dtype,direction,batch,in_channels,out_channels,kernel,input_hw,stride,padding,latency_ms,kernel_name\n"
    "Tesla P4,float32 (TF32 off),forward,7,97,206,3,9,1,1,0.5,winograd\n"
)
DEEPBENCH = (
    "gpu,precision,application,input_w,input_h,in_channels,batch,out_channels,filter_h,filter_w,pad_h,pad_w,stride_v,stride_h,"
    "forward_ms,backward_input_ms,backward_weight_ms\n"
    "NV_V100,Float,OCR,480,48,1,16,16,3,3,1,1,1,1,0.056,N/A*,0.166\n"
    'NV_V100,"16 bit inputs, 16 bit multiplication",Vision,224,224,3,16,64,7,7,3,3,2,2,0.4,0.5,0.6\n'
)


def write(folder: Path, text: str) -> str:
    path = folder / "convolutions.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_row_of_neusight(tmp_path: Path) -> None:
    (table,) = convolution_tables.read(write(tmp_path, NEUSIGHT))
    assert (table.shapes.family, table.shapes.dtype, table.seconds.tolist()) == ("convolution", "float32", [0.5e-3])
    sizes = {name: int(column[0]) for name, column in table.shapes.columns.items()}
    assert (sizes["batch"], sizes["in_channels"], sizes["out_channels"]) == (7, 97, 206)
    assert (sizes["height"], sizes["out_height"], sizes["kernel_width"]) == (9, 9, 3)


def test_rows_of_deepbench_have_three_times_of_which_some_are_missing(tmp_path: Path) -> None:
    single, half = measured_files.read([write(tmp_path, DEEPBENCH)], None).tables
    assert (single.shapes.dtype, half.shapes.dtype) == ("float32", "float16")
    assert single.shapes.kinds is not None
    assert single.shapes.kinds.tolist() == ["forward", "weight"]
    assert single.seconds.tolist() == pytest.approx([56e-6, 166e-6])
    assert half.seconds.tolist() == pytest.approx([400e-6, 500e-6, 600e-6])
    assert half.gpus() == ["V100-SXM2-16GB"]
    assert half.shapes["out_width"].tolist() == [112, 112, 112]


@pytest.mark.parametrize("text", [NEUSIGHT, DEEPBENCH])
def test_the_operators_of_a_table_have_its_shapes(tmp_path: Path, text: str) -> None:
    """So that a model says the same of a table's row and of that operator in a trace."""
    measured = measured_files.read([write(tmp_path, text)], None)
    for table in measured.tables:
        (gpu,) = (gpu for gpu, _ in table.by_gpu())
        ((places, found),) = families.calls_of(operator_rows.of_table(table, gpu).operators)
        assert places.tolist() == list(range(len(table)))
        assert (found.family, found.dtype) == ("convolution", table.shapes.dtype)
        assert {name: column.tolist() for name, column in found.columns.items()} == {
            name: column.tolist() for name, column in table.shapes.columns.items()
        }


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("0.5,", "none,", "convolutions.csv:2: latency_ms: 'none' is not a number"),
        (",7,", ",0,", "convolutions.csv:2: batch: '0' is not a whole number above zero"),
        (",3,9,", ",30,9,", "convolutions.csv:2: the kernel is larger than the data"),
        ("forward,", "sideways,", "convolutions.csv:2: direction: 'sideways' is not known"),
        ("float32 (", "float13 (", "convolutions.csv:2: unknown dtype 'float13 (TF32 off)'"),
        ("input_hw", "input", "convolutions.csv:2: there is no 'input_hw', and no 'input_h'"),
        ("latency_ms", "time", "there is no column of times"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(TriosimError) as caught:
        convolution_tables.read(write(tmp_path, NEUSIGHT.replace(before, after)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_precision_learns_from_float32_in_its_own_sizes_alone(tmp_path: Path) -> None:
    """Of four rows in float32, two have sizes that were measured in half precision, too."""
    pytest.importorskip("scipy")
    header = "gpu,dtype,batch,in_channels,out_channels,kernel,input_hw,padding,latency_ms\n"
    half, single = ((channels, name) for channels, name in (((64, 128), "float16"), ((64, 128, 256, 512), "float32")))
    rows = [f"V100,{name},8,{one},64,3,28,1,{one / 100}\n" for channels, name in (half, single) for one in channels]
    of_half, of_single = convolution_tables.read(write(tmp_path, header + "".join(rows)))
    model = family_fitting.fit(of_half, beside=[of_single])
    assert model.process is not None
    assert len(model.process.points) == 2 + 2
