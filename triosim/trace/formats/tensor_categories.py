"""Derives the category of each tensor from the operators that write and read it.

A storage that is read before it is written existed before the step: a parameter if the optimizer changes it or the call's
signature says so, a gradient, an optimizer state, the input, or a buffer. New storages of the forward pass are activations, of
the backward pass gradients, of the optimizer temporary. Gradients and states belong to the parameter at their position in the
optimizer's lists.
"""

from __future__ import annotations

from collections.abc import Iterable

from triosim.trace.formats.unclassified import Categories, CategoryHints, UnclassifiedOperator, UnclassifiedTensor
from triosim.trace.trace import PHASES, Category, Operator, Phase, Tensor

#: The category of a new storage by the phase that writes it, if nothing else is known.
_WRITTEN: dict[Phase, Category] = {"forward": "activation", "backward": "gradient", "optimizer": "temporary"}


def assign(operators: list[UnclassifiedOperator], hints: CategoryHints) -> Categories:
    """Return category and parameter of every storage; the parameter is a storage too."""
    use = _StoragePhases(operators)
    categories: Categories = {}
    parameters = _parameters(use, hints)
    owners = slots(operators, parameters)
    batch = batch_size(operators, hints)
    outputs = _outputs(operators, use)
    said = any(category == "parameter" for category, _ in hints.known.values())
    for storage, phase in use.written_in.items():
        category = _WRITTEN[phase]
        if phase == "forward" and (storage in hints.inputs or storage in outputs):
            category = "input" if storage in hints.inputs else "output"
        categories[storage] = (category, owners.get(storage) if category == "gradient" else None)
    for storage, tensor in use.leaves.items():
        if storage in parameters:
            categories[storage] = ("parameter", None)
        elif use.read_in[storage] != "forward":
            # Gradients that live on between steps are added to in the backward pass; states are the optimizer's alone.
            other: Category = "temporary" if said else "optimizer_state"
            category = "gradient" if storage in use.changed["backward"] else other
            categories[storage] = (category, owners.get(storage))
        elif storage in hints.buffers or storage in use.changed["forward"]:
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

    def forward_of(one: UnclassifiedOperator) -> int | None:
        number = None if one.forward is None else numbers.get(one.forward)
        return None if number is None or number > numbers[one] else number  # times that are damaged have it run later

    return tuple(
        Operator(
            *(numbers[one], one.name, one.phase, one.layer, tensors(one.inputs), tensors(one.outputs)),
            *(one.seconds, one.busy_seconds, one.host_seconds),
            forward=forward_of(one),
            kernels=one.kernels,
            attributes=one.attributes,
        )
        for one in operators
    )


def batch_size(operators: list[UnclassifiedOperator], hints: CategoryHints) -> int | None:
    """Return the stated batch size, or the first dimension of the first tensor of the forward pass that is no parameter.

    It is that of the first input where a reader states which tensors are inputs.
    """
    if hints.batch_size is not None:
        return hints.batch_size
    inputs = {storage for storage, (category, _) in hints.known.items() if category == "input"}
    parameters = parameters_of(operators, hints)
    written: set[int] = set()
    for operator in operators:
        if operator.phase != "forward":
            continue
        for tensor in operator.inputs:
            leaf = tensor.storage not in written or tensor.storage in hints.inputs
            known = tensor.storage in parameters or tensor.storage in hints.buffers
            if leaf and not known and tensor.shape and (not inputs or tensor.storage in inputs):
                return tensor.shape[0]
        written.update(tensor.storage for tensor in operator.outputs)
    return None


class _StoragePhases:
    """The phases in which each storage is first read, written and changed."""

    def __init__(self, operators: list[UnclassifiedOperator]) -> None:
        self.leaves: dict[int, UnclassifiedTensor] = {}  # storages that were there before the step, as first seen
        self.read_in: dict[int, Phase] = {}  # the phase that first read a leaf
        self.written_in: dict[int, Phase] = {}  # the phase that made the others
        self.changed: dict[Phase, set[int]] = {phase: set() for phase in PHASES}  # leaves that are written to
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
                    self.changed[operator.phase].add(tensor.storage)


def _hands_on(operator: UnclassifiedOperator, tensor: UnclassifiedTensor) -> bool:
    """Whether a forward call only returns its input, as ``aten::to`` does where there is nothing to convert."""
    if operator.phase != "forward" or operator.name.endswith("_"):
        return False
    return len(operator.inputs) == 1 and any(tensor is one for one in operator.returned)


def parameters_of(operators: list[UnclassifiedOperator], hints: CategoryHints) -> set[int]:
    """Return the storages of the parameters."""
    return _parameters(_StoragePhases(operators), hints)


def _parameters(use: _StoragePhases, hints: CategoryHints) -> set[int]:
    if hints.known:
        return {storage for storage, (category, _) in hints.known.items() if category == "parameter"}
    read_forward = {storage for storage, phase in use.read_in.items() if phase == "forward"}
    return read_forward & (hints.parameters | use.changed["optimizer"])


def slots(operators: list[UnclassifiedOperator], parameters: set[int]) -> dict[int, int]:
    """Return the parameter (its storage) of each gradient and state of the optimizer.

    Tensors at one position of an operator's lists are joined; a group of joined ones with exactly one parameter belongs to it.
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


def _outputs(operators: list[UnclassifiedOperator], use: _StoragePhases) -> set[int]:
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
