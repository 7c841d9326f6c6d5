"""The memory of PyTorch's loss on logits that are sharded by vocabulary, beside what the same loss keeps on one GPU.

``torch/distributed/tensor/parallel/loss.py`` (``loss_parallel``) writes the loss out in several steps. Its forward pass holds
the logits less their maxima while it makes the result of these; its backward pass adds the exponentials of the result to the
labels' gradients, and multiplies the sum: each is a tensor of the logits' size. Megatron-LM's computes in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from triosim.operators.features import base_name
from triosim.sharding.placements import Placements
from triosim.trace import Operator

_STEPS = ("log_softmax", "log_softmax_backward_data")


def with_step_of_loss(operator: Operator, placements: Placements, new_tensor: Callable[[], int]) -> Operator:
    """Return an operator of a loss with one tensor more, which it makes and drops; other operators are as before.

    ``new_tensor`` returns the id of a tensor that is not in use.
    """
    result = operator.outputs[-1] if operator.outputs else None
    if base_name(operator.name) not in _STEPS or result is None or result.id not in placements:
        return operator
    number = new_tensor()
    step = replace(result, id=number, storage=number, category="activation")
    return replace(operator, outputs=(*operator.outputs, step))
