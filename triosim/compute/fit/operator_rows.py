"""Measured operators of one GPU, wherever they come from: traces, tables of any operators, tables of one family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triosim import gpus
from triosim.compute.compute_model import Array, Rows
from triosim.compute.fit import convolution_tables, family_tables
from triosim.compute.fit.family_tables import FamilyTable
from triosim.errors import TraceError
from triosim.gpus import Gpu
from triosim.trace import Operator, Trace


@dataclass(frozen=True)
class OperatorRows:
    """Measured operators of one GPU.

    ``operators`` also holds the forward operators that backward ones refer to by id; ``measured`` are the indices of those that
    were timed, ``source`` names the files that they come from, and ``software`` the versions that they were measured with.
    """

    gpu: Gpu
    operators: tuple[Operator, ...]
    measured: Rows
    source: str
    calls: Mapping[int, str] = field(default_factory=dict)
    software: str = ""

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def seconds(self) -> Array:
        """The measured times, one a row."""
        return np.array([self.operators[row].seconds for row in self.measured])

    def rows(self) -> list[Operator]:
        """Return the measured operators."""
        return [self.operators[row] for row in self.measured]


def of_trace(trace: Trace, gpu: Gpu | None = None) -> OperatorRows:
    """Return the measured operators of a trace, on ``gpu`` or on the one that the trace names; predicted ones are left out.

    Raises ``TraceError`` where nothing was measured, or the GPU is not known.
    """
    found = gpu or gpus.get(trace.gpu)
    where = trace.source or None
    if found is None:
        raise TraceError(f"its GPU '{trace.gpu}' is not in the catalogue", where=where, fix="add --gpu NAME")
    measured = [
        row for row, operator in enumerate(trace.operators) if operator.predicted_by is None and operator.seconds > 0.0
    ]
    if not measured or not trace.times.startswith("measured"):
        raise TraceError(
            f"holds no measured operator; its times are '{trace.times}'",
            where=where,
            fix="give a trace that was captured on the GPU",
        )
    return OperatorRows(found, trace.operators, np.array(measured), trace.source)


def of_table(table: FamilyTable, gpu: Gpu) -> OperatorRows:
    """Return the rows of a table of one operator as operators."""
    of = convolution_tables if table.shapes.family == "convolution" else family_tables
    made = tuple(of.operators(table))
    return OperatorRows(gpu, made, np.arange(len(made)), table.source)


def _joined(parts: Sequence[OperatorRows]) -> OperatorRows:
    """Return the rows of one GPU from several sources together, with ids of their own."""
    operators: list[Operator] = []
    measured = []
    calls: dict[int, str] = {}
    for part in parts:
        first, largest = len(operators), 1 + max((operator.id for operator in operators), default=0)
        measured.append(part.measured + first)
        calls |= {first + row: call for row, call in part.calls.items()}
        for operator in part.operators:
            forward = None if operator.forward is None else operator.forward + largest
            operators.append(replace(operator, id=operator.id + largest, forward=forward))
    sources = dict.fromkeys(part.source for part in parts)
    software = "; ".join(dict.fromkeys(part.software for part in parts if part.software))
    return OperatorRows(parts[0].gpu, tuple(operators), np.concatenate(measured), ", ".join(sources), calls, software)


def by_gpu(parts: Sequence[OperatorRows]) -> list[OperatorRows]:
    """Return rows joined by GPU, in order of first appearance."""
    found: dict[str, list[OperatorRows]] = {}
    for part in parts:
        found.setdefault(part.gpu.name, []).append(part)
    return [_joined(several) for several in found.values()]
