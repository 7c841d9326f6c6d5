"""Operators of a rank's experts for any number of rows that these receive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """A call of tensors with a number of rows; ``operator`` is the same call in other shapes.

    ``added`` by the parallelism: the operator has no time.
    """

    operator: Operator
    inputs: tuple[LocalTensor, ...]
    outputs: tuple[LocalTensor, ...]
    added: bool = False

    def of(self, rows: int, number: int, forward: int | None) -> Operator:
        """Return the operator for a number of rows, with an id and the id of its forward operator, in the times that it has."""
        one = self.operator
        inputs, outputs = (tuple([tensor.of(rows) for tensor in some]) for some in (self.inputs, self.outputs))
        return Operator(
            *(number, one.name, one.phase, one.layer, inputs, outputs, one.seconds, one.busy_seconds),
            forward=forward,
            flops=one.flops,
            attributes=one.attributes,
        )


class LocalOperators:
    """The calls of a layer's experts. Those of one number of rows share their tensors."""

    def __init__(self, calls: Sequence[LocalCall]) -> None:
        numbers: dict[LocalTensor, int] = {}

        def numbered(tensors: tuple[LocalTensor, ...]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(one, len(numbers)) for one in tensors)

        self._calls = [(one.operator, numbered(one.inputs), numbered(one.outputs)) for one in calls]
        self._tensors = tuple(numbers)

    def of(self, rows: int, timed: Iterable[Operator]) -> list[Operator]:
        """Return the operators for a number of rows, in order, with the times of other operators."""
        made = [one.of(rows) for one in self._tensors]
        return [
            operator.with_tensors(tuple([made[n] for n in inputs]), tuple([made[n] for n in outputs]), time)
            for (operator, inputs, outputs), time in zip(self._calls, timed, strict=True)
        ]
