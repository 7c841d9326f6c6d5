"""The tensors that operators which follow each other read and write, by storage and by parameter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from triosim.operators.features import is_free
from triosim.trace import Operator, Tensor


class ParameterUse(NamedTuple):
    """An operator (its id and layer) that reads a parameter."""

    operator: int
    layer: str
    tensor: Tensor


class StorageUse(NamedTuple):
    """The uses of a storage: the layer of the first, the largest tensor, and the parameters (ids) that its tensors name."""

    layer: str
    largest: Tensor
    named: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorUses:
    """What operators that follow each other read and write.

    - ``first``: the first tensor of each storage; an operator's inputs come before its outputs.
    - ``made``: the storages that an operator writes and does not read.
    - ``uses``: of parameters, in order; ``parameters``: the storage of each of them, by id; ``views``: of those written.
    - ``repeated``: the parameters (ids) that a view shows several times, such as a class token for every sample.
    - ``storages``: their uses, but for those of parameters by an optimizer.
    - ``written``: the gradients that name a parameter: position and id of the operator, id of the parameter.
    - ``differentiated``: position and id of each operator that differentiates another, and the id of that one; but for those
      that update the parameters themselves, which then have no gradient.
    """

    first: dict[int, Tensor]
    made: frozenset[int]
    uses: tuple[ParameterUse, ...]
    parameters: dict[int, int]
    views: dict[int, int]
    repeated: frozenset[int]
    storages: dict[int, StorageUse]
    written: tuple[tuple[int, int, int], ...]
    differentiated: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, operators: Iterable[Operator], *, updates: bool) -> TensorUses:
        """Return those of some operators, which are an optimizer's where they ``updates`` parameters."""
        operators = tuple(operators)
        uses = tuple(
            [ParameterUse(op.id, op.layer, t) for op in operators for t in op.inputs if t.category == "parameter"]
        )
        views = [t for op in operators for t in op.outputs if t.category == "parameter"]
        tensors = [(op, t) for op in operators for t in (*op.inputs, *op.outputs)]
        made: set[int] = set()
        for op in operators:
            made.update({t.storage for t in op.outputs}.difference([t.storage for t in op.inputs]))
        return cls(
            {t.storage: t for _, t in reversed(tensors)},
            frozenset(made),
            uses,
            {use.tensor.id: use.tensor.storage for use in uses},
            {t.id: t.storage for t in views},
            frozenset([number for op in operators for number in _repeated(op)]),
            _storages(tensors, updates=updates),
            tuple(
                [
                    (n, op.id, t.parameter)
                    for n, op in enumerate(operators)
                    for t in op.outputs
                    if t.parameter is not None
                ]
            ),
            tuple(
                [
                    (n, op.id, op.forward)
                    for n, op in enumerate(operators)
                    if op.forward is not None and not _updates(op)
                ]
            ),
        )


def _updates(operator: Operator) -> bool:
    """Whether an operator writes a parameter, of which it is no view."""
    return any(t.category == "parameter" for t in operator.outputs) and not is_free(operator)


def _storages(tensors: Iterable[tuple[Operator, Tensor]], *, updates: bool) -> dict[int, StorageUse]:
    layers: dict[int, str] = {}
    largest: dict[int, Tensor] = {}
    named: dict[int, tuple[int, ...]] = {}
    for operator, tensor in tensors:
        if updates and tensor.category == "parameter":
            continue
        storage = tensor.storage
        known = largest.get(storage)
        if known is None:
            layers[storage], largest[storage] = operator.layer, tensor
        elif known.shape != tensor.shape and tensor.numel > known.numel:
            largest[storage] = tensor
        if tensor.parameter is not None:
            named[storage] = (*named.get(storage, ()), tensor.parameter)
    return {storage: StorageUse(layers[storage], tensor, named.get(storage, ())) for storage, tensor in largest.items()}


def _repeated(operator: Operator) -> list[int]:
    """Return the parameters (ids) that an operator makes views of that show each element several times."""
    views = [t for t in operator.outputs if t.category == "parameter"]
    if not views:
        return []
    most = dict.fromkeys([t.storage for t in views], 0)
    for tensor in operator.inputs:
        if tensor.storage in most:
            most[tensor.storage] = max(most[tensor.storage], tensor.numel)
    return [view.id for view in views if view.numel > most[view.storage]]


def distinct(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return one tensor of each storage: the largest, since a tensor that one operator needs in full is there in full."""
    found: dict[int, Tensor] = {}
    for tensor in tensors:
        known = found.get(tensor.storage)
        if known is None or tensor.numel > known.numel:
            found[tensor.storage] = tensor
    return tuple(found.values())
