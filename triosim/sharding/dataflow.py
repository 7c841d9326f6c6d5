"""The dataflow of a step: which operator produces each value, which operators read it, and which differentiate it.

Values are followed by storage: an operator that returns a view of its input produces nothing, one that writes in place
produces a new value in the same storage, and what an operator reads is what was written there last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.trace import Operator, Tensor

_LOSSES = ("loss", "log_softmax", "nll", "cross_entropy")


def is_view(operator: Operator) -> bool:
    """Whether an operator returns its input in another shape, and writes nothing.

    One that reads other tensors too has written into what it returns (``where(..., out=)``), unless it only took their shape.
    """
    read = {tensor.storage for tensor in operator.inputs}
    returned = {tensor.storage for tensor in operator.outputs}
    if not returned or not returned <= read or operator.name.endswith("_"):
        return False
    alone = all(tensor.storage in returned or not tensor.shape for tensor in operator.inputs)
    return alone or kind_of(base_name(operator.name)) in ("view", "copy")


def is_loss(operator: Operator) -> bool:
    """Whether an operator belongs to the loss rather than to the network."""
    return any(word in base_name(operator.name) for word in _LOSSES)


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value: what one operator, the ``producer``, wrote into one storage."""

    producer: int
    storage: int


class Dataflow:
    """The values of the forward operators, or of those ``followed``, and the backward operators of each.

    ``reads`` and ``writes`` are, by operator id, the values that it reads and produces, each with the tensor that shows it;
    what was there before the step is no value. ``readers`` are the operators that use a value: views are none, who uses the
    view uses the value. ``differentiable`` are the values that depend on a parameter, and so have a gradient; ``constants``
    those that depend on no input and no parameter: angles of positions, masks. ``backward`` are, by forward operator id, the
    operators of its backward pass, in order.
    """

    def __init__(self, operators: Iterable[Operator], followed: Sequence[Operator] | None = None) -> None:
        everything = list(operators)
        self.forward = [op for op in everything if op.phase == "forward"] if followed is None else followed
        self.by_id = {operator.id: operator for operator in everything}
        self.reads: dict[int, list[tuple[StoredValue, Tensor]]] = {}
        self.writes: dict[int, list[tuple[StoredValue, Tensor]]] = {}
        self.readers: dict[StoredValue, list[Operator]] = {}
        self.differentiable: set[StoredValue] = set()
        self.constants: set[StoredValue] = set()
        self.backward: dict[int, list[Operator]] = {}
        last: dict[int, StoredValue] = {}  # by storage
        for operator in self.forward:
            self._add(operator, last)
        for operator in everything:
            if operator.phase == "backward" and operator.forward is not None:
                self.backward.setdefault(operator.forward, []).append(operator)

    def _add(self, operator: Operator, last: dict[int, StoredValue]) -> None:
        """Add an operator. ``last`` are the values that were written last, which it updates."""
        reads = [(last[tensor.storage], tensor) for tensor in operator.inputs if tensor.storage in last]
        self.reads[operator.id], self.writes[operator.id] = reads, []
        if is_view(operator):
            return
        values = dict.fromkeys(value for value, _ in reads)
        for value in values:
            self.readers[value].append(operator)
        differentiable = not self.differentiable.isdisjoint(values) or any(
            tensor.category == "parameter" for tensor in operator.inputs
        )
        is_constant = (
            self.constants.issuperset(values)
            and all(tensor.storage in last or tensor.category == "buffer" for tensor in operator.inputs)
            and not any(tensor.category == "input" for tensor in operator.outputs)
        )
        for tensor in operator.outputs:
            value = last[tensor.storage] = StoredValue(operator.id, tensor.storage)
            self.readers.setdefault(value, [])
            self.writes[operator.id].append((value, tensor))
            if is_constant:
                self.constants.add(value)
            if differentiable and tensor.dtype.startswith(("float", "bfloat", "complex")):
                self.differentiable.add(value)

    def read_by(self, operator: Operator, tensor: Tensor) -> StoredValue | None:
        """Return the value that an operator reads in one of its inputs; None for what was there before the step."""
        return next((value for value, read in self.reads[operator.id] if read.storage == tensor.storage), None)

    def producers(self, value: StoredValue | None, goes_on: Callable[[int], bool] = lambda _: True) -> list[Operator]:
        """Return the operators that a value depends on, its own producer first.

        Paths back end at operators for which ``goes_on`` of their id is false; these are still listed.
        """
        found: list[Operator] = []
        todo = [value] if value is not None else []
        seen = set(todo)
        while todo:
            producer = todo.pop().producer
            found.append(self.by_id[producer])
            if goes_on(producer):
                more = {read for read, _ in self.reads[producer]} - seen
                seen |= more
                todo += more
        return found


def output_bytes(operators: Sequence[Operator]) -> float:
    """Return the bytes of the network's output: what the loss reads, or, without a loss, what the last operator writes.

    ``operators`` are those of the forward pass.
    """
    for operator in operators:
        if is_loss(operator):
            return float(
                max((t.nbytes for t in operator.inputs if t.category not in ("input", "parameter")), default=0)
            )
    return float(sum(tensor.nbytes for tensor in operators[-1].outputs)) if operators else 0.0
