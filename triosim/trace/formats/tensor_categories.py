"""Derives the category of each tensor from the operators that write and read it.

A storage that is read before anything wrote it was there before the step: a parameter if the optimizer changes it or the
call's signature says so, a gradient, an optimizer's state, the input, or a buffer. What the forward pass writes is an
activation, what the backward pass writes a gradient, what the optimizer writes afresh is temporary. Gradients and states are
linked to their parameters by the position that they share in the optimizer's lists.
"""

from __future__ import annotations

from collections.abc import Iterable

from triosim.trace.formats.unclassified import Categories, CategoryHints, UnclassifiedOperator, UnclassifiedTensor
from triosim.trace.trace import Category, Operator, Phase, Tensor


def assign(operators: list[UnclassifiedOperator], hints: CategoryHints) -> Categories:
    """Return category and parameter of every storage; the parameter is a storage too."""
    use = _Use(operators)
    categories: Categories = {}
    parameters = _parameters(operators, use, hints)
    owners = slots(operators, parameters)
    batch = batch_size(operators, hints, parameters)
    outputs = _outputs(operators, use)
    said = any(category == "parameter" for category, _ in hints.known.values())
    for storage, phase in use.written_in.items():
        category: Category = "activation"
        if phase == "backward":
            category = "gradient"
        elif phase == "optimizer":
            category = "temporary"
        elif storage in hints.inputs:
            category = "input"
        elif storage in outputs:
            category = "output"
        categories[storage] = (category, owners.get(storage) if category == "gradient" else None)
    for storage, tensor in use.leaves.items():
        if storage in parameters:
            categories[storage] = ("parameter", None)
        elif use.read_in[storage] != "forward":
            # Gradients that live on between steps are added to in the backward pass; states are the optimizer's alone.
            other: Category = "temporary" if said else "optimizer_state"
            category = "gradient" if storage in use.changed_in_backward else other
            categories[storage] = (category, owners.get(storage))
        elif storage in hints.buffers or storage in use.changed_in_forward:
            categories[storage] = ("buffer", None)
        else:
            fed = storage in hints.inputs or _is_of_samples(tensor, batch)
            categories[storage] = ("input" if fed else "buffer", None)
    categories.update((storage, role) for storage, role in hints.known.items() if storage in categories)
    _link_by_layer(operators, categories, parameters)
    return categories


def _is_of_samples(tensor: UnclassifiedTensor, batch: int | None) -> bool:
    """Whether a tensor that was there before the step is a batch: (batch, ...), or (sequence, batch, features)."""
    return tensor.shape[:1] == (batch,) or (len(tensor.shape) == 3 and tensor.shape[1] == batch)


def build(operators: list[UnclassifiedOperator], categories: Categories) -> tuple[Operator, ...]:
    """Return the trace's operators: numbered from 1, with tensors that have a category."""
    first: dict[int, int] = {}  # storage -> the id of the first tensor that was seen in it
    for operator in operators:
        for tensor in (*operator.inputs, *operator.outputs):
            first.setdefault(tensor.storage, tensor.id)
    built: dict[int, Tensor] = {}

    def tensors(found: Iterable[UnclassifiedTensor]) -> tuple[Tensor, ...]:
        for one in found:
            if one.id not in built:
                category, owner = categories[one.storage]
                parameter = first.get(owner) if owner is not None else None
                built[one.id] = Tensor(one.id, one.shape, one.dtype, category, one.storage, parameter)
        return tuple(built[one.id] for one in found)

    numbers = {operator: number for number, operator in enumerate(operators, 1)}
    return tuple(
        Operator(
            number,
            operator.name,
            operator.phase,
            operator.layer,
            tensors(operator.inputs),
            tensors(operator.outputs),
            operator.seconds,
            operator.busy_seconds,
            operator.host_seconds,
            numbers.get(operator.forward) if operator.forward is not None else None,
            None,
            operator.kernels,
            attributes=operator.attributes,
        )
        for number, operator in enumerate(operators, 1)
    )


def batch_size(operators: list[UnclassifiedOperator], hints: CategoryHints, parameters: set[int]) -> int | None:
    """Return the first dimension of the network's input: the first tensor of the forward pass that is no parameter.

    None when the forward pass has no such tensor, and nobody said it.
    """
    if hints.batch_size is not None:
        return hints.batch_size
    written: set[int] = set()
    for operator in operators:
        if operator.phase != "forward":
            continue
        for tensor in operator.inputs:
            leaf = tensor.storage not in written or tensor.storage in hints.inputs
            known = tensor.storage in parameters or tensor.storage in hints.buffers
            if leaf and not known and tensor.shape:
                return tensor.shape[0]
        written.update(tensor.storage for tensor in operator.outputs)
    return None


