"""The trace format of the original TrioSim (arXiv 2506.01018): a directory with ``trace.csv`` and ``tensor.csv``.

``trace.csv`` has an operator a row, with times in microseconds and its tensors by id; ``tensor.csv`` has a row for each use of
a tensor. The reader infers what they leave out: which forward operator a backward one differentiates, where a gradient comes
from, and which parameter it belongs to.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from triosim.errors import TraceError, nearest
from triosim.input_files.reading import head, read_text
from triosim.trace.autograd import forward_names, short_name
from triosim.trace.formats import tensor_categories
from triosim.trace.formats.unclassified import (
    CategoryHints,
    RawTensor,
    TensorIdentities,
    UnclassifiedOperator,
    UnclassifiedTensor,
)
from triosim.trace.trace import PHASES, Phase, Trace

NAME = "csv"
FILES = ("trace.csv", "tensor.csv")

OPERATOR_COLUMNS = (
    "OperatorID", "OperatorName", "Operator_input", "Operator_output", "Operator_cudatime", "Operator_cudatimenooverlap",
    "stage",
)  # fmt: skip
TENSOR_COLUMNS = ("TensorID", "TensorShape", "TensorNumElement", "TensorEachByte", "TensorType", "TensorStorgeid")

MICROSECONDS = 1e6

_DTYPES = {0: "float32", 1: "bool", 2: "float16", 4: "float32", 8: "int64"}  # by the bytes of an element
#: The GPUs that a directory's name can mean: a word of its own such as ``h100``.
_GPU = re.compile(r"(?:^|[_\-. ])([abhlptv]\d{1,3}s?|gb\d{3}|rtx\d{4}|mi\d{3}x?)(?=$|[_\-. ])", re.IGNORECASE)
_BATCH = re.compile(r"(?:^|[_\-. ])(?:bs|batch)\d+(?=$|[_\-. ])", re.IGNORECASE)


def recognises(path: Path) -> bool:
    """Whether the directory holds a ``trace.csv`` whose first line has this format's columns."""
    table = path / FILES[0]
    return path.is_dir() and table.is_file() and b"Operator" in head(table, 4096).split(b"\n", 1)[0]


def read(path: Path) -> Trace:
    """Return the trace in a directory. Raises ``TraceError`` that names file and line."""
    table = {row.number: row for row in _tensors(path / FILES[1])}
    hints = CategoryHints()
    incoming: set[int] = set()
    operators = _operators(path / FILES[0], table, hints, incoming)
    _name_layers(operators)
    _add_dataflow(operators, tensor_categories.parameters_of(operators, hints), incoming)
    found = tensor_categories.assign(operators, hints)
    batch = tensor_categories.batch_size(operators, hints)
    if not batch:
        raise TraceError("no operator reads an input, so the batch size is unknown", where=str(path / FILES[0]))
    model, gpu = _model_and_gpu(path.resolve().name)
    return Trace(tensor_categories.build(operators, found), batch, model, gpu, "measured", source=str(path))


@dataclass(slots=True)
class _TensorRow:
    """A tensor as all of its rows describe it; ``raw`` is None for an undefined tensor, which has no bytes."""

    number: int
    raw: RawTensor | None
    types: set[str] = field(default_factory=set)


def _tensors(path: Path) -> Iterable[_TensorRow]:
    found: dict[int, _TensorRow] = {}
    for line, row in _rows(path, TENSOR_COLUMNS):
        cell = f"{path}: line {line}"
        number = _integer(row["TensorID"], f"{cell}: TensorID")
        shape = _integers(row["TensorShape"], ",", f"{cell}: TensorShape")
        size = _integer(row["TensorEachByte"], f"{cell}: TensorEachByte")
        count = _integer(row["TensorNumElement"], f"{cell}: TensorNumElement")
        if count and math.prod(shape) != count:
            _fail(f"{cell}: TensorNumElement", f"{count} elements do not make the shape {list(shape)}")
        if size not in _DTYPES:
            _fail(f"{cell}: TensorEachByte", f"no element has {size} bytes", "1, 2, 4 or 8")
        storage = _integer(row["TensorStorgeid"], f"{cell}: TensorStorgeid")
        raw = RawTensor(number, storage, tuple(shape), _DTYPES[size]) if count and size else None
        known = found.setdefault(number, _TensorRow(number, raw))
        if known.raw != raw:
            _fail(f"{cell}: TensorID", f"tensor {number} differs from an earlier row's", "each id is one tensor")
        known.types.add(row["TensorType"].strip())
    return found.values()


