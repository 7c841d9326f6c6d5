"""The backward operators of layers: their gradients of inputs and of weights, and the operators that read these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from triosim.operators.features import base_name, is_autograd_node, is_free
from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.sharding.layers import WeightLayer
from triosim.sharding.propagation import OperatorSharding
from triosim.trace import Operator, Tensor


class LayerGradients:
    """The backward operators of ``layers``. ``shardings`` has the logical axes of their tensors, once they are known."""

    def __init__(
        self,
        flow: Dataflow,
        layers: Mapping[int, WeightLayer],
        backward: Sequence[Operator],
        shardings: Mapping[int, OperatorSharding | None],
    ) -> None:
        self._flow = flow
        self._layers = layers
        self._all = backward
        self._order = {operator.id: position for position, operator in enumerate(backward)}
        self._shardings = shardings

    def operators(self, layers: Iterable[WeightLayer]) -> list[Operator]:
        """Return the backward operators of some layers, in the order of the backward pass."""
        numbers = {op.id for layer in layers for op in self._flow.backward.get(layer.operator.id, ())}
        return [self._flow.by_id[number] for number in sorted(numbers, key=self._order.__getitem__)]

    def of_input(self, operator: Operator) -> list[Tensor]:
        """Return the gradients of the layer's input that a backward operator computes."""
        layer = self._layer(operator)
        return [t for t in operator.outputs if layer.input is not None and self._is_gradient(t, layer.input, layer)]

    def of_weights(self, operator: Operator) -> list[Tensor]:
        """Return the gradients of the layer's parameters that a backward operator computes."""
        layer = self._layer(operator)
        return [t for t in operator.outputs if t.parameter is not None or self._is_gradient(t, layer.weight, layer)]

    def may_compute_weights(self, operator: Operator) -> bool:
        """Whether a backward operator computes a weight's gradient, or is an autograd node, which may not list it."""
        return bool(self.of_weights(operator)) or is_autograd_node(base_name(operator.name))

    def last_of_input(self, backward: Sequence[Operator]) -> Operator:
        """Return the operator that completes the gradient of the input of some layers, of their backward operators."""
        computing = [operator for operator in backward if self.of_input(operator)]
        products = [operator for operator in computing if not is_free(operator)]
        return (products or computing or backward)[-1]

    def reader(self, last: Operator, backward: Sequence[Operator], value: StoredValue | None) -> Operator | None:
        """Return the next backward operator that needs the gradient of ``value``, the layers' input.

        ``last`` of their ``backward`` operators completes it. Where none is known to read it, this is the next operator.
        """
        produced = {tensor.storage for op in backward for tensor in op.outputs if tensor.parameter is None}
        own = {op.id for op in backward}
        later = (op for op in islice(self._all, self._order[last.id] + 1, None) if op.id not in own)
        first = None
        for operator in later:
            first = first or operator
            differentiates_producer = value is not None and operator.forward == value.producer
            if differentiates_producer or any(tensor.storage in produced for tensor in operator.inputs):
                return operator
        return first

    def _layer(self, operator: Operator) -> WeightLayer:
        return self._layers[operator.forward or 0]

    def _is_gradient(self, tensor: Tensor, of: Tensor, layer: WeightLayer) -> bool:
        sharding = self._shardings[layer.operator.id]
        return tensor.parameter is None and sharding is not None and sharding.have_same_axes(tensor, of)
