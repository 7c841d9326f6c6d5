"""Who makes what each operator reads: the dataflow of the forward pass, and what the backward pass has to do with it.

Data are followed by storage: an operator that returns a view of what it was given makes nothing, one that writes in place
makes new data in the same storage, and what was read is what was written there last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triosim.extrapolators.core.program import Stage
from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.trace import Operator, Tensor

_LOSSES = ("loss", "log_softmax", "nll", "cross_entropy")


def is_view(operator: Operator) -> bool:
    """Whether an operator returns what it was given, in another shape, and writes nothing.

    One that reads other tensors too has written into what it returns (``where(..., out=)``), unless it only took their shape.
    """
    given = {tensor.storage for tensor in operator.inputs}
    shown = {tensor.storage for tensor in operator.outputs}
    if not shown or not shown <= given or operator.name.endswith("_"):
        return False
    alone = all(tensor.storage in shown or not tensor.shape for tensor in operator.inputs)
    return alone or kind_of(base_name(operator.name)) in ("view", "copy")


def is_loss(operator: Operator) -> bool:
    """Whether an operator belongs to the loss rather than to the network."""
    return any(word in base_name(operator.name) for word in _LOSSES)


@dataclass(frozen=True, slots=True)
class Datum:
    """What one operator wrote into one storage."""

    maker: int
    storage: int


class Dataflow:
    """The forward operators' data, and the backward operators that differentiate each of them."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        everything = list(operators)
        self.forward = [operator for operator in everything if operator.phase == "forward"]
        self.by_id = {operator.id: operator for operator in everything}
        self.reads: dict[int, list[tuple[Datum, Tensor]]] = {}  # by operator: what it reads that another made
        self.writes: dict[int, list[tuple[Datum, Tensor]]] = {}
        self.readers: dict[Datum, list[Operator]] = {}  # views are no readers: who uses the view reads the datum
        self.trained: set[Datum] = set()  # what depends on a parameter, and so has a gradient
        self.tables: set[Datum] = set()  # what depends on no input and no parameter: angles of positions, masks
        self.backward: dict[int, list[Operator]] = {}  # by forward operator, in order
        last: dict[int, Datum] = {}
        for operator in self.forward:
            view = is_view(operator)
            reads = [(last[tensor.storage], tensor) for tensor in operator.inputs if tensor.storage in last]
            self.reads[operator.id] = reads
            for datum in dict.fromkeys(datum for datum, _ in reads):
                if not view:
                    self.readers[datum].append(operator)
            self.writes[operator.id] = []
            trained = any(d in self.trained for d, _ in reads) or any(
                t.category == "parameter" for t in operator.inputs
            )
            is_table = all(datum in self.tables for datum, _ in reads) and all(
                tensor.storage in last or tensor.category == "buffer" for tensor in operator.inputs
            )
            is_table = is_table and not any(tensor.category == "input" for tensor in operator.outputs)
            for tensor in () if view else operator.outputs:
                datum = last[tensor.storage] = Datum(operator.id, tensor.storage)
                self.readers.setdefault(datum, [])
                self.writes[operator.id].append((datum, tensor))
                if is_table:
                    self.tables.add(datum)
                if trained and tensor.dtype.startswith(("float", "bfloat", "complex")):
                    self.trained.add(datum)
        for operator in everything:
            if operator.phase == "backward" and operator.forward is not None:
                self.backward.setdefault(operator.forward, []).append(operator)

    def datum(self, operator: Operator, tensor: Tensor) -> Datum | None:
        """Return what an operator reads in one of its inputs; None for what was there before the step."""
        return next((datum for datum, read in self.reads[operator.id] if read.storage == tensor.storage), None)


def parameter_storages(operators: Iterable[Operator]) -> dict[int, int]:
    """Return the storage of each parameter, by the ids that it goes by (a transposed view has one of its own)."""
    return {
        tensor.id: tensor.storage
        for operator in operators
        for tensor in (*operator.inputs, *operator.outputs)
        if tensor.category == "parameter"
    }


def owners(optimizer: Iterable[Operator], storages: dict[int, int]) -> dict[int, int]:
    """Return the parameter (its storage) that each tensor of the optimizer is about, by tensor id.

    A for-each operator takes lists of tensors, one after the other, in which one position is about one parameter; so what is
    not linked to a parameter is about what stands at its position in the other lists.
    """
    found: dict[int, int] = {}
    for operator in optimizer:
        tensors = (*operator.inputs, *operator.outputs)
        for tensor in tensors:
            parameter = tensor.id if tensor.category == "parameter" else tensor.parameter
            if parameter in storages:
                found[tensor.id] = storages[parameter]
        length = len(operator.outputs) or len(operator.inputs)
        if not length or len(tensors) % length:
            continue
        at = {index % length: found[tensor.id] for index, tensor in enumerate(tensors) if tensor.id in found}
        for index, tensor in enumerate(tensors):
            if index % length in at:
                found.setdefault(tensor.id, at[index % length])
    return found


def output_bytes(stage: Stage) -> float:
    """Return the bytes of the network's output: what the loss reads, or, without a loss, what the last operator writes."""
    operators: Sequence[Operator] = [operator for block in stage.forward for operator in block.operators]
    for operator in operators:
        if is_loss(operator):
            return float(
                max((t.nbytes for t in operator.inputs if t.category not in ("input", "parameter")), default=0)
            )
    return float(sum(tensor.nbytes for tensor in operators[-1].outputs)) if operators else 0.0
