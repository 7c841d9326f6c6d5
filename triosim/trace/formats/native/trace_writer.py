"""Writes a trace in triosim's own format: one tensor, operator, mark or storage a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from triosim.errors import TraceError
from triosim.trace.formats.native.records import to_row
from triosim.trace.trace import Operator, Tensor, Trace

SCHEMA = "triosim-trace/1"


def lines(trace: Trace) -> Iterator[str]:
    """Yield the text of a trace in pieces. Raises ``TraceError`` where one id is two tensors."""
    tensors: dict[int, Tensor] = {}
    for operator in trace.operators:
        for tensor in (*operator.inputs, *operator.outputs):
            if tensors.setdefault(tensor.id, tensor) != tensor:
                raise TraceError(f"two different tensors have the id {tensor.id}", where=f"operator {operator.id}")
    head = {
        "schema": SCHEMA,
        "model": trace.model,
        "gpu": trace.gpu,
        "batch_size": trace.batch_size,
        "times": trace.times,
        "step_seconds": trace.step_seconds,
        "software": dict(trace.software),
    }
    yield "{\n"
    for key, value in head.items():
        if value is not None:
            yield f"{json.dumps(key)}: {json.dumps(value)},\n"
    yield '"tensors": [\n'
    yield ",\n".join(_json(_tensor(tensor, tensors)) for tensor in tensors.values())
    yield '\n],\n"operators": [\n'
    yield ",\n".join(_json(_operator(operator)) for operator in trace.operators)
    for name, records in (("marks", trace.marks), ("storages", trace.storages)):
        if records:
            yield f'\n],\n"{name}": [\n'
            yield ",\n".join(_json(to_row(record)) for record in records)
    yield "\n]\n}\n"


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def _tensor(tensor: Tensor, known: dict[int, Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": tensor.id,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "category": tensor.category,
    }
    if tensor.storage >= 0:
        row["storage"] = tensor.storage
    if tensor.parameter in known:
        row["parameter"] = tensor.parameter
    return row


def _operator(operator: Operator) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": operator.id,
        "name": operator.name,
        "phase": operator.phase,
        "layer": operator.layer,
        "inputs": [tensor.id for tensor in operator.inputs],
        "outputs": [tensor.id for tensor in operator.outputs],
        "seconds": operator.seconds,
    }
    for key in ("busy_seconds", "host_seconds", "forward", "flops", "predicted_by", "relative_error"):
        value = getattr(operator, key)
        if value is not None:
            row[key] = value
    if operator.kernels:
        row["kernels"] = list(operator.kernels)
    if operator.attributes:
        row["attributes"] = dict(operator.attributes)
    if operator.stream != "compute":
        row["stream"] = operator.stream
    if operator.communication is not None:
        row["communication"] = to_row(operator.communication)
    return row