class _Use:
    """Who writes and reads each storage first."""

    def __init__(self, operators: list[UnclassifiedOperator]) -> None:
        self.leaves: dict[int, UnclassifiedTensor] = {}  # storages that were there before the step, as first seen
        self.read_in: dict[int, Phase] = {}  # the phase that first read a leaf
        self.written_in: dict[int, Phase] = {}  # the phase that made the others
        self.changed_in_forward: set[int] = set()
        self.changed_in_backward: set[int] = set()
        self.changed_in_optimizer: set[int] = set()
        changed = {
            "forward": self.changed_in_forward,
            "backward": self.changed_in_backward,
            "optimizer": self.changed_in_optimizer,
        }
        for operator in operators:
            for tensor in operator.inputs:
                if tensor.storage not in self.written_in and tensor.storage not in self.leaves:
                    self.leaves[tensor.storage] = tensor
                    self.read_in[tensor.storage] = operator.phase
            given = {tensor.id for tensor in operator.inputs}
            for tensor in operator.outputs:
                if tensor.storage not in self.leaves:
                    self.written_in.setdefault(tensor.storage, operator.phase)
                elif tensor.id in given and not _hands_on(operator, tensor):
                    changed[operator.phase].add(tensor.storage)


def _hands_on(operator: UnclassifiedOperator, tensor: UnclassifiedTensor) -> bool:
    """Whether a forward call only returns its input, as ``aten::to`` does where there is nothing to convert."""
    if operator.phase != "forward" or operator.name.endswith("_"):
        return False
    return len(operator.inputs) == 1 and any(tensor is one for one in operator.returned)


def parameters_of(operators: list[UnclassifiedOperator], hints: CategoryHints) -> set[int]:
    """Return the storages of the parameters."""
    return _parameters(operators, _Use(operators), hints)


def _parameters(operators: list[UnclassifiedOperator], use: _Use, hints: CategoryHints) -> set[int]:
    if hints.known:
        return {storage for storage, (category, _) in hints.known.items() if category == "parameter"}
    found = {storage for storage in use.leaves if use.read_in[storage] == "forward" and storage in hints.parameters}
    return found | {
        storage for storage in use.leaves if use.read_in[storage] == "forward" and storage in use.changed_in_optimizer
    }


def slots(operators: list[UnclassifiedOperator], parameters: set[int]) -> dict[int, int]:
    """Return the parameter (its storage) that the optimizer uses each gradient and state with.

    What stands at one position of an operator's lists belongs together; a group that way joined that has exactly one parameter
    belongs to it.
    """
    parent: dict[int, int] = {}

    def root(storage: int) -> int:
        parent.setdefault(storage, storage)
        while parent[storage] != storage:
            parent[storage] = parent[parent[storage]]
            storage = parent[storage]
        return storage

    for operator in operators:
        if operator.phase != "optimizer" or not operator.lists:
            continue
        length = len(operator.lists[0])
        for row in operator.lists[1:]:
            for first, other in zip(operator.lists[0], row if len(row) == length else [], strict=False):
                if first.shape == other.shape and other.shape:
                    parent[root(other.storage)] = root(first.storage)
    owners: dict[int, set[int]] = {}
    for parameter in parameters:
        owners.setdefault(root(parameter), set()).add(parameter)
    slots: dict[int, int] = {}
    for storage in list(parent):
        found = owners.get(root(storage), set())
        if len(found) == 1 and storage not in found:
            slots[storage] = next(iter(found))
    return slots


def _outputs(operators: list[UnclassifiedOperator], use: _Use) -> set[int]:
    """Return the outputs of the forward pass: results that nothing reads (the loss), and the input of the loss."""
    read: set[int] = set()
    made: list[UnclassifiedTensor] = []
    found: set[int] = set()
    for operator in operators:
        seeds = operator.name == "aten::ones_like"  # the gradient of the loss with respect to itself
        if operator.phase == "backward" and not seeds:
            read.update(tensor.storage for tensor in operator.inputs)
        if operator.phase != "forward":
            continue
        read.update(tensor.storage for tensor in operator.inputs)
        made.extend(tensor for tensor in operator.returned[:1] if use.written_in.get(tensor.storage) == "forward")
        if "loss" in operator.name and operator.inputs:
            logits = operator.inputs[0].storage
            if use.written_in.get(logits) == "forward":
                found.add(logits)
    return found | {tensor.storage for tensor in made if tensor.storage not in read}


def _link_by_layer(operators: list[UnclassifiedOperator], categories: Categories, parameters: set[int]) -> None:
    """Link gradients that no optimizer names: results of a backward operator in the shape of its forward one's parameter."""
    linked = {owner for _, owner in categories.values() if owner is not None}
    read_by_backward: set[int] = set()
    for operator in operators:
        if operator.phase == "backward" and not operator.name.endswith("AccumulateGrad"):
            read_by_backward.update(tensor.id for tensor in operator.inputs)
    for operator in operators:
        if operator.phase != "backward" or operator.forward is None:
            continue
        wanted = [tensor for tensor in operator.forward.inputs if tensor.storage in parameters]
        for made in operator.outputs:
            if categories[made.storage] != ("gradient", None) or made.id in read_by_backward:
                continue
            for parameter in wanted:
                if parameter.shape == made.shape and parameter.storage not in linked:
                    categories[made.storage] = ("gradient", parameter.storage)
                    linked.add(parameter.storage)
                    break
