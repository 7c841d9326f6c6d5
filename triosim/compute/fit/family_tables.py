"""Tables of measured calls of one operator family: CSV files of sizes and times, recognised by their columns.

The formats are those of the public databases that triosim learns from. Each row is one call: its sizes, as whole numbers, and
``latency_ms``, ``latency_us`` or ``seconds``; with a column ``device``, the table is about several GPUs.

| columns | operator | shape |
| --- | --- | --- |
| m, n, k | ``linear`` in bfloat16; in fp8 and nvfp4 ``_scaled_mm`` | (m, k) times the transpose of (n, k) |
| B, M, N, K | ``linear`` where B is 1 throughout, otherwise ``bmm``, in float32 | (B, M, K) times (B, K, N) |
| batch_size, sequence_length, num_heads, num_key_value_heads, head_dim | causal attention in bfloat16 | |
| OPName, B, H | element-wise in float32; ``addu`` is ``add`` of a number | B rows of H |
| B, H | ``softmax`` or ``layer_norm`` in float32: the columns do not say, so the file's name does | B rows of H |

A column ``dtype`` says another number format (``triosim.operators.number_formats``), row by row; or else the file's name does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import csv_table
from triosim.compute.compute_model import Array, Mask, Rows
from triosim.compute.families import BINARY, COLUMNS, FAMILIES, Family, FamilyCalls
from triosim.compute.fit import table_names
from triosim.errors import TriosimError, nearest
from triosim.gpus import Gpu
from triosim.operators import number_formats
from triosim.trace import Operator, Tensor

_TIMES = {"latency_ms": 1e-3, "latency_us": 1e-6, "seconds": 1.0}
_EXTRA = ("device", "dtype", "OPName")
#: The formats, by the columns that must be there: family, names of the shape's columns, dtype.
_FORMATS: tuple[tuple[tuple[str, ...], Family, str], ...] = (
    (("m", "n", "k"), "product", "bfloat16"),
    (("B", "M", "N", "K"), "product", "float32"),
    (("batch_size", "sequence_length", "num_heads", "num_key_value_heads", "head_dim"), "attention", "bfloat16"),
    (("OPName", "B", "H"), "elementwise", "float32"),
    (("B", "H"), "layer_norm", "float32"),
)
#: FLOP/s that no GPU reaches, by more than an order of magnitude.
_FASTEST = 1e18
#: The names in files of the columns that have other names here.
_RENAMED: Mapping[Family, tuple[str, ...]] = {
    "attention": ("batch_size", "sequence_length", "num_heads", "num_key_value_heads", "head_dim"),
    **dict.fromkeys(("elementwise", "softmax", "layer_norm"), ("b", "h")),
}
#: The families that words in a file's name stand for, where the columns do not say it.
_NAMED: dict[str, Family] = {"softmax": "softmax", "ln": "layer_norm", "layer": "layer_norm", "norm": "layer_norm"}


@dataclass(frozen=True)
class FamilyTable:
    """The rows of a table. ``devices`` are the rows' GPUs, where the table names them; ``lines`` is where the rows stand."""

    shapes: FamilyCalls
    seconds: Array
    devices: npt.NDArray[np.str_] | None
    source: str
    lines: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.seconds)

    def select(self, rows: Mask | Rows) -> FamilyTable:
        """Return some of the rows."""
        devices = None if self.devices is None else self.devices[rows]
        lines = self.lines[rows] if len(self.lines) else self.lines
        return replace(self, shapes=self.shapes.select(rows), seconds=self.seconds[rows], devices=devices, lines=lines)

    def on(self, names: Sequence[str]) -> FamilyTable:
        """Return the rows of GPUs of some names, as the table writes them."""
        assert self.devices is not None, "the table names its GPUs"
        return self.select(np.isin(self.devices, names))

    def renamed(self, names: Mapping[str, str]) -> FamilyTable:
        """Return the table with other names of its GPUs."""
        assert self.devices is not None, "the table names its GPUs"
        return replace(self, devices=np.array([names[name] for name in self.devices.tolist()]))

    def by_gpu(self) -> Iterator[tuple[Gpu, Mask]]:
        """Yield the GPUs of a table that names them as the catalogue does, and which rows are theirs."""
        assert self.devices is not None, "the table names its GPUs"
        for name in self.gpus():
            yield gpus.find(name), self.devices == name

    def gpus(self) -> list[str]:
        """Return the names of the GPUs in the table."""
        return [] if self.devices is None else sorted(set(self.devices.tolist()))

    def first_lines(self) -> dict[str, int]:
        """Return the line on which each name of a GPU stands first."""
        assert self.devices is not None
        return dict(zip(self.devices[::-1].tolist(), self.lines[::-1].tolist(), strict=True))


