"""A sequence of operators that computes their features (FLOPs, bytes, sizes) once for equal operators, and caches them.

A network repeats its layers: most operators of a step have the name, shapes and attributes of an earlier one, and thus its
FLOPs, bytes and predicted time. Several models read the features of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from typing import TypeVar, overload

import numpy as np

from triosim.compute import families
from triosim.compute.compute_model import Array, ComputeModel, Estimates, Rows
from triosim.operators import features
from triosim.trace import Operator

Model = TypeVar("Model", bound=ComputeModel)


class OperatorSequence(Sequence[Operator]):
    """Operators with cached features; without ``deduplicate``, equal operators count as distinct."""

    def __init__(self, operators: Iterable[Operator], *, deduplicate: bool = True) -> None:
        self._all = tuple(operators)
        self.deduplicate = deduplicate

    @classmethod
    def repeating(cls, distinct: OperatorSequence, rows: Sequence[int]) -> OperatorSequence:
        """Return the operators of some rows of a sequence of distinct ones, any of them several times."""
        found = cls(map(distinct.__getitem__, rows))
        found.distinct = distinct, np.array(rows, dtype=np.int64)
        return found

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> OperatorSequence:
        """Return the operators as an ``OperatorSequence``, unchanged if they are one."""
        return operators if isinstance(operators, OperatorSequence) else cls(operators)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._all)

    @overload
    def __getitem__(self, row: int) -> Operator: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Operator, ...]: ...
    def __getitem__(self, row: int | slice) -> Operator | tuple[Operator, ...]:
        return self._all[row]

    @cached_property
    def forwards(self) -> list[Operator | None]:
        """For each operator the forward operator that it differentiates; None where that is not in the sequence."""
        return [None if row is None else self._all[row] for row in self.forward_rows]

    @cached_property
    def forward_rows(self) -> list[int | None]:
        """The index of each one of ``forwards``."""
        rows = {operator.id: row for row, operator in enumerate(self._all) if operator.phase == "forward"}
        return [None if operator.forward is None else rows.get(operator.forward) for operator in self._all]

    @cached_property
    def drivers(self) -> Array:
        """FLOPs, bytes read and bytes written (``triosim.operators.features``): a row for each operator."""
        distinct, rows = self.distinct
        if distinct is not self:
            return distinct.drivers[rows]
        found = [
            (features.flops(one, forward), features.input_bytes(one, forward), features.output_bytes(one, forward))
            for one, forward in zip(self._all, self.forwards, strict=True)
        ]
        return np.array(found, dtype=np.float64).reshape(len(found), 3)

    @cached_property
    def calls(self) -> list[tuple[Rows, families.FamilyCalls]]:
        """The calls by family and dtype, each with the indices of its operators (``triosim.compute.families``)."""
        return families.calls_of(self._all)

    @cached_property
    def gradients(self) -> list[tuple[Rows, families.FamilyCalls]]:
        """The products that compute the gradients of products, two for most, each with the index of its operator."""
        return families.gradient_calls_of(self._all, self.forwards)

    @cached_property
    def distinct(self) -> tuple[OperatorSequence, Rows]:
        """The distinct operators, and for each operator of the sequence the index of the distinct one that equals it."""
        if not self.deduplicate:
            return self, np.arange(len(self._all), dtype=np.int64)
        numbers = OperatorNumbers().of(self)
        first: dict[int, int] = {}  # row by number
        for row, number in enumerate(numbers):
            first.setdefault(number, row)
        if len(first) == len(self._all):
            return self, np.arange(len(self._all), dtype=np.int64)
        ones = []
        for number in range(len(first)):
            operator, forward = self._all[first[number]], self.forward_rows[first[number]]
            of = None if forward is None else self._all[first[numbers[forward]]].id
            ones.append(operator if of is None else replace(operator, forward=of))
        return OperatorSequence(ones, deduplicate=False), np.array(numbers, dtype=np.int64)


class OperatorNumbers:
    """Numbers for operators, from 0 in the order in which they are seen: equal for equal operators."""

    def __init__(self) -> None:
        self._found: dict[Hashable, int] = {}
        self._sizes: dict[Hashable, int] = {}  # a number for each size of a tensor: numbers compare faster than shapes

    def __copy__(self) -> OperatorNumbers:
        """Return numbers that go on from these, apart from them."""
        other = OperatorNumbers()
        other._found, other._sizes = dict(self._found), dict(self._sizes)
        return other

    def of(self, operators: OperatorSequence) -> list[int]:
        """Return the number of each operator. Backward operators differ where those that they differentiate do."""
        forwards = operators.forward_rows
        numbers = [-1] * len(operators)

        def number(row: int) -> int:
            if numbers[row] < 0:
                forward = forwards[row]
                of = -1 if forward is None else number(forward)
                key = (*_identity(operators[row], self._sizes), of)
                numbers[row] = self._found.setdefault(key, len(self._found))
            return numbers[row]

        return [number(row) for row in range(len(operators))]


def deduplicated(
    estimate: Callable[[Model, Sequence[Operator], str], Estimates],
) -> Callable[[Model, Sequence[Operator], str], Estimates]:
    """Decorate a model's ``estimate`` so that it computes equal operators once."""

    @wraps(estimate)
    def asked(self: Model, operators: Sequence[Operator], gpu: str = "") -> Estimates:
        operators = OperatorSequence.of(operators)
        distinct, rows = operators.distinct
        found = estimate(self, distinct, gpu)
        if distinct is operators:
            return found
        return found.select(rows)

    return asked


def _identity(operator: Operator, sizes: dict[Hashable, int]) -> tuple[Hashable, ...]:
    """Return all that an operator's features depend on, except the operator that it differentiates."""
    given = {tensor.storage for tensor in operator.inputs}
    in_place = given.issuperset([tensor.storage for tensor in operator.outputs])
    attributes = repr(operator.attributes) if operator.attributes else ""
    tensors = (*operator.inputs, *operator.outputs)
    numbers = [sizes.setdefault((tensor.shape, tensor.dtype, tensor.category), len(sizes)) for tensor in tensors]
    return operator.name, operator.phase, attributes, len(operator.inputs), tuple(numbers), in_place
