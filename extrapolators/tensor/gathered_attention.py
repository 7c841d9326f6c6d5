"""Attention to all-gathered keys and values, as in the training of Llama 3 (Grattafiori et al. 2024, section 3.3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from triosim.extrapolators.core.program import BlockItem, Communicate
from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.extrapolators.tensor.sequence_parallel import local_tokens
from triosim.sharding.step_dimensions import StepDimensions
from triosim.trace import Operator, Tensor


class GatheredAttention:
    """Gives attention the keys and values of all ``ranks`` ranks along a mesh axis, and scatters their gradients."""

    def __init__(self, added: AddedOperators, step: StepDimensions, axis: str, ranks: int) -> None:
        self._added = added
        self._step = step
        self._axis = axis
        self._ranks = ranks
        self._full: dict[int, Tensor] = {}  # the tensors of all tokens, by the id of those of a rank's tokens

    def with_all_keys(self, full: Operator, local: Operator, attention: Operator) -> Operator:
        """Return a rank's share of an attention operator with the keys and values, or their gradients, of all tokens.

        ``full`` and ``local`` are the operator on all tokens and on a rank's; ``attention`` is its forward operator, or itself.
        """
        keys = attention.inputs[1:3]
        shapes = {tensor.shape for tensor in keys}

        def inputs() -> Iterator[Tensor]:
            for old, new in zip(full.inputs, local.inputs, strict=True):
                yield self._of_all_tokens(old) if old in keys else new

        def outputs() -> Iterator[Tensor]:
            for position, (old, new) in enumerate(zip(full.outputs, local.outputs, strict=True)):
                is_gradient = full.phase == "backward" and position > 0 and old.shape in shapes
                yield self._of_all_tokens(old) if is_gradient else new

        return replace(local, inputs=tuple(inputs()), outputs=tuple(outputs()))

    def collectives(
        self, full: Operator, attention: Operator, backward: Sequence[tuple[Operator, Operator]]
    ) -> dict[int, list[BlockItem]]:
        """Return the items that replace an attention and its last backward operator, by their ids.

        ``full`` is the attention on all tokens, ``attention`` a rank's share; ``backward`` are pairs of the same. Gathered keys
        and values are put in order by a copy; of the scattered gradients a rank keeps its own.
        """
        every = attention.inputs[1:3]
        own = [local_tokens(self._step, tensor, self._ranks) for tensor in full.inputs[1:3]]
        copies = [self._added.operator("repeat", attention, (o,), (e,)) for o, e in zip(own, every, strict=True)]
        gather = Communicate(
            *("all_gather", float(sum(tensor.nbytes for tensor in every)), self._axis),
            operator=attention.id,
            tensors=tuple(tensor.id for tensor in every),
        )
        found: dict[int, list[BlockItem]] = {attention.id: [gather, *self._added.priced(copies), attention]}
        if backward:
            old, last = backward[-1]
            kept = [
                self._added.operator("slice", last, (self._full[t.id],), (local_tokens(self._step, t, self._ranks),))
                for t in old.outputs
                if t.id in self._full
            ]
            found[last.id] = [last, replace(gather, kind="reduce_scatter"), *kept]
        return found

    def _of_all_tokens(self, tensor: Tensor) -> Tensor:
        found = self._full.get(tensor.id)
        if found is None:
            number = self._added.tensor_id()
            found = self._full[tensor.id] = replace(tensor, id=number, storage=number)
        return found