def _operators(
    path: Path, table: dict[int, _TensorRow], hints: CategoryHints, incoming: set[int]
) -> list[UnclassifiedOperator]:
    identities = TensorIdentities()
    operators: list[UnclassifiedOperator] = []
    before = 0
    for line, row in _rows(path, OPERATOR_COLUMNS):
        cell = f"{path}: line {line}"
        number = _integer(row["OperatorID"], f"{cell}: OperatorID")
        if operators and number <= before:
            what = f"operator {number} comes after operator {before}"
            _fail(f"{cell}: OperatorID", what, "operators are in the order in which they ran: sort the rows")
        before = number

        def tensors(column: str, row: dict[str, str] = row, cell: str = cell) -> list[RawTensor]:
            numbers = _integers(row[column], ";", f"{cell}: {column}")
            for number in numbers:
                if number not in table:
                    _fail(f"{cell}: {column}", f"there is no tensor {number} in {FILES[1]}")
            return [raw for number in numbers if (raw := table[number].raw) is not None]

        name = short_name(row["OperatorName"].strip())
        stage = row["stage"].strip()
        if not name:
            _fail(f"{cell}: OperatorName", "is empty")
        phase = next((phase for phase in PHASES if phase == stage), None)
        if phase is None:
            _fail(f"{cell}: stage", f"'{stage}' is unknown", nearest(stage, PHASES))
        if phase == "forward" and operators and operators[-1].phase == "optimizer":
            _fail(f"{cell}: stage", "a forward pass comes after the optimizer", "keep the rows of one step")
        given, returned = tensors("Operator_input"), tensors("Operator_output")
        inputs = [identities.read(raw) for raw in given]
        outputs = [identities.write(raw, given) for raw in returned]
        for raw, tensor in zip(given, inputs, strict=True):
            _hint(table[raw.number].types, tensor.storage, phase, hints)
            if "grad_output" in table[raw.number].types:
                incoming.add(tensor.id)
        seconds = _time(row["Operator_cudatime"], f"{cell}: Operator_cudatime")
        busy = _time(row["Operator_cudatimenooverlap"], f"{cell}: Operator_cudatimenooverlap")
        if busy > seconds:
            _fail(f"{cell}: Operator_cudatimenooverlap", f"{busy:g} s is more than Operator_cudatime, {seconds:g} s")
        operators.append(UnclassifiedOperator(name, phase, "", inputs, outputs, seconds, busy, returned=list(outputs)))
    if not operators:
        raise TraceError("the trace has no operators", where=str(path), fix="capture at least one step")
    parameters = len(tensor_categories.parameters_of(operators, hints))
    for operator in operators:
        if operator.phase == "optimizer":
            operator.lists = _split(operator, parameters)
            if operator.name.endswith("_") and operator.lists:
                operator.outputs = [*operator.lists[0], *operator.outputs]
    return operators


def _hint(types: set[str], storage: int, phase: Phase, hints: CategoryHints) -> None:
    if phase == "forward":
        if types & {"weight", "bias", "bias=None"}:
            hints.parameters.add(storage)
        if types & {"running_mean", "running_var"}:
            hints.buffers.add(storage)
        if "target" in types:
            hints.inputs.add(storage)


