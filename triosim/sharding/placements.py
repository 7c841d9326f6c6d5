"""Marks of what is divided, carried from the operators that make data to those that read them, through views too."""

from __future__ import annotations

from triosim.sharding.axes import Axes, Mark, Spread
from triosim.sharding.dataflow import Dataflow, Datum
from triosim.trace import Operator, Tensor


class Carried:
    """The marks of data on their way through the forward pass, by tensor; what was shown last of each storage."""

    def __init__(self, flow: Dataflow, axes: Axes) -> None:
        self._flow = flow
        self._axes = axes
        self._data: set[Datum] = set()
        self._marks: dict[int, Mark] = {}
        self._shown: dict[int, Tensor] = {}

    def read(self, operator: Operator, *, by_heads: bool = False) -> dict[int, Mark]:
        """Return the marks of what an operator reads."""
        found: dict[int, Mark] = {}
        for datum, tensor in self._flow.reads[operator.id]:
            if datum not in self._data:
                continue
            mark = self._marks.get(tensor.id)
            if mark is None:  # a view that no operator made
                shown = self._shown[tensor.storage]
                mark = self._axes.seen_as(shown, self._marks[shown.id], tensor, by_heads=by_heads)
            if mark is not None:
                found[tensor.id] = mark
        return found

    def write(self, operator: Operator, spread: Spread) -> None:
        """Keep the marks of what an operator has made."""
        self._data.update(datum for datum, tensor in self._flow.writes[operator.id] if tensor.id in spread.marks)
        for tensor in operator.outputs:
            if tensor.id in spread.marks:
                self._marks[tensor.id] = spread.marks[tensor.id]
                self._shown[tensor.storage] = tensor
