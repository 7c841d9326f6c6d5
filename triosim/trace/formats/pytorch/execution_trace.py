"""Reads PyTorch's execution trace (``torch.profiler.ExecutionTraceObserver``): every call with its input and output tensors.

Schema 1.0 has a node's properties at its top and its caller under ``parent``; 1.1 has them in ``attrs`` and the caller under
``ctrl_deps``, and knows strides. A tensor is ``[id, storage, offset, elements, bytes of one, device]``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triosim.errors import TraceError
from triosim.input_files.reading import head, read_object
from triosim.trace.formats.unclassified import RawTensor

USER_SCOPE = 7  # torch's RecordScope: an annotation, no call
BACKWARD_SCOPE = 1

#: dtypes by the names that PyTorch's files give them.
DTYPES = {
    "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32", "short int": "int16", "short": "int16",
    "signed char": "int8", "char": "int8", "unsigned char": "uint8", "unsigned short": "uint16",
    "unsigned int": "uint32", "unsigned long": "uint64", "bool": "bool",
}  # fmt: skip
_BY_SIZE = {1: "uint8", 2: "float16", 4: "float32", 8: "int64", 16: "complex128"}

#: The arguments that a trace keeps as an operator's attributes. Not those that are sizes or positions along the batch.
ATTRIBUTES = frozenset({
    "dim", "dims", "dim0", "dim1", "keepdim", "start_dim", "end_dim", "equation", "num_groups", "normalized_shape",
    "stride", "padding", "output_padding", "dilation", "groups", "transposed", "kernel_size", "ceil_mode",
    "is_causal", "enable_gqa", "dropout_p", "scale", "reduction", "exponent", "training",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class ExecutionTraceNode:
    """A call, or an annotation. Arguments that hold no tensor are empty lists; a list of tensors is one argument."""

    number: int
    name: str
    parent: int
    function: int = -1  # the "rf_id": Kineto's "Record function id"
    sequence: int = -1
    scope: int = 0
    thread: int = 0
    schema: str = ""
    arguments: list[list[RawTensor]] = field(default_factory=list)
    returned: list[list[RawTensor]] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)  # by argument: its value, None where it is tensors
    children: list[ExecutionTraceNode] = field(default_factory=list)

    @property
    def given(self) -> list[RawTensor]:
        """All tensors among the arguments."""
        return [tensor for argument in self.arguments for tensor in argument]

    @property
    def results(self) -> list[RawTensor]:
        """All tensors that the call returned."""
        return [tensor for result in self.returned for tensor in result]

    def walk(self) -> Iterator[ExecutionTraceNode]:
        """Yield this node and all below it, in the order in which they began."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def argument_names(self) -> list[str]:
        """The names of the arguments, as the operator's schema has them."""
        return [name for name, _ in _signature(self.schema)]

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments by name that are not tensors and do not depend on the batch."""
        named = zip(self.argument_names, self.scalars, strict=False)
        return {name: value for name, value in named if name in ATTRIBUTES and _plain(value)}

    @property
    def changed(self) -> list[RawTensor]:
        """The tensors that the call changes in place, which the schema marks by ``(a!)``."""
        marked = [mutable for _, mutable in _signature(self.schema)]
        return [tensor for mutable, row in zip(marked, self.arguments, strict=False) if mutable for tensor in row]


def _plain(value: object) -> bool:
    if isinstance(value, list):
        return all(type(one) in (int, float, bool) for one in value)
    return type(value) in (int, float, bool) or (type(value) is str and value != "<None>")


def recognises(path: Path) -> bool:
    """Whether a file is an execution trace."""
    return re.search(rb'"schema"\s*:\s*"\d+\.\d+\.\d+', head(path, 4096)) is not None


def read(path: Path, *, on_gpu: bool) -> list[ExecutionTraceNode]:
    """Return the nodes in the order in which they began, with their children; ``on_gpu`` leaves tensors on the host out."""
    data = read_object(path, unique_keys=False, finite=False)
    schema = str(data.get("schema"))
    if not re.match(r"1\.[01]\.", schema):
        raise TraceError(
            f"'{schema}' is not a version that this triosim reads", where=f"{path}: schema", fix="it reads 1.0 and 1.1"
        )
    rows = data.get("nodes")
    if not isinstance(rows, list):
        raise TraceError("has no list of nodes", where=f"{path}: nodes")
    nodes = sorted((_node(row, on_gpu) for row in rows), key=lambda node: node.number)
    by_number = {node.number: node for node in nodes}
    for node in nodes:
        caller = by_number.get(node.parent)
        if caller is not None and caller.number < node.number:
            caller.children.append(node)
    return nodes


def _node(row: dict[str, Any], on_gpu: bool) -> ExecutionTraceNode:
    if "attrs" in row:
        of, parent = {attribute["name"]: attribute["value"] for attribute in row["attrs"]}, row["ctrl_deps"]
        given, results = row["inputs"], row["outputs"]
    else:
        of, parent = row, row["parent"]
        given, results = (
            {"values": row[f"{side}s"], "shapes": row[f"{side}_shapes"], "types": row[f"{side}_types"]}
            for side in ("input", "output")
        )
    name = str(row["name"])
    if not name:
        raise ValueError(f"node {row['id']} has no name")
    function, sequence, scope, thread = (int(of[key]) for key in ("rf_id", "seq_id", "scope", "tid"))
    identity = int(row["id"]), name, int(parent), function, sequence, scope, thread
    tensors = _tensors(given, on_gpu), _tensors(results, on_gpu)
    return ExecutionTraceNode(*identity, str(of["op_schema"]), *tensors, given["values"])


def _tensors(side: dict[str, Any], on_gpu: bool) -> list[list[RawTensor]]:
    """Return the tensors in each value of a call's inputs or outputs: one, several of a list, or none."""
    found: list[list[RawTensor]] = []
    strides = side.get("strides")
    for index, (value, shape, kind) in enumerate(zip(side["values"], side["shapes"], side["types"], strict=False)):
        step = strides[index] if strides is not None and index < len(strides) else None
        rows: list[tuple[Any, Any, str, Any]] = []
        if kind.startswith("Tensor("):
            rows = [(value, shape, kind, step)]
        elif kind.startswith("GenericList[Tensor(") and isinstance(value, list):
            kinds = kind[len("GenericList[") : -1].split(",")
            rows = list(zip(value, shape, kinds, step or [None] * len(value), strict=False))
        # A tensor without elements is undefined, or not yet allocated.
        found.append([_tensor(*row) for row in rows if row[0][3] and not (on_gpu and row[0][5] == "cpu")])
    return found


def _tensor(value: list[Any], shape: list[int], kind: str, strides: list[int] | None) -> RawTensor:
    dtype = DTYPES.get(kind[len("Tensor(") : -1]) or _BY_SIZE.get(value[4], "float32")
    sizes, layout = tuple(int(size) for size in shape), (int(value[2]), *(int(step) for step in strides or ()))
    if min(sizes, default=0) < 0 or math.prod(sizes) > 2**59:
        raise ValueError(f"no tensor has the shape {list(sizes)}")
    return RawTensor(int(value[0]), int(value[1]), sizes, dtype, layout)


def _signature(schema: str) -> list[tuple[str, bool]]:
    """Return name and mutability of each argument of ``aten::add_.Tensor(Tensor(a!) self, Tensor other, *, ...) -> ...``."""
    return list(_arguments(schema.partition("(")[2].rpartition(") ->")[0]))


def _arguments(text: str) -> Iterator[tuple[str, bool]]:
    for part in re.split(r",\s*(?![^\[\(]*[\]\)])", text):
        declared = part.partition("=")[0].split()
        if declared and declared != ["*"]:
            yield declared[-1], "!" in part
