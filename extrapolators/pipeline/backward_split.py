"""Splits the backward pass in two parts: gradients of a stage's inputs, and gradients of its weights (Qi et al. 2024).

Which operator belongs where is found from the dataflow: it is of the weight part if all that it computes leads to gradients of
parameters and to nothing else, within what differentiates one operator of the forward pass. (The last layer's gradients all
end in parameters too, by way of other layers: so it is not enough to ask where they end.) A product or convolution that
computes both at once is divided in two of as many FLOPs. Norms, which compute both at little cost, stay in the input part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from triosim.errors import TraceError
from triosim.extrapolators.core.program import BlockItem, Program, Stage
from triosim.operators.features import base_name
from triosim.sharding.dataflow import Value, is_view
from triosim.sharding.layers import split_gradients, weight_layer
from triosim.trace import Operator, Tensor


def split_backward(program: Program) -> Program:
    """Return the program of one stage with its ``weight_part``. Raises ``TraceError`` where the trace does not show it."""
    if not program.training:
        return program
    (stage,) = program.stages
    forward = {op.id: op for block in stage.forward for op in block.operators}
    fresh = max(op.id for op in program.operators) + 1

    def divided(items: Iterable[BlockItem]) -> Iterable[BlockItem]:
        nonlocal fresh
        for item in items:
            if isinstance(item, Operator) and _computes_both(item, forward):
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
    flow = _Gradients(operators, (op for block in stage.optimizer for op in block.operators))
    found: dict[int, Operator] = {}

    def leads_to_weights(operator: Operator, value: Value) -> bool:
        readers = flow.readers.get(value, ())
        if value in flow.of_parameters:
            return all(reader.id in found for reader in readers)
        return bool(readers) and all(
            reader.id in found and (reader.forward in (operator.forward, None) or adds_up(reader)) for reader in readers
        )

    def adds_up(reader: Operator) -> bool:
        """Whether an operator sums the gradients that two layers have for one parameter."""
        return base_name(reader.name) in ("add", "add_") and flow.of_parameters.issuperset(flow.writes[reader.id])

    for operator in reversed(operators):
        made = flow.writes[operator.id]
        if made and all(leads_to_weights(operator, value) for value in made):
            found[operator.id] = operator
    views = (op for op in operators if not flow.writes[op.id] and flow.shown[op.id])
    return frozenset(found).union(op.id for op in views if all(d.producer in found for d in flow.shown[op.id]))


class _Gradients:
    """What the backward operators make and read, by storage; views make nothing."""

    def __init__(self, operators: Iterable[Operator], optimizer: Iterable[Operator]) -> None:
        self.writes: dict[int, list[Value]] = {}
        self.readers: dict[Value, list[Operator]] = {}
        self.shown: dict[int, list[Value]] = {}  # what a view shows of it
        self.of_parameters: set[Value] = set()
        last: dict[int, Value] = {}

        def note(tensors: Iterable[Tensor]) -> None:
            for tensor in tensors:
                if tensor.parameter is not None and tensor.storage in last:
                    self.of_parameters.add(last[tensor.storage])

        for operator in operators:
            view = is_view(operator)
            for tensor in () if view else operator.inputs:
                if tensor.storage in last:
                    self.readers.setdefault(last[tensor.storage], []).append(operator)
            self.writes[operator.id] = []
            for tensor in () if view else operator.outputs:
                last[tensor.storage] = Value(operator.id, tensor.storage)
                self.writes[operator.id].append(last[tensor.storage])
            self.shown[operator.id] = [last[t.storage] for t in operator.outputs if view and t.storage in last]
            note(operator.outputs)
        for operator in optimizer:
            note(operator.inputs)


def _computes_both(operator: Operator, forward: dict[int, Operator]) -> bool:
    """Whether a backward operator of a product or convolution gives the gradients of its input and of its weights."""
    differentiated = forward.get(operator.forward) if operator.forward is not None else None
    layer = weight_layer(differentiated) if differentiated is not None else None
    of_weights = sum(tensor.parameter is not None for tensor in operator.outputs)
    return layer is not None and layer.input is not None and 0 < of_weights < len(operator.outputs)
