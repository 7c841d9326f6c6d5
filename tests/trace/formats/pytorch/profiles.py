"""Writes profiler files and execution traces as small as a test needs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profile_events import event

#: A tensor: id, storage, shape.
T = tuple[int, int, list[int]]


class Profile:
    """Calls and kernels of a made-up step; times in microseconds."""

    def __init__(self, *, function_ids: bool = True) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.function_ids = function_ids
        self._number = 2
        self._correlation = 0
        self._frame("process", 1, 1)
        self._frame("thread", 2, 1)

    def call(
        self,
        name: str,
        start: float,
        end: float,
        inputs: list[T] | None = None,
        outputs: list[T] | None = None,
        *,
        parent: int = 2,
        sequence: int = -1,
        schema: str = "",
        scope: int = 0,
    ) -> int:
        """Add a call of the host, and return its number."""
        self._number += 1
        number = self._number
        annotation = scope == 7
        arguments: dict[str, Any] = {"External id": number}
        if self.function_ids:
            arguments["Record function id"] = 1000 + number
        category = "user_annotation" if annotation else "cpu_op"
        self.events.append(event(category, name, start, end - start, 7, **arguments))
        if not name.startswith("ProfilerStep#") or parent != 2:
            self.nodes.append(self._node(name, number, parent, inputs or [], outputs or [], sequence, schema, scope))
        return number

    def kernel(
        self, name: str, launched: float, start: float, end: float, *, stream: int = 7, host: bool = True
    ) -> None:
        """Add a kernel and its launch."""
        self._correlation += 1
        arguments = {"correlation": self._correlation, "External id": 100_000 + self._correlation}
        if host:
            self.events.append(event("cuda_runtime", "cudaLaunchKernel", launched, 0, 7, **arguments))
        arguments = {**arguments, "device": 0, "stream": stream}
        self.events.append(event("kernel", name, start, end - start, stream, **arguments))

    def module(self, name: str, start: float, end: float) -> None:
        """Add a module's forward pass."""
        self.events.append(event("python_function", f"nn.Module: {name}", start, end - start, 7))

    def write(self, folder: Path) -> Path:
        """Write both files."""
        properties = [{"id": 0, "name": "NVIDIA TestGPU"}]
        profile = {"schemaVersion": 1, "deviceProperties": properties, "traceEvents": self.events, "cuda_version": 12}
        (folder / "profile.pt.trace.json").write_text(json.dumps(profile))
        (folder / "et.json").write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": self.nodes}))
        return folder

    def _frame(self, kind: str, number: int, parent: int) -> None:
        name = f"[pytorch|profiler|execution_trace|{kind}]"
        self.nodes.append(self._node(name, number, parent, [], [], -1, "", 7))

    def _node(
        self,
        name: str,
        number: int,
        parent: int,
        inputs: list[T],
        outputs: list[T],
        sequence: int,
        schema: str,
        scope: int,
    ) -> dict[str, Any]:
        def tensors(rows: list[T]) -> list[list[Any]]:
            counts = []
            for number, storage, shape in rows:
                count = 1
                for size in shape:
                    count *= size
                counts.append([number, storage, 0, count, 4, "cuda:0"])
            return counts

        return {
            "name": name,
            "id": number,
            "rf_id": 1000 + number if number > 2 else 0,
            "parent": parent,
            "seq_id": sequence,
            "scope": scope,
            "tid": 1,
            "op_schema": schema,
            "inputs": tensors(inputs),
            "input_shapes": [row[2] for row in inputs],
            "input_types": ["Tensor(float)"] * len(inputs),
            "outputs": tensors(outputs),
            "output_shapes": [row[2] for row in outputs],
            "output_types": ["Tensor(float)"] * len(outputs),
        }


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
