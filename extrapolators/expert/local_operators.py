"""Operators of a rank's experts for any number of rows that these receive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """A tensor with ``per_row`` entries in dimension ``dim`` for each row that a rank's experts receive, if any has them."""

    tensor: Tensor
    dim: int | None = None
    per_row: int = 1

    def of(self, rows: int) -> Tensor:
        """Return the tensor for a number of rows."""
        if self.dim is None:
            return self.tensor
        one, shape = self.tensor, list(self.tensor.shape)
        shape[self.dim] = self.per_row * rows
        return Tensor(one.id, tuple(shape), one.dtype, one.category, one.storage, one.parameter)


class LocalCall(NamedTuple):
    """A call of tensors with a number of rows; ``operator`` is the same call in other shapes."""

    operator: Operator
    inputs: tuple[LocalTensor, ...]
    outputs: tuple[LocalTensor, ...]


class LocalOperators:
    """The calls of a layer's experts. Those of one number of rows share their tensors."""

    def __init__(self, calls: Iterable[LocalCall]) -> None:
        numbers: dict[LocalTensor, int] = {}

        def numbered(tensors: tuple[LocalTensor, ...]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(one, len(numbers)) for one in tensors)

        self._calls = [(one.operator, numbered(one.inputs), numbered(one.outputs)) for one in calls]
        self._tensors = tuple(numbers)

    def of(self, rows: int) -> list[Operator]:
        """Return the operators for a number of rows, in order."""
        made = [one.of(rows) for one in self._tensors]
        return [
            operator.with_tensors(tuple([made[n] for n in inputs]), tuple([made[n] for n in outputs]))
            for operator, inputs, outputs in self._calls
        ]
