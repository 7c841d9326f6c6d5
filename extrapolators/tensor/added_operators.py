"""Operators that a parallelism adds to those of the trace: with new ids, and times from the compute model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from triosim.compute.pricing.repricing import estimated, reprice
from triosim.extrapolators.core.program import Program
from triosim.trace import Operator, Tensor


class AddedOperators:
    """Makes operators and tensors with ids that a program does not have."""

    def __init__(self, program: Program) -> None:
        self._program = program
        tensors = {t.id: t for operator in program.operators for t in (*operator.inputs, *operator.outputs)}
        self._operator_ids = count(max(operator.id for operator in program.operators) + 1)
        self._tensor_ids = count(max(max(tensors), *(tensor.storage for tensor in tensors.values())) + 1)

    def operator_id(self) -> int:
        """Return a new operator id."""
        return next(self._operator_ids)

    def tensor_id(self) -> int:
        """Return a new tensor id, which no storage has either."""
        return next(self._tensor_ids)

    def operator(self, name: str, like: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Operator:
        """Return a new ATen operator in the phase and layer of another, without a time."""
        return Operator(
            *(self.operator_id(), f"aten::{name}", like.phase, like.layer, tuple(inputs), tuple(outputs), 0.0)
        )

    def copy(self, operator: Operator, forward: int | None = None) -> Operator:
        """Return a copy of an operator with outputs of its own; ``forward`` is the id of its forward operator."""
        numbers = [self.tensor_id() for _ in operator.outputs]
        outputs = tuple(replace(t, id=n, storage=n) for t, n in zip(operator.outputs, numbers, strict=True))
        return replace(operator, id=self.operator_id(), outputs=outputs, forward=forward)

    def priced(self, operators: Sequence[Operator]) -> list[Operator]:
        """Return operators with the times that the program's compute model estimates."""
        return estimated(operators, self._program.model, self._program.gpu) if operators else []

    def repriced(self, before: Sequence[Operator], after: Sequence[Operator]) -> list[Operator]:
        """Return operators in other shapes than ``before``, with the times of these shapes."""
        return reprice(before, after, self._program.model, self._program.gpu)
