"""The collectives of tensor parallelism around sharded layers, forward and backward.

Where features are sharded, partial sums of full size are all-reduced. With sequence parallelism a rank has a share of the
sequence outside the pairs of layers, so that each all-reduce becomes a reduce-scatter, and an all-gather where the full
sequence is needed again (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from triosim.extrapolators.core.program import Await, Communicate, TransferKey
from triosim.extrapolators.tensor.dtensor import SequenceCopies
from triosim.extrapolators.tensor.insertions import Insertions
from triosim.extrapolators.tensor.latent_attention import HeadExpansion
from triosim.extrapolators.tensor.layer_gradients import LayerGradients
from triosim.operators.features import is_free
from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.sharding.layers import WeightLayer
from triosim.tasks import CollectiveKind
from triosim.trace import Operator, Tensor

_LOSS_BYTES_PER_TOKEN = 4.0  # what the ranks exchange of the loss is fp32


class LayerCollectives:
    """Inserts collectives along a mesh axis into a program.

    ``joint_inputs`` are groups of column-parallel layers that read the same input. Its gradient is reduced beside the product
    for their weights' gradients where ``reduces_beside`` says so, and after it where not. ``copies`` are those that ``DTensor``
    makes, which gathers an input once; without them it is gathered again in the backward pass, as Megatron-LM does.
    """

    def __init__(
        self,
        flow: Dataflow,
        gradients: LayerGradients,
        inserted: Insertions,
        axis: str,
        *,
        by_sequence: bool,
        reduces_beside: bool,
        copies: SequenceCopies | None = None,
    ) -> None:
        self.joint_inputs: list[list[WeightLayer]] = []
        self._flow = flow
        self._gradients = gradients
        self._inserted = inserted
        self._axis = axis
        self._by_sequence = by_sequence
        self._reduces_beside = reduces_beside
        self._copies = copies if by_sequence else None
        self._reduction: CollectiveKind = "reduce_scatter" if by_sequence else "all_reduce"
        self._partial: set[int] = set()  # storages of replicated parameters whose gradients are reduced
        self._unreduced: set[int] = set()  # storages of gradients that are summed in full before they are reduced

    def input_value(self, layer: WeightLayer) -> StoredValue | None:
        """Return the value that a layer multiplies."""
        return self._flow.read_by(layer.operator, layer.input) if layer.input is not None else None

    def gather_output(self, layer: WeightLayer) -> None:
        """All-gather a column-parallel layer's output, and all-reduce the gradient of its input (style "gather")."""
        self._after(layer.operator, "all_gather", layer.output.nbytes)
        if self._has_input_gradient(layer):
            backward = self._gradients.operators([layer])
            if backward:
                self._after(backward[-1], "all_reduce", layer.input_gradient_bytes)

    def reduce_output(self, layer: WeightLayer) -> None:
        """Reduce a row-parallel layer's output; with sequence parallelism also gather its gradient in the backward pass."""
        output = layer.output
        self._copy_before_scatter(output, layer.operator)
        self._after(layer.operator, self._reduction, output.nbytes)
        backward = self._gradients.operators([layer]) if self._by_sequence else []
        if backward:
            first = next((operator for operator in backward if not is_free(operator)), backward[0])
            self._inserted.before(first, Communicate("all_gather", float(output.nbytes), self._axis))
            self._copy_after_gather(next((t for t in first.inputs if t.nbytes == output.nbytes), None), first)

    def reduce_loss(self, loss: Operator, tokens: int) -> None:
        """All-reduce around a loss whose classes are sharded, as Megatron-LM's ``vocab_parallel_cross_entropy`` does.

        Ahead of it the maxima of the logits; after it the logits of the labels, and the sums of the exponentials.
        """
        collective = Communicate("all_reduce", tokens * _LOSS_BYTES_PER_TOKEN, self._axis)
        self._inserted.before(loss, collective)
        self._inserted.after(loss, collective)
        self._inserted.after(loss, collective)

    def reduce_input_gradients(self, layers: Iterable[WeightLayer]) -> None:
        """Reduce the gradient of each input of column-parallel layers, once for all layers that read it."""
        groups: dict[StoredValue | None, list[WeightLayer]] = {}
        for layer in layers:
            groups.setdefault(self.input_value(layer), []).append(layer)
        for group in groups.values():
            self._reduce_input_gradient(group)

    def _reduce_input_gradient(self, layers: list[WeightLayer]) -> None:
        """Insert one reduction for layers with the same input, beside the last one's weight gradient or after it."""
        self.joint_inputs.append(layers)
        backward = self._gradients.operators(layers)
        if layers[0].input is None or not self._has_input_gradient(layers[0]) or not backward:
            return
        last = self._gradients.last_of_input(backward)
        early = backward[: backward.index(last)]
        self._unreduced |= {t.storage for op in early for t in op.outputs if t.parameter is None}
        if not self._reduces_beside:
            self._copy_before_scatter(next(iter(self._gradients.of_input(last)), None), backward[-1])
            self._after(backward[-1], self._reduction, layers[0].input_gradient_bytes)
            return
        if self._gradients.may_compute_weights(last):
            self._inserted.split(last)
        key = TransferKey("gradient of the input", last.id)
        self._after(last, self._reduction, layers[0].input_gradient_bytes, key)
        reader = self._gradients.reader(last, backward, self.input_value(layers[0]))
        if reader is None:
            self._inserted.after(backward[-1], Await(key))
        else:
            self._inserted.before(reader, Await(key))

    def gather_input(self, layers: Sequence[WeightLayer]) -> None:
        """All-gather an input that layers share; without ``copies`` once more, for the gradients of their weights."""
        shared = layers[0].input
        assert shared is not None
        first = min((layer.operator for layer in layers), key=self._flow.forward.index)
        gather = Communicate("all_gather", float(shared.nbytes), self._axis, operator=first.id)
        self._inserted.before(first, gather)
        self._copy_after_gather(shared, first)
        if self._copies is not None:
            return
        backward = [operator for operator in self._gradients.operators(layers) if not is_free(operator)]
        users = [operator for operator in backward if self._gradients.may_compute_weights(operator)]
        if not users:
            return
        key = TransferKey("input again", first.id)
        user = users[0]
        self._inserted.before(backward[0], replace(gather, key=key, operator=None))
        inserts_amid = self._inserted.is_split(user) or self._gradients.of_input(user)
        insert = self._inserted.amid if inserts_amid else self._inserted.before
        insert(user, Await(key))

    def gather_tokens(self, operator: Operator, tensors: Iterable[Tensor]) -> None:
        """All-gather the tensors of which an operator needs all tokens."""
        for tensor in tensors:
            self._inserted.before(operator, Communicate("all_gather", float(tensor.nbytes), self._axis))

    def reduce_parameter(self, parameter: Tensor, operator: Operator, heads: int = 1) -> None:
        """All-reduce a parameter's gradient, once for all operators that use it.

        It is replicated, and a rank uses it for its own features only; or it has fewer heads than there are ranks, and the
        gradient of each of its ``heads`` is reduced among the ranks that have it.
        """
        backward = self._flow.backward.get(operator.id)
        if backward and parameter.storage not in self._partial:
            self._partial.add(parameter.storage)
            collective = Communicate("all_reduce", parameter.nbytes / heads, self._axis, None, heads, of_weights=True)
            self._inserted.after(backward[-1], collective)

    def reduce_expansion(self, expansion: HeadExpansion) -> None:
        """Reduce the gradient of a value that is expanded to all heads; with sequence parallelism, gather the value first."""
        nbytes = expansion.source.nbytes
        if self._by_sequence:
            gather = Communicate("all_gather", float(nbytes), self._axis, operator=expansion.reader)
            self._inserted.before(expansion.view, gather)
        backward = self._flow.backward.get(expansion.view.id)
        if backward:
            self._after(backward[-1], self._reduction, nbytes)

    def sums_unreduced_gradients(self, operator: Operator) -> bool:
        """Whether an operator adds up the gradients of several layers' input before the sum is reduced over the ranks."""
        return operator.forward is None and any(t.storage in self._unreduced for t in operator.inputs)

    def _copy_after_gather(self, tensor: Tensor | None, reader: Operator) -> None:
        if self._copies is not None and tensor is not None:
            for copy in self._copies.after_gather(tensor, reader):
                self._inserted.before(reader, copy)

    def _copy_before_scatter(self, tensor: Tensor | None, last: Operator) -> None:
        if self._copies is not None and tensor is not None:
            for copy in self._copies.before_scatter(tensor, last):
                self._inserted.after(last, copy)

    def _after(self, operator: Operator, kind: CollectiveKind, nbytes: float, key: TransferKey | None = None) -> None:
        self._inserted.after(operator, Communicate(kind, float(nbytes), self._axis, key))

    def _has_input_gradient(self, layer: WeightLayer) -> bool:
        """Whether the gradient of a layer's input is computed, as it is unless this is the network's input."""
        return self.input_value(layer) in self._flow.differentiable
