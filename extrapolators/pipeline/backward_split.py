"""Splits the backward pass into the gradients of a stage's inputs and the gradients of its weights (Qi et al. 2024).

The dataflow tells the parts apart: an operator is in the weight part if all that it computes is read only on the way to
gradients of parameters, by operators that differentiate the same forward operator. (Without that limit the weight part would
hold every operator, because gradients of inputs lead to those of earlier layers' parameters.) A product or convolution that
computes both gradients becomes two operators, each with half of its FLOPs. Norms, which compute both at little cost, stay in
the input part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from triosim.errors import TraceError
from triosim.extrapolators.core.program import BlockItem, Program, Stage
from triosim.operators.features import base_name
from triosim.sharding.dataflow import Dataflow, StoredValue, is_view
from triosim.sharding.layers import split_gradients, weight_layer
from triosim.trace import Operator


def split_backward(program: Program) -> Program:
    """Return a program of one stage with its ``weight_part``. Raises ``TraceError`` where no operator belongs to it."""
    if not program.training:
        return program
    (stage,) = program.stages
    forward = {op.id: op for block in stage.forward for op in block.operators}
    fresh = max(op.id for op in program.operators) + 1

    def divided(items: Iterable[BlockItem]) -> Iterable[BlockItem]:
        nonlocal fresh
        for item in items:
            if isinstance(item, Operator) and _computes_both_gradients(item, forward):
                weights = tuple(tensor for tensor in item.outputs if tensor.parameter is not None)
                for_data, for_weights = split_gradients(item, weights, fresh)
                fresh += 1
                yield from (for_weights, for_data)  # the gradient of the input is there when both are
            else:
                yield item

    backward = tuple(replace(block, items=tuple(divided(block.items))) for block in stage.backward)
    part = weight_part(replace(stage, backward=backward))
    if not part:
        raise TraceError(
            "no backward operator computes gradients of parameters alone, so the schedule has no weight gradients to delay",
            fix="capture the trace with the links from gradients to parameters, or choose another schedule",
        )
    return replace(program, stages=(replace(stage, backward=backward),), weight_part=part)


def weight_part(stage: Stage) -> frozenset[int]:
    """Return the backward operators of a stage that compute gradients of parameters alone."""
    operators = [op for block in stage.backward for op in block.operators]
    flow = Dataflow(operators, followed=operators)
    of_parameters = _gradients_of_parameters(flow, stage)
    found: set[int] = set()

    def leads_to_weights(operator: Operator, value: StoredValue) -> bool:
        readers = flow.readers[value]
        if value in of_parameters:
            return all(reader.id in found for reader in readers)
        return bool(readers) and all(
            reader.id in found and (reader.forward in (operator.forward, None) or adds_up(reader)) for reader in readers
        )

    def adds_up(reader: Operator) -> bool:
        """Whether an operator sums the gradients that two layers have for one parameter."""
        written = (value for value, _ in flow.writes[reader.id])
        return base_name(reader.name) in ("add", "add_") and of_parameters.issuperset(written)

    for operator in reversed(operators):
        written = flow.writes[operator.id]
        if written and all(leads_to_weights(operator, value) for value, _ in written):
            found.add(operator.id)
    for view in filter(is_view, operators):
        shown = {tensor.storage for tensor in view.outputs}
        producers = [value.producer for value, _ in flow.reads[view.id] if value.storage in shown]
        if producers and found.issuperset(producers):
            found.add(view.id)
    return frozenset(found)


def _gradients_of_parameters(flow: Dataflow, stage: Stage) -> set[StoredValue]:
    """Return the values of the backward pass that are gradients of parameters, by its own tensors or the optimizer's."""
    found: set[StoredValue] = set()
    last: dict[int, StoredValue] = {}
    for operator in flow.forward:
        last.update((value.storage, value) for value, _ in flow.writes[operator.id])
        found.update(last[t.storage] for t in operator.outputs if t.parameter is not None and t.storage in last)
    read = (t for block in stage.optimizer for op in block.operators for t in op.inputs)
    return found.union(last[t.storage] for t in read if t.parameter is not None and t.storage in last)


def _computes_both_gradients(operator: Operator, forward: dict[int, Operator]) -> bool:
    """Whether a backward operator of a product or convolution computes the gradients of its input and of its weights."""
    differentiated = forward.get(operator.forward) if operator.forward is not None else None
    layer = weight_layer(differentiated) if differentiated is not None else None
    of_weights = sum(tensor.parameter is not None for tensor in operator.outputs)
    return layer is not None and layer.input is not None and 0 < of_weights < len(operator.outputs)
