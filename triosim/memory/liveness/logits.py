"""The tensors that Python refers to until a loss is computed: the network's output, and what is made of it for the loss.

Where a program frees nothing that is known, a tensor is taken to live until its last reader. Of the logits that is too short:
``logits = model(x)`` is a variable of the training loop or of the model's own ``forward``, as their copies in single precision,
or without the last word, are of the function that computes the loss. So they are there when the loss is, beside its result.
"""

from __future__ import annotations

from collections.abc import Iterable

from triosim.operators.features import base_name
from triosim.operators.kinds import kind_of
from triosim.sharding.dataflow import is_loss
from triosim.trace import Operator


def kept_for_loss(forward: Iterable[Operator]) -> dict[int, frozenset[int]]:
    """Return the storages that live until the loss is computed, by its operator's id: nothing where there is no loss.

    ``forward`` are the operators of the forward pass, the last one first. What the loss reads is followed to what it was made
    of, up to the product, or another operator with parameters, that made the logits.
    """
    operators = iter(forward)
    loss = next((operator for operator in operators if is_loss(operator)), None)
    if loss is None:
        return {}
    kept = {tensor.storage for tensor in loss.inputs}
    for operator in operators:
        if kept.isdisjoint([tensor.storage for tensor in operator.outputs]):
            continue
        if _has_weights(operator):
            break
        kept.update([tensor.storage for tensor in operator.inputs])
    return {loss.id: frozenset(kept)}


def _has_weights(operator: Operator) -> bool:
    return kind_of(base_name(operator.name)) == "product" or any(one.category == "parameter" for one in operator.inputs)
