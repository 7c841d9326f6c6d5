"""Rows of measured operators, wherever they come from: traces, tables of micro-benchmarks, tables of one operator.

A row is an operator with its time on a GPU. Rows are told apart by what laws may be fitted to (``Key``): by the operator's
name, and more widely by its class, each by phase and, for what computes, by the dtype that it computes in. Forward and
backward names are brought together: ``ConvolutionBackward0`` and ``aten::convolution_backward`` are ``convolution``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute.distinct_operators import Operators
from triosim.compute.fit import tables
from triosim.compute.fit.tables import Table
from triosim.compute.models.roofline import FLOOR_SECONDS, arithmetic_dtype, class_of, default
from triosim.errors import TraceError
from triosim.gpus import Gpu
from triosim.operators import features
from triosim.trace import Operator, Tensor, Trace

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

#: Classes of operators that compute: they are told apart by dtype, the others move bytes of whatever dtype.
ARITHMETIC = ("product", "convolution", "attention")
_BACKWARD = re.compile(r"_?backward\w*$", re.IGNORECASE)
_LIBRARIES = ("native", "cudnn", "miopen", "mkldnn", "thnn")
_DIMENSIONS = 4


class Key(NamedTuple):
    """What a law is fitted to. ``name`` is a bare name, or ``any CLASS``; ``dtype`` is empty for what only moves bytes."""

    name: str
    phase: str
    dtype: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.phase if self.phase != "forward" else "", self.dtype) if part)


@dataclass(frozen=True)
class OperatorRows:
    """Measured operators of one GPU. ``operators`` also holds the forward operators that backward ones refer to by id;
    ``measured`` are the places of those that were timed.
    """

    gpu: Gpu
    operators: tuple[Operator, ...]
    measured: Places
    source: str

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def seconds(self) -> Array:
        """The measured times, one a row."""
        return np.array([self.operators[place].seconds for place in self.measured])

    def rows(self) -> list[Operator]:
        """Return the measured operators."""
        return [self.operators[place] for place in self.measured]


@dataclass(frozen=True)
class Described:
    """What laws see of operators, one entry each: ``drivers`` (1, FLOPs, bytes read, bytes written), the seconds of the
    ``roofline`` at the GPU's peaks and of the models that are ``shipped`` (NaN where there is none), ``features`` for trees,
    and its two keys, by name and by class.
    """

    drivers: Array
    roofline: Array
    shipped: Array
    features: Array
    keys: list[tuple[Key, Key]]

    def select(self, places: Places) -> Described:
        """Return some of the operators."""
        parts = (self.drivers[places], self.roofline[places], self.shipped[places], self.features[places])
        return Described(*parts, [self.keys[place] for place in places])


def of_trace(trace: Trace, gpu: Gpu | None = None) -> OperatorRows:
    """Return the measured operators of a trace, on ``gpu`` or on the one that the trace names; predicted ones are left out.

    Raises ``TraceError`` where nothing was measured, or the GPU is not known.
    """
    found = gpu or gpus.get(trace.gpu)
    where = trace.source or None
    if found is None:
        raise TraceError(f"its GPU '{trace.gpu}' is not in the catalogue", where=where, fix="add --gpu NAME")
    places = [
        place
        for place, operator in enumerate(trace.operators)
        if operator.predicted_by is None and operator.seconds > 0.0
    ]
    if not places or not trace.times.startswith("measured"):
        raise TraceError(
            f"holds no measured operator; its times are '{trace.times}'",
            where=where,
            fix="give a trace that was captured on the GPU",
        )
    return OperatorRows(found, trace.operators, np.array(places), trace.source)


def of_table(table: Table, gpu: Gpu) -> OperatorRows:
    """Return the rows of a table of one operator as operators."""
    made = tuple(tables.operators(table))
    return OperatorRows(gpu, made, np.arange(len(made)), table.source)


def joined(parts: Sequence[OperatorRows]) -> OperatorRows:
    """Return the rows of one GPU from several sources together, with ids of their own."""
    operators: list[Operator] = []
    measured = []
    for part in parts:
        first, largest = len(operators), 1 + max((operator.id for operator in operators), default=0)
        measured.append(part.measured + first)
        for operator in part.operators:
            forward = None if operator.forward is None else operator.forward + largest
            operators.append(replace(operator, id=operator.id + largest, forward=forward))
    sources = dict.fromkeys(part.source for part in parts)
    return OperatorRows(parts[0].gpu, tuple(operators), np.concatenate(measured), ", ".join(sources))


def by_gpu(parts: Sequence[OperatorRows]) -> list[OperatorRows]:
    """Return rows joined by GPU, in order of first appearance."""
    found: dict[str, list[OperatorRows]] = {}
    for part in parts:
        found.setdefault(part.gpu.name, []).append(part)
    return [joined(several) for several in found.values()]


def describe(operators: Sequence[Operator], gpu: Gpu) -> Described:
    """Return what laws see of operators on a GPU, but nothing shipped; forward operators are looked up among them by id."""
    seen = Operators.of(operators)
    drivers = np.column_stack([np.ones(len(seen)), seen.drivers])
    arithmetic = np.zeros(len(seen))
    sizes, keys = [], []
    for row, (operator, forward) in enumerate(zip(seen, seen.forwards, strict=True)):
        of = class_of(operator, forward)
        dtype = arithmetic_dtype(operator, gpu, of) if of in ARITHMETIC else ""
        keys.append(_keys(operator.name, of, operator.phase, dtype))
        arithmetic[row] = drivers[row, 1] / gpu.rate(dtype) if dtype else 0.0
        sizes.append(_sizes(forward or operator))
    traffic = drivers[:, 2:].sum(axis=1) / gpu.bandwidth
    least = FLOOR_SECONDS * 1e-3
    both = np.log(np.maximum(arithmetic, least)), np.log(np.maximum(traffic, least))
    lengths = np.array(sizes, dtype=float).reshape(len(sizes), 3 * _DIMENSIONS)
    columns = np.column_stack(
        [*both, both[0] - both[1], np.log2(np.maximum(np.hstack([drivers[:, 2:], lengths]), 1.0))]
    )
    unknown = np.full(len(operators), np.nan)
    return Described(drivers, np.maximum(arithmetic, traffic) + FLOOR_SECONDS, unknown, columns, keys)


def stated_error(key: Key) -> float:
    """Return the error that the roofline states for operators of a class (a key ``any CLASS``), where nothing is measured."""
    return default((key.name.removeprefix("any "), key.phase, key.dtype)).error


@lru_cache(maxsize=4096)
def word(name: str) -> str:
    """Return an operator's name without what differs between versions, libraries and the two passes."""
    bare = features.base_name(name)
    found = (_BACKWARD.sub("", bare) or bare).replace("_", "").lower()
    for library in _LIBRARIES:
        found = found.removeprefix(library)
    return found or bare


@lru_cache(maxsize=4096)
def _keys(name: str, of: str, phase: str, dtype: str) -> tuple[Key, Key]:
    return Key(word(name), phase, dtype), Key(f"any {of}", phase, dtype)


def _sizes(operator: Operator) -> list[int]:
    """Return the last dimensions of the first two tensors read and of the first one written."""
    tensors: list[Tensor | None] = [*operator.inputs[:2], None, None][:2] + [*operator.outputs[:1], None][:1]
    found: list[int] = []
    for tensor in tensors:
        shape = () if tensor is None else tensor.shape[-_DIMENSIONS:]
        found += (1,) * (_DIMENSIONS - len(shape)) + shape
    return found