def read(path: str | os.PathLike[str], family: str | None = None, dtype: str | None = None) -> list[FamilyTable]:
    """Read a table, compressed by gzip or not: a part for each number format, in the order of their first rows.

    ``family`` is the operator, where the columns do not say it; ``dtype`` the format, where neither they nor the name does.
    Raises ``TriosimError`` that names the file, the line and what would be right.
    """
    file = os.fspath(path)
    sheet = csv_table.read(file)
    sheet.check_columns({name for names, _, _ in _FORMATS for name in names} | {*_EXTRA, *_TIMES})
    names, found, usual, time = _recognise(sheet.header, sheet.where, file, family)
    sheet.require_rows()
    columns = {name: [cells[number] for _, cells in sheet.rows] for number, name in enumerate(sheet.header)}
    where = [f"{file}:{line}" for line, _ in sheet.rows]
    shape = {
        name.lower(): np.array([csv_table.size(*cell) for cell in _cells(columns, name, where)], dtype=np.float64)
        for name in names
        if name != "OPName"
    }
    seconds = np.array([csv_table.seconds(*cell, _TIMES[time]) for cell in _cells(columns, time, where)])
    if found == "product":
        check_rate(shape, seconds, where)
    if found == "attention":
        _check_heads(shape["num_heads"], shape["num_key_value_heads"], where)
    kinds = np.array(columns["OPName"]) if "OPName" in names else None
    shapes = FamilyCalls(found, "", _canonical(shape, found), kinds)
    devices = np.array(columns["device"]) if "device" in columns else None
    table = FamilyTable(shapes, seconds, devices, file, np.array([line for line, _ in sheet.rows]))
    return _by_format(table, _formats(columns.get("dtype"), where, file, dtype) or [usual] * len(table))


def _by_format(table: FamilyTable, formats: Sequence[str]) -> list[FamilyTable]:
    """Return the rows of each number format."""
    named = np.array(formats)
    parts = [(name, table.select(named == name)) for name in dict.fromkeys(formats)]
    return [replace(part, shapes=replace(part.shapes, dtype=name)) for name, part in parts]


def _cells(columns: dict[str, list[str]], name: str, where: list[str]) -> list[tuple[str, str, str]]:
    return [(cell, name, line) for cell, line in zip(columns[name], where, strict=True)]


def check_rate(shape: Mapping[str, Array], seconds: Array, where: list[str]) -> None:
    """Raise ``TriosimError`` for products at a rate that no GPU has: sizes or times have another unit."""
    rates = 2.0 * shape.get("b", np.ones(1)) * shape["m"] * shape["n"] * shape["k"] / seconds
    if len(wrong := np.flatnonzero(rates > _FASTEST)):
        row = int(wrong[0])
        fix = f"the most is {_FASTEST:.0e}; is the unit of the times right?"
        raise TriosimError(f"is a product at {rates[row]:.3g} FLOP/s, which no GPU reaches", where[row], fix)


def _check_heads(heads: Array, shared: Array, where: list[str]) -> None:
    """As many query heads must share each head of keys and values."""
    wrong = np.flatnonzero(heads % shared)
    if len(wrong):
        row = int(wrong[0])
        raise TriosimError(
            f"{heads[row]:.0f} heads cannot share {shared[row]:.0f} heads of keys and values",
            where=where[row],
            fix="num_heads is a multiple of num_key_value_heads",
        )


def operators(table: FamilyTable) -> list[Operator]:
    """Return the rows as the operators that a trace would hold, so that any compute model can be asked about them."""
    shapes = table.shapes
    attributes = {"is_causal": True, "kernel": "measured"} if shapes.family == "attention" else {}
    made = []
    for row, seconds in enumerate(table.seconds.tolist()):
        sizes = [int(column[row]) for column in shapes.columns.values()]
        name, inputs, output = _call(shapes, sizes, row)
        tensors = tuple(replace(tensor, id=6 * row + number) for number, tensor in enumerate(inputs))
        outputs = (replace(output, id=6 * row + 5),)
        made.append(Operator(row, f"aten::{name}", "forward", "", tensors, outputs, seconds, attributes=attributes))
    return made


def _call(shapes: FamilyCalls, sizes: Sequence[int], row: int) -> tuple[str, list[Tensor], Tensor]:
    """Return name, inputs and output of a call; ``sizes`` are in the order of ``families.COLUMNS``."""
    if shapes.family == "product" and shapes.dtype in number_formats.SCALED:
        return "_scaled_mm", *_scaled_product(sizes, shapes.dtype)
    name, inputs, output = _plain_call(shapes.family, sizes, "" if shapes.kinds is None else str(shapes.kinds[row]))
    return name, [Tensor(0, shape, shapes.dtype) for shape in inputs], Tensor(0, output, shapes.dtype)


