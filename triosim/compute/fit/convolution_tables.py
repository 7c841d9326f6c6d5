"""Tables of measured convolutions: CSV files whose rows name channels, sizes and kernel, in the columns of public databases.

| column | |
| --- | --- |
| gpu, or device | the GPU; it may be missing where whoever reads the table names the GPU |
| dtype, or precision | ``float32`` (the default), ``tf32``, ``float16``, ``bfloat16``; a remark may follow |
| batch, in_channels, out_channels, groups | groups are 1 by default |
| input_hw, or input_h and input_w | height and width of the data |
| kernel, or filter_h and filter_w | |
| stride, or stride_v and stride_h; padding, or pad_h and pad_w; dilation | 1, 0 and 1 by default |
| direction | ``forward`` (the default), ``data`` or ``weight``: what is computed, the result or a gradient |
| latency_ms, latency_us or seconds | how long it took |
| forward_ms, backward_input_ms, backward_weight_ms | the times of all three directions, instead of these two |

Other columns (the kernel's name, versions, the source) are for people. A time that is no number (``N/A``) was not measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from triosim.compute import csv_table
from triosim.compute.families import COLUMNS, FamilyCalls
from triosim.compute.fit.family_tables import FamilyTable
from triosim.errors import TriosimError, nearest
from triosim.operators.convolutions import Direction, Geometry
from triosim.trace import Operator, Tensor, dtype_name

_REQUIRED = ("batch", "in_channels", "out_channels")
_TIMES = {"latency_ms": 1e-3, "latency_us": 1e-6, "seconds": 1.0}
_TIMES_OF_DIRECTIONS: Mapping[str, Direction] = {
    "forward_ms": "forward", "backward_input_ms": "data", "backward_weight_ms": "weight",
}  # fmt: skip
_DIRECTIONS: Mapping[str, Direction] = {"": "forward", "forward": "forward", "data": "data", "weight": "weight"}
_DTYPES = ("float32", "tf32", "float16", "bfloat16", "float64")
_FLOAT16 = "16 bit inputs"  # as DeepBench says it


class _Row(NamedTuple):
    dtype: str
    geometry: Geometry
    direction: Direction
    seconds: float
    device: str
    line: int


def recognises(path: str | os.PathLike[str]) -> bool:
    """Whether a file is such a table, by its first line."""
    return {*_REQUIRED} <= {*csv_table.header_of(path)}


def read(path: str | os.PathLike[str]) -> list[FamilyTable]:
    """Read a table, compressed or not: a part for each dtype.

    Raises ``TriosimError`` that names the file, the line and what would be right.
    """
    file = os.fspath(path)
    sheet = csv_table.read(file)
    sheet.require_rows()
    rows = [
        row
        for line, cells in sheet.rows
        for row in _rows(dict(zip(sheet.header, cells, strict=True)), line, f"{file}:{line}")
    ]
    if not rows:
        raise TriosimError("holds no time of a convolution", where=file)
    return [
        _part([row for row in rows if row.dtype == dtype], file) for dtype in dict.fromkeys(row.dtype for row in rows)
    ]


def operators(table: FamilyTable) -> list[Operator]:
    """Return the rows as the operators that a trace would hold; one in float32 may not compute in TF32."""
    made = []
    shapes = table.shapes
    assert shapes.kinds is not None, "rows of convolutions have a direction"
    dtype = "float32" if shapes.dtype == "tf32" else shapes.dtype
    sizes = np.stack([shapes[name] for name in COLUMNS["convolution"]], axis=1).astype(int).tolist()
    for row, (values, direction, seconds) in enumerate(
        zip(sizes, shapes.kinds.tolist(), table.seconds.tolist(), strict=True)
    ):
        one = Geometry(*values)
        data = Tensor(4 * row, (one.batch, one.in_channels, one.height, one.width), dtype)
        kernel = (one.kernel_height, one.kernel_width)
        weight = Tensor(4 * row + 1, (one.out_channels, one.in_channels // one.groups, *kernel), dtype)
        out = Tensor(4 * row + 2, (one.batch, one.out_channels, one.out_height, one.out_width), dtype)
        sides = {"stride": [one.stride] * 2, "dilation": [one.dilation] * 2, "groups": one.groups}
        attributes = {**sides, "transposed": False, "allow_tf32": shapes.dtype == "tf32"}
        if direction == "forward":
            made.append(
                Operator(row, "aten::conv2d", "forward", "", (data, weight), (out,), seconds, attributes=attributes)
            )
            continue
        shape = (data if direction == "data" else weight).shape
        inputs, outputs = (out, data, weight), (Tensor(4 * row + 3, shape, dtype),)
        name = "aten::convolution_backward"
        made.append(Operator(row, name, "backward", "", inputs, outputs, seconds, attributes=attributes))
    return made


def _part(rows: list[_Row], file: str) -> FamilyTable:
    values = np.array([row.geometry for row in rows], dtype=np.float64)
    columns = {name: values[:, number] for number, name in enumerate(COLUMNS["convolution"])}
    calls = FamilyCalls("convolution", rows[0].dtype, columns, np.array([row.direction for row in rows]))
    devices = np.array([row.device for row in rows]) if any(row.device for row in rows) else None
    return FamilyTable(
        calls, np.array([row.seconds for row in rows]), devices, file, np.array([row.line for row in rows])
    )


def _rows(cells: Mapping[str, str], line: int, where: str) -> Iterator[_Row]:
    """Yield the row of a line, or one for each direction that was measured."""
    times = {name: _TIMES_OF_DIRECTIONS[name] for name in _TIMES_OF_DIRECTIONS if name in cells}
    if not times:
        name = next((name for name in _TIMES if name in cells), "")
        if not name:
            raise TriosimError("there is no column of times", where=where, fix=f"give one of {', '.join(_TIMES)}")
        said = cells.get("direction", "")
        if said not in _DIRECTIONS:
            raise TriosimError(f"direction: '{said}' is not known", where=where, fix=nearest(said, _DIRECTIONS))
        times = {name: _DIRECTIONS[said]}
    dtype, geometry = _dtype(cells.get("dtype") or cells.get("precision", ""), where), _geometry(cells, where)
    device = cells.get("gpu") or cells.get("device", "")
    for name, direction in times.items():
        if name not in _TIMES and not cells[name][:1].isdigit():
            continue
        seconds = csv_table.seconds(cells[name], name, where, _TIMES.get(name, 1e-3))
        yield _Row(dtype, geometry, direction, seconds, device, line)


def _dtype(text: str, where: str) -> str:
    if text.startswith(_FLOAT16):
        return "float16"
    found = dtype_name(text.partition(" ")[0].lower() or "float32")
    if found not in _DTYPES:
        raise TriosimError(f"unknown dtype '{text}'", where=where, fix=nearest(found, _DTYPES))
    return found


def _geometry(cells: Mapping[str, str], where: str) -> Geometry:
    batch, into, out_of = (csv_table.size(cells[name], name, where) for name in _REQUIRED)
    groups = csv_table.size(cells.get("groups") or "1", "groups", where)
    height, width = _pair(cells, where, "input_hw", "input_h", "input_w")
    kernel = _pair(cells, where, "kernel", "filter_h", "filter_w")
    strides = _pair(cells, where, "stride", "stride_v", "stride_h", "1")
    padding = _pair(cells, where, "padding", "pad_h", "pad_w", "0")
    dilation, _ = _pair(cells, where, "dilation", "dilation_h", "dilation_w", "1")
    out = [
        (length + 2 * pad - dilation * (side - 1) - 1) // stride + 1
        for length, side, stride, pad in zip((height, width), kernel, strides, padding, strict=True)
    ]
    if min(out) < 1:
        raise TriosimError("the kernel is larger than the data", where=where)
    if into % groups or out_of % groups:
        raise TriosimError(f"{groups} groups do not divide the channels", where=where)
    return Geometry(batch, into, out_of, groups, height, width, out[0], out[1], *kernel, strides[1], dilation)


def _pair(
    cells: Mapping[str, str], where: str, both: str, first: str, second: str, default: str = ""
) -> tuple[int, int]:
    """Return the two numbers of a column for both, or of a column for each."""
    found = []
    for name in (first, second):
        text = cells.get(both) or cells.get(name) or default
        if not text:
            raise TriosimError(f"there is no '{both}', and no '{name}'", where=where)
        is_none = default == "0" and text in ("0", "0.0")  # padding alone may be none
        found.append(0 if is_none else csv_table.size(text, both if both in cells else name, where))
    return found[0], found[1]
