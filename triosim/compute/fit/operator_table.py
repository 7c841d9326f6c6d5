"""Tables of any measured operators: a CSV file of one operator a row, with the shapes and dtypes of its tensors.

``triosim calibrate measure`` writes it, ``calibrate compute`` and ``calibrate evaluate`` read it. The columns:

| column | |
| --- | --- |
| device | the GPU, as PyTorch names it; it may be missing where whoever reads the table names the GPU |
| operator, phase | as a trace names them: ``aten::conv2d`` forward, ``ConvolutionBackward0`` backward |
| dtype | of the tensors that say no other |
| inputs, outputs | shapes: ``8x1024 512x1024``; another dtype behind a colon, ``8x16:int64``; ``scalar`` has no dimension |
| attributes | a JSON object of the arguments that are not tensors, or nothing |
| forward | of a backward operator: what it differentiates; the inputs are then the result's gradient and what that one read |
| cache | ``warm`` or ``cold``, or nothing |
| call | the operator of a step that this one stands for, as ``triosim calibrate missing`` wrote it, or nothing |
| seconds | how long it took; nothing in a plan, which lists what ``calibrate measure --plan`` is to measure |

Further columns (``runs``, ``case``, ``software``) are for people. Lines that begin with # are comments.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from triosim.compute import csv_table
from triosim.compute.fit.operator_rows import OperatorRows
from triosim.errors import TriosimError, nearest
from triosim.gpus import Gpu
from triosim.input_files.reading import read_text
from triosim.operators.shape_checks import contradiction
from triosim.output_files import writing_text
from triosim.trace import DTYPE_BYTES, PHASES, Operator, Phase, Tensor, dtype_name

REQUIRED = ("operator", "phase", "dtype", "inputs", "outputs", "seconds")
COLUMNS = (
    "device", "operator", "phase", "dtype", "inputs", "outputs", "attributes", "forward", "call", "cache", "seconds", "runs",
    "case", "software",
)  # fmt: skip
CACHES = ("warm", "cold")
_SCALAR = "scalar"
_FIRST_OUTPUT = 1_000_000  # the ids of outputs begin here, those of inputs at 0


@dataclass(frozen=True)
class MeasuredOperator:
    """One measured operator; ``case`` names the drawn sizes that it comes from, ``runs`` how often it was timed, ``line`` where
    it stands in its file.
    """

    operator: Operator
    device: str
    cache: str = ""
    forward: str = ""
    runs: int = 0
    case: str = ""
    software: str = ""
    call: str = ""
    line: int = field(default=0, compare=False)


def recognises(path: str | os.PathLike[str]) -> bool:
    """Whether a file is such a table, by its first line."""
    return {"operator", "inputs"} <= {*csv_table.header_of(path)}


def read(path: str | os.PathLike[str], *, timed: bool = True) -> list[MeasuredOperator]:
    """Read the rows of a table, compressed or not, or of a plan, whose operators were not ``timed``.

    Raises ``TriosimError`` that names file, line and what would be right.
    """
    file = os.fspath(path)
    sheet = csv_table.read(file)
    sheet.check_columns(COLUMNS)
    for name in REQUIRED:
        if name not in sheet.header:
            raise TriosimError(f"there is no column '{name}'", where=sheet.where, fix="see docs/calibration.md")
    sheet.require_rows()
    return [
        replace(_row(dict(zip(sheet.header, cells, strict=True)), f"{file}:{line}", timed), line=line)
        for line, cells in sheet.rows
    ]


def write(rows: Sequence[MeasuredOperator], path: str | os.PathLike[str], notes: Sequence[str] = ()) -> None:
    """Write a table, whole or not at all; ``notes`` become lines that begin with #."""
    with writing_text(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_cells(row) for row in rows)
        file.writelines(f"# {note}\n" for note in notes)


def notes(path: str | os.PathLike[str]) -> list[str]:
    """Return the comments of a table."""
    return [line[2:] for line in read_text(Path(path)).splitlines() if line.startswith("# ")]


def operators(rows: Sequence[MeasuredOperator], gpu: Gpu, source: str, cache: str | None = None) -> OperatorRows | None:
    """Return rows as the measured operators of a GPU, with the forward operators that they differentiate; None without any.

    Of operators that were measured warm and cold, ``cache`` names the one to take; by default it is warm in the forward pass,
    which reads what was just written, and cold in the others, as in a training step.
    """
    warm, cold = ({(row.case, row.operator.name) for row in rows if row.cache == one} for one in CACHES)
    made: list[Operator] = []
    measured = []
    calls = {}
    for row in rows:
        one = row.operator
        wanted = cache or ("warm" if one.phase == "forward" else "cold")
        if row.cache and row.cache != wanted and (cache or (row.case, one.name) in warm & cold):
            continue
        number = 2 * len(made)
        if row.forward:
            gradient, *inputs = one.inputs
            made.append(
                Operator(number, row.forward, "forward", "", tuple(inputs), (gradient,), 0.0, attributes=one.attributes)
            )
            one = replace(one, id=number + 1, forward=number)
        else:
            one = replace(one, id=number)
        if row.call:
            calls[len(made)] = row.call
        measured.append(len(made))
        made.append(one)
    software = "; ".join(dict.fromkeys(row.software for row in rows if row.software))
    return OperatorRows(gpu, tuple(made), np.array(measured), source, calls, software) if made else None