def _scaled_product(sizes: Sequence[int], form: str) -> tuple[list[Tensor], Tensor]:
    """Return the factors, their scales and the result of a product of narrow numbers."""
    _, m, n, k = sizes
    dtype, scales = number_formats.dtype_of(form), "float32"
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
    if form in number_formats.SHARING:
        blocks, rows = -(-k // number_formats.SHARING[form]), -(-n // number_formats.SHARING[form])
        shapes = (m, blocks), (blocks, rows)
        if form == number_formats.FP4:
            scales, shapes = number_formats.FP8, ((m, blocks), (blocks, n))
    width = -(-k // number_formats.numbers_in_an_element(dtype))
    factors = [Tensor(0, (m, width), dtype), Tensor(0, (width, n), dtype)]
    return factors + [Tensor(0, shape, scales) for shape in shapes], Tensor(0, (m, n), "bfloat16")


def _plain_call(family: Family, sizes: Sequence[int], kind: str) -> tuple[str, list[tuple[int, ...]], tuple[int, ...]]:
    """Return name, input shapes and output shape of a call whose tensors all have one dtype."""
    if family == "product":
        b, m, n, k = sizes
        return ("linear", [(m, k), (n, k)], (m, n)) if b == 1 else ("bmm", [(b, m, k), (b, k, n)], (b, m, n))
    if family == "attention":
        b, s, h, kv, d = sizes
        return "_scaled_dot_product_flash_attention", [(b, h, s, d), (b, kv, s, d), (b, kv, s, d)], (b, h, s, d)
    shape = tuple(sizes)
    if family != "elementwise":
        return family, [shape], shape
    name = kind.lower()
    scalar = name.endswith("u") and name[:-1] in BINARY
    return name[:-1] if scalar else name, [shape, shape] if name in BINARY else [shape], shape


def _recognise(
    header: list[str], where: str, file: str, family: str | None
) -> tuple[tuple[str, ...], Family, str, str]:
    """Return the names of the shape's columns, the family, the dtype and the name of the column of times."""
    times = [name for name in header if name in _TIMES]
    if len(times) != 1:
        raise TriosimError(f"{len(times)} columns of times", where=where, fix=f"give one of {', '.join(_TIMES)}")
    shape = {*header} - {*times, "device", "dtype"}
    for names, found, dtype in _FORMATS:
        if shape == {*names}:
            return names, _family(found, names, file, family), dtype, times[0]
    formats = "; ".join(", ".join(names) for names, _, _ in _FORMATS)
    raise TriosimError("the columns are of no known table", where=where, fix=f"known: {formats}")


def _family(found: Family, names: Sequence[str], file: str, asked: str | None) -> Family:
    if asked is not None and asked not in FAMILIES:
        raise TriosimError(f"there is no operator '{asked}'", where="--operator", fix=nearest(asked, FAMILIES))
    if tuple(names) != ("B", "H"):
        if asked is not None and asked != found:
            raise TriosimError(f"the columns are those of '{found}', not of '{asked}'", where=file)
        return found
    if asked is not None:
        if asked not in ("softmax", "layer_norm"):
            raise TriosimError("the columns are those of 'softmax' or 'layer_norm'", where=file)
        return asked
    stem = Path(file).name.lower()
    for word, family in _NAMED.items():
        if word in stem:
            return family
    raise TriosimError(
        "the columns B and H do not say which operator",
        where=file,
        fix="add --operator softmax or --operator layer_norm",
    )


def _formats(cells: list[str] | None, where: list[str], file: str, asked: str | None) -> list[str] | None:
    """Return the number format of each row: that of its cell, or else that of a user or of the file's name; None without any.

    Raises ``TriosimError`` for a cell or a user's word that is none, and where the cells contradict the user.
    """
    wanted = None if asked is None else _known_format(asked, "--dtype")
    if cells is None:
        found = wanted or table_names.format_of(file)
        return None if found is None else [found] * len(where)
    rows = [_known_format(cell, line) for cell, line in zip(cells, where, strict=True)]
    for one, line in zip(rows, where, strict=True):
        if wanted not in (None, one):
            raise TriosimError(f"a row in {one}, not in {wanted}", where=line, fix="leave out --dtype")
    return rows


def _known_format(text: str, where: str) -> str:
    found = number_formats.format_name(text)
    if found not in number_formats.FORMATS:
        raise TriosimError(f"unknown dtype '{text}'", where=where, fix=nearest(found, number_formats.FORMATS))
    return found


def _canonical(shape: dict[str, Array], family: Family) -> dict[str, Array]:
    """Return the columns under the names of ``families.COLUMNS``."""
    if family == "product":
        shape = {"b": np.ones(len(shape["m"])), **shape}
    names = _RENAMED.get(family, COLUMNS[family])
    return {name: shape[said] for name, said in zip(COLUMNS[family], names, strict=True)}