def _split(operator: UnclassifiedOperator, parameters: int) -> list[list[UnclassifiedTensor]]:
    """Return the lists of tensors of an optimizer's for-each call, which its row has one after the other.

    Each has the same shapes in the same order: as many as there are parameters, or else the fewest that repeat.
    """
    shapes = [tensor.shape for tensor in operator.inputs]
    for period in (parameters, *range(1, len(shapes) + 1)):
        if period and len(shapes) % period == 0 and shapes == shapes[:period] * (len(shapes) // period):
            lists = [operator.inputs[start : start + period] for start in range(0, len(shapes), period)]
            return [*lists, operator.outputs] if len(operator.outputs) == period else lists
    return []


def _name_layers(operators: list[UnclassifiedOperator]) -> None:
    """Number the forward operators by kind, and give each backward operator the layer that it differentiates."""
    counts: dict[str, int] = {}
    by_kind: dict[str, list[UnclassifiedOperator]] = {}
    taken: set[tuple[str, UnclassifiedOperator]] = set()
    for position, operator in enumerate(operators):
        follows = operators[position + 1].phase if position + 1 < len(operators) else None
        if operator.name == "aten::ones_like" and follows == "backward":
            operator.phase = "backward"  # the gradient of the loss with respect to itself
        if operator.phase == "forward":
            kind = operator.name.rpartition("::")[2].rstrip("_")
            counts[kind] = counts.get(kind, 0) + 1
            operator.layer = f"{kind}_{counts[kind]}"
            by_kind.setdefault(kind, []).append(operator)
    last = next((operator for operator in reversed(operators) if operator.phase == "forward"), None)
    layer = last.layer if last is not None else ""
    for operator in operators:
        if operator.phase == "backward":
            candidates = [one for kind in forward_names(operator.name, by_kind) for one in by_kind[kind]]
            free = [one for one in candidates if (operator.name, one) not in taken]
            if free:
                operator.forward = max(free, key=lambda one: operators.index(one))
                taken.add((operator.name, operator.forward))
                layer = operator.forward.layer
            operator.layer = layer
        elif operator.phase == "optimizer":
            operator.layer = "optimizer"


def _add_dataflow(operators: list[UnclassifiedOperator], parameters: set[int], incoming: set[int]) -> None:
    """Add the dataflow of the backward pass that the table leaves out.

    A matrix product's row names only its transposed weight. It also reads the last operator's unused gradient and its forward
    operator's input, and makes the gradients of its parameters and the one that the next operator reads. ``incoming`` are the
    tensors that the table calls gradients of an operator's output.
    """
    backward = [operator for operator in operators if operator.phase == "backward"]
    forward_reads = {tensor.storage for one in operators if one.phase == "forward" for tensor in one.inputs}
    made = {tensor.storage for operator in operators for tensor in operator.outputs} | parameters | forward_reads
    gradients = _gradients(operators, parameters)
    for operator in backward:
        operator.outputs = [tensor for tensor in operator.outputs if tensor.storage not in parameters]
    before: UnclassifiedOperator | None = None
    for operator in backward:
        for tensor in operator.inputs:
            if tensor.storage not in made:
                made.add(tensor.storage)
                if before is not None and tensor.id in incoming:
                    before.outputs.append(tensor)
                elif operator.forward is not None:  # a mask, indices: the forward pass saved them
                    operator.forward.outputs.append(tensor)
        if before is not None and before.outputs:
            brought = {tensor.storage for tensor in before.outputs}
            if not any(tensor.storage in brought for tensor in operator.inputs):
                operator.inputs.insert(0, before.outputs[0])
        before = operator
    for operator in backward:
        forward = operator.forward
        if forward is None:
            continue
        for tensor in forward.inputs:
            gradient = gradients.get(tensor.storage)
            if gradient is not None and gradient.storage not in made:
                operator.outputs.append(gradient)
                made.add(gradient.storage)
                saved = forward.inputs[0]
                if saved.id not in {one.id for one in operator.inputs}:
                    operator.inputs.append(saved)


def _gradients(operators: list[UnclassifiedOperator], parameters: set[int]) -> dict[int, UnclassifiedTensor]:
    """Return each parameter's gradient: the tensor at its position in the optimizer's lists that does not change."""
    changed = {tensor.storage for operator in operators if operator.phase == "optimizer" for tensor in operator.outputs}
    found: dict[int, UnclassifiedTensor] = {}
    slots = tensor_categories.slots(operators, parameters)
    for operator in operators:
        if operator.phase == "optimizer":
            for tensor in operator.inputs:
                owner = slots.get(tensor.storage)
                if owner is not None and tensor.storage not in changed:
                    found.setdefault(owner, tensor)
    return found


def _model_and_gpu(name: str) -> tuple[str, str]:
    """Return the model and GPU in a directory's name: ``h100_vgg13_bs128``."""
    gpu = _GPU.search(name)
    rest = _BATCH.sub("", name)
    rest = _GPU.sub("", rest) if gpu else rest
    return rest.strip("_-. ") or "unknown", gpu.group(1).upper() if gpu else "unknown"


def _rows(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[int, dict[str, str]]]:
    """Yield each row with its line number, all of ``columns`` present."""
    if not path.is_file():
        raise TraceError("is missing", where=str(path), fix=f"the format needs {' and '.join(FILES)} in one directory")
    reader = csv.DictReader(read_text(path).splitlines())
    try:
        for column in columns:
            if column not in (reader.fieldnames or ()):
                _fail(f"{path}: line 1", f"there is no column {column}", f"its columns are {', '.join(columns)}")
        for row in reader:
            for column in columns:
                if row[column] is None:
                    _fail(f"{path}: line {reader.line_num}: {column}", "is absent", "the file seems to be truncated")
            yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(f"is not CSV: {error}", where=f"{path}: line {reader.line_num}") from None


def _integers(text: str, separator: str, cell: str) -> list[int]:
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        _fail(cell, f"'{text}' is not a list", f"write [1{separator} 2]")
    return [_integer(part, cell) for part in inner[1:-1].split(separator) if part.strip()]


def _integer(text: str, cell: str) -> int:
    try:
        value = int(text) if len(text) < 20 else -1
    except ValueError:
        _fail(cell, f"'{text}' is not an integer")
    if value < 0:
        _fail(cell, f"{text} is negative or too large")
    return value


def _time(text: str, cell: str) -> float:
    try:
        value = float(text)
    except ValueError:
        _fail(cell, f"'{text}' is not a time", "write microseconds")
    if not 0 <= value <= 1e15:
        _fail(cell, f"{text} is negative, infinite or no number", "write microseconds")
    return value / MICROSECONDS


def _fail(cell: str, what: str, fix: str | None = None) -> NoReturn:
    raise TraceError(what, where=cell, fix=fix)