def shown(row: MeasuredOperator) -> str:
    """Return what was measured, or is to be, as it stands in a table: the same text for the same operator."""
    return ",".join(map(str, _cells(row)[1:9]))


def _cells(row: MeasuredOperator) -> list[Any]:
    one = row.operator
    dtype = next((t.dtype for t in (*one.inputs, *one.outputs) if "float" in t.dtype), "float32")
    attributes = json.dumps(dict(one.attributes), separators=(",", ":"), sort_keys=True) if one.attributes else ""
    shapes = [" ".join(_shown(tensor, dtype) for tensor in tensors) for tensors in (one.inputs, one.outputs)]
    named = (row.device, one.name, one.phase, dtype, *shapes, attributes, row.forward, row.call, row.cache)
    return [*named, f"{one.seconds:.6g}" if one.seconds else "", row.runs or "", row.case, row.software]


def _shown(tensor: Tensor, dtype: str) -> str:
    shape = "x".join(map(str, tensor.shape)) or _SCALAR
    return shape if tensor.dtype == dtype else f"{shape}:{tensor.dtype}"


def _row(cells: dict[str, str], where: str, timed: bool) -> MeasuredOperator:
    phase, dtype = cells["phase"], dtype_name(cells["dtype"])
    _known("phase", phase, PHASES, where)
    _known("dtype", dtype, DTYPE_BYTES, where)
    cache = cells.get("cache", "")
    if cache:
        _known("cache", cache, CACHES, where)
    seconds = csv_table.seconds(cells["seconds"], "seconds", where) if timed else 0.0
    inputs, outputs = (_tensors(cells[name], dtype, where, name) for name in ("inputs", "outputs"))
    if not cells["operator"] or not (inputs or outputs):
        raise TriosimError("an operator needs a name and at least one tensor", where=where)
    forward = cells.get("forward", "")
    if forward and len(inputs) < 2:
        raise TriosimError(
            "a backward operator reads the gradient, then what the forward operator read",
            where=where,
            fix="list them as inputs, or leave the column 'forward' empty",
        )
    try:
        attributes = json.loads(cells.get("attributes") or "{}")
    except ValueError:
        attributes = None
    if not isinstance(attributes, dict):
        raise TriosimError(f"attributes: '{cells['attributes']}' is not a JSON object", where=where)
    one = Operator(0, cells["operator"], cast(Phase, phase), "", inputs, outputs, seconds, attributes=attributes)
    wrong = contradiction(one)
    if wrong:
        raise TriosimError(wrong, where=where)
    runs = cells.get("runs", "")
    return MeasuredOperator(
        one, cells.get("device", ""), cache, forward, int(runs) if runs.isdigit() else 0, cells.get("case", ""),
        cells.get("software", ""), cells.get("call", ""),
    )  # fmt: skip


def _known(what: str, word: str, words: Any, where: str) -> None:
    if word not in words:
        raise TriosimError(f"{what}: '{word}' is not known", where=where, fix=nearest(word, words))


def _tensors(text: str, dtype: str, where: str, column: str) -> tuple[Tensor, ...]:
    found = []
    for number, part in enumerate(text.split()):
        shape, _, said = part.partition(":")
        other = dtype_name(said)
        if other:
            _known(f"{column}: dtype", other, DTYPE_BYTES, where)
        try:
            lengths = () if shape == _SCALAR else tuple(int(length) for length in shape.split("x"))
        except ValueError:
            lengths = (-1,)
        if any(length < 0 for length in lengths):
            raise TriosimError(f"{column}: '{part}' is not a shape", where=where, fix="write 8x1024, or 8x16:int64")
        if 0 in lengths:
            raise TriosimError(f"{column}: '{part}' has no element", where=where, fix="leave such rows out")
        if math.prod(lengths) > csv_table.LARGEST_SIZE:
            raise TriosimError(f"{column}: '{part}' fits into no memory", where=where)
        found.append(Tensor(number if column == "inputs" else _FIRST_OUTPUT + number, lengths, other or dtype))
    return tuple(found)
