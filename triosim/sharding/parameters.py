"""Parameters by the storage that they stand for: under other tensor ids, cast to another dtype, and in the optimizer."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from triosim.operators.features import base_name
from triosim.trace import Operator, Tensor


def parameter_storages(operators: Iterable[Operator]) -> dict[int, int]:
    """Return the storage of each parameter by tensor id; a parameter has several (a transposed view has its own)."""
    return {
        tensor.id: tensor.storage
        for operator in operators
        for tensor in (*operator.inputs, *operator.outputs)
        if tensor.category == "parameter"
    }


def owners(optimizer: Iterable[Operator], storages: Mapping[int, int]) -> dict[int, int]:
    """Return the parameter (its storage) that each tensor of the optimizer belongs to, by tensor id.

    A for-each operator takes lists of tensors, one after the other, in which one position belongs to one parameter; so a tensor
    that is not linked to a parameter belongs to that of its position in the other lists.
    """
    found: dict[int, int] = {}
    for operator in optimizer:
        tensors = (*operator.inputs, *operator.outputs)
        for tensor in tensors:
            parameter = tensor.id if tensor.category == "parameter" else tensor.parameter
            if parameter is not None and parameter in storages:
                found[tensor.id] = storages[parameter]
        length = len(operator.outputs) or len(operator.inputs)
        if not length or len(tensors) % length:
            continue
        at = {index % length: found[tensor.id] for index, tensor in enumerate(tensors) if tensor.id in found}
        for index, tensor in enumerate(tensors):
            if index % length in at:
                found.setdefault(tensor.id, at[index % length])
    return found


def casts_of_parameters(operators: Iterable[Operator]) -> dict[int, int]:
    """Return the storages of parameters that the forward pass casts to another dtype (autocast), each with the parameter's."""
    return {
        operator.outputs[0].storage: operator.inputs[0].storage
        for operator in operators
        if operator.phase == "forward" and is_cast_of_parameter(operator)
    }


def is_cast_of_parameter(operator: Operator) -> bool:
    """Whether an operator copies a parameter to another dtype."""
    if base_name(operator.name) not in ("to", "to_copy", "cast_transpose") or not (
        operator.inputs and operator.outputs
    ):
        return False
    parameter, cast = operator.inputs[0], operator.outputs[0]
    return parameter.category == "parameter" and cast.storage != parameter.storage and cast.shape == parameter.shape


def with_casts_as_parameters(operators: Iterable[Operator], casts: Container[int]) -> list[Operator]:
    """Return operators in which tensors of some storages are parameters."""

    def of(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not any(tensor.storage in casts for tensor in tensors):
            return tensors
        return tuple(replace(t, category="parameter") if t.storage in casts else t for t in tensors)

    found = []
    for operator in operators:
        inputs, outputs = of(operator.inputs), of(operator.outputs)
        same = inputs is operator.inputs and outputs is operator.outputs
        found.append(operator if same else replace(operator, inputs=inputs, outputs=outputs))
    return found
